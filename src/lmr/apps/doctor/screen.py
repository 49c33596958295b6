"""The words of ``lmr doctor``: descriptions, checks and accuracies become text here and nowhere else."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Mapping, Sequence

from lmr.apps.doctor.accuracy import Accuracy
from lmr.apps.doctor.description import ModelDescription, TowerDescription
from lmr.apps.doctor.self_check import Check, CheckKind, CheckOutcome, SkipReason
from lmr.apps.model_options import Prompts
from lmr.core.card import Tower
from lmr.models.agreement import NotCompared
from lmr.models.facts import describe_facts
from lmr.models.towers.image import VisionConfig

_WIDTH = 110  # columns, or what a narrower terminal has
_NARROW = 60

_OUTCOMES = {CheckOutcome.PASSED: "ok", CheckOutcome.FAILED: "FAILED", CheckOutcome.SKIPPED: "-"}

TITLES = {
    CheckKind.IMAGE_SIDE: "image features",
    CheckKind.PREPROCESSING: "preprocessing",
    CheckKind.TEXT_SIDE: "text features",
    CheckKind.GRADIENT_STEP: "gradient step",
    CheckKind.IMAGES_FINITE: "image features are finite",
    CheckKind.IMAGES_UNIT: "image features are unit vectors",
    CheckKind.IMAGES_DIFFER: "different images have different features",
    CheckKind.BATCH_SIZE: "batch size changes nothing",
    CheckKind.DETERMINISTIC: "deterministic",
    CheckKind.FILES_AND_ARRAYS: "files and arrays are preprocessed alike",
    CheckKind.TEXTS_FINITE: "text features are finite",
    CheckKind.TEXTS_UNIT: "text features are unit vectors",
    CheckKind.TEXTS_DIFFER: "different texts have different features",
    CheckKind.PADDING: "padding changes nothing",
    CheckKind.STEP_ADAPTS: "a gradient step adapts",
    CheckKind.STEP_LEAVES_MODEL: "the step leaves the model unchanged",
    CheckKind.AGREEMENT: "agreement with transformers",
}

_MEASURED = {  # with the numbers of the check
    CheckKind.IMAGES_FINITE: "{finite} of {count} images",
    CheckKind.IMAGES_UNIT: "lengths at most {gap:.1e} from 1",
    CheckKind.IMAGES_DIFFER: "largest cosine {cosine:.4f}",
    CheckKind.BATCH_SIZE: "{gap:.1e} apart, alone and in a batch of {count} (limit {tolerance:g})",
    CheckKind.FILES_AND_ARRAYS: "{gap:.1e} apart",
    CheckKind.TEXTS_FINITE: "{finite} of {count} texts",
    CheckKind.TEXTS_UNIT: "lengths at most {gap:.1e} from 1",
    CheckKind.TEXTS_DIFFER: "largest cosine {cosine:.4f}",
    CheckKind.PADDING: "{gap:.1e} apart, alone and with a longer text (limit {tolerance:g})",
    CheckKind.STEP_ADAPTS: "{share:.0%} of the adapted parameters have a gradient, logits move by up to {change:.1e}",
    CheckKind.AGREEMENT: "image {image:.1e}, text {text:.1e} apart (limit {tolerance:g}), {reader}",
}


def format_description(model: ModelDescription) -> str:
    """The facts about a model, one title and its text per line."""
    facts = list_facts(model)
    wide = max(map(len, facts))
    width = max(_NARROW, min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns))
    lines = ["MODEL"]
    for title, text in facts.items():
        begin = f"  {title:<{wide}}  "
        lines.append(textwrap.fill(text, width, initial_indent=begin, subsequent_indent=" " * len(begin)))
    return "\n".join(lines)


def list_facts(model: ModelDescription) -> dict[str, str]:
    """Titles and texts of all that is known about a model, in the order of the screen."""
    own = describe_facts(model.facts)
    if model.facts.activation_assumed:
        name = model.facts.architecture
        own["activation"] += (
            f", as the name {name} says; weights tuned from OpenAI's need --architecture {name}-quickgelu"
        )
    adapted = "none, it has no layer norms" if model.adapted is None else f"{model.adapted:,} parameters of layer norms"
    counts = (f"{which.value} {tower.parameters:,}" for which, tower in model.towers.items())
    digests = (f"{which.value} {tower.digest[:12]}" for which, tower in model.towers.items())
    place = f"{str(model.dtype).removeprefix('torch.')} on {model.device}"
    return {
        "name": model.name,
        **own,
        **_list_towers(model.towers),
        "input": f"{' x '.join(map(str, model.input_shape))}, {place}",
        "parameters": ", ".join(counts),
        "adapted": adapted,
        "logit scale": f"{model.logit_scale:.4g}" + (f", bias {model.logit_bias:.4g}" if model.logit_bias else ""),
        "weights": ", ".join(digests) + " (SHA-256, first 12 digits)",
    }


def _list_towers(towers: Mapping[Tower, TowerDescription]) -> dict[str, str]:
    """Depth and width of the towers whose sizes are known."""
    lines = {}
    for which, tower in towers.items():
        if tower.config is None:
            continue
        config = tower.config
        sizes = f"{config.depth} blocks, {config.width} wide, {config.heads} heads, {config.features} features"
        if isinstance(config, VisionConfig):
            side = config.resolution // config.patch
            cut = f", by convolutions to {side} x {side} tokens" if tower.stem else f" in patches of {config.patch}"
            sizes = f"{config.resolution} pixels{cut}, {sizes}"
        else:
            sizes = f"at most {config.context} tokens, {sizes}"
        lines[f"{which.value} tower"] = sizes
    return lines


def format_checks(checks: Sequence[Check]) -> str:
    """One line per check: how it ended, what was checked, what was measured."""
    lines = (f"  {_OUTCOMES[check.outcome]:<7} {TITLES[check.kind]}: {_describe_check(check)}" for check in checks)
    return "\n".join(["SELF-CHECK", *lines])


def _describe_check(check: Check) -> str:
    measured = check.measured
    if check.error is not None:
        return f"transformers cannot run these weights: {check.error}" if _is_agreement(check) else check.error
    if check.reason is not None:
        return f"{'not compared' if _is_agreement(check) else 'not checked'}, {_describe_reason(check.reason)}"
    if check.kind is CheckKind.DETERMINISTIC:
        return f"{measured['gap']:.1e} apart, run twice" if measured["gap"] else "the same bits twice"
    if check.kind is CheckKind.STEP_LEAVES_MODEL:
        changed = "" if measured["same"] else ", and the model's own weights have changed"
        return f"answers {measured['gap']:.1e} apart{changed}"
    return _MEASURED[check.kind].format(**measured)


def _is_agreement(check: Check) -> bool:
    return check.kind is CheckKind.AGREEMENT


def _describe_reason(reason: SkipReason | NotCompared) -> str:
    if isinstance(reason, NotCompared):
        return str(reason)
    return {
        SkipReason.NO_TOKENIZER: "the model has no tokenizer, so it cannot read texts",
        SkipReason.NO_ARRAYS: "the model takes no arrays",
    }[reason]


def format_accuracy(accuracy: Accuracy) -> str:
    """The accuracy with its interval, and the published one where it is known."""
    low, high = accuracy.interval
    prompts = describe_prompts(accuracy.prompts)
    lines = [
        "ZERO-SHOT ACCURACY",
        f"  {accuracy.value:.2f} %, 95 % interval {low:.2f} to {high:.2f}  "
        f"({accuracy.right} of {accuracy.images} images, {accuracy.classes} classes, {prompts})",
    ]
    if accuracy.images_of:
        lines.append(f"  from the {accuracy.images_of}")
    if accuracy.unreadable:
        lines.append(
            f"  {accuracy.unreadable} images could not be read and are not counted; the first: {accuracy.first_error}"
        )
    if accuracy.published is not None:
        known = accuracy.published
        lines.append(f"  published: {known.accuracy:.2f} % for {known.model} on {known.dataset}")
        lines.append(f"             with {known.prompts} ({known.source})")
    elif accuracy.dataset is not None:
        lines.append(f"  published: no value is known for this model on {accuracy.dataset!r}")
    if accuracy.is_as_published is False:
        lines.append(
            "  WARNING: the published value is outside the interval. Other prompts, class names or copies\n"
            "           of the images explain a few points; a larger difference suggests a wrong model."
        )
    return "\n".join(lines)


def describe_prompts(prompts: Prompts | None) -> str:
    """The prompts of a measurement, in a few words."""
    if prompts is None:
        return "the default prompt"
    if isinstance(prompts, (str, os.PathLike)):
        return f"the prompts of {os.fspath(prompts)}"
    if isinstance(prompts, Mapping):
        return f"{sum(map(len, prompts.values()))} prompts"
    return f"{len(prompts)} prompts" if len(prompts) > 1 else f"the prompt {prompts[0]!r}"
