"""What a model is, whether it works, and how accurate it is: the screen of ``lmr doctor``."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from lmr.apps.doctor.accuracy import Accuracy, measure_accuracy
from lmr.apps.doctor.checks import NO_TOKENIZER, TOLERANCES, Check, choose_texts, draw_pictures, find_place, run_checks
from lmr.apps.model_options import ModelOptions, Prompts, choose_prompts, make_classifier, read_names
from lmr.core.classifier import digest_tensors
from lmr.core.errors import LmrError
from lmr.core.norms import NormBank
from lmr.data.sets.labelled import AnyPath, Labelled, list_labelled
from lmr.models import Backbone
from lmr.models.clip.image_tower import VisionConfig, VisionTower
from lmr.models.clip.text_tower import TextTower
from lmr.models.known_models import OPENAI_MODELS
from lmr.models.verify.agreement import compare_with_transformers
from lmr.models.verify.published_accuracies import find_published_accuracy

_WIDTH = 110
_FIRST = ("format", "files", "architecture", "sizes from", "activation", "preprocessing", "tokenizer", "context")
_HIDDEN = ("words", "config", "mean", "std", "logit_scale", "version")  # of the embedded model's file; shown otherwise


@dataclass(frozen=True)
class Report:
    """What was loaded, what was checked and, with labelled pictures, how accurate the model is."""

    facts: dict[str, str]
    checks: tuple[Check, ...]
    accuracy: Accuracy | None = None

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [check.name for check in self.checks if check.ok is False]

    @property
    def ok(self) -> bool:
        """Whether no check failed; an accuracy that differs from the published one is a warning, not a failure."""
        return not self.failed

    def __str__(self) -> str:
        wide = max(map(len, self.facts))
        lines = ["MODEL"]
        for key, value in self.facts.items():
            begin = f"  {key:<{wide}}  "
            lines.append(textwrap.fill(value, _WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin)))
        lines += ["", "SELF-CHECK", *map(str, self.checks)]
        if self.accuracy is not None:
            lines += ["", "ZERO-SHOT ACCURACY", str(self.accuracy)]
        return "\n".join(lines)


def examine(
    model: str | Backbone,
    *,
    data: AnyPath | None = None,
    dataset: str | None = None,
    labels: AnyPath | Sequence[str] | None = None,
    templates: Sequence[str] | None = None,
    prompts: AnyPath | None = None,
    images: int | None = None,
    batch_size: int = 64,
    architecture: str | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    memory: Literal["fast", "lean"] = "fast",
    compile: bool = False,
) -> Report:
    """Load a model, describe it, check it and, given labelled ``data``, measure its zero-shot accuracy.

    ``data`` is a folder with one sub-folder per class, or a .csv file with the columns path and label; ``labels`` the
    class names (see :mod:`lmr.data.sets.labelled`); ``dataset`` what the images are, to compare with the
    published accuracy; ``images`` how many of them to use, drawn at random. ``templates`` or the JSON file ``prompts``
    are put around the class names; the last five arguments are those of ``lmr.load``. Raises LmrError for what cannot
    be loaded or read; a failed check is in the report.
    """
    for word, number in (("batch size", batch_size), ("number of images", 1 if images is None else images)):
        if not isinstance(number, int) or number < 1:
            raise LmrError(f"Expected a {word} of at least 1, got {number!r}.")
    if dataset is not None and data is None:
        raise LmrError(f"To compare with the published accuracy on {dataset!r}, give its pictures with --data.")
    options = ModelOptions(architecture, device, dtype, memory, compile)
    wording = choose_prompts(templates, prompts)
    names = None if labels is None else read_names(labels)
    pictures = None if data is None else _list_pictures(data, names, images)
    backbone = model if isinstance(model, Backbone) else options.load(model)
    texts = choose_texts(backbone, list(names.values()) if isinstance(names, Mapping) else names)
    checks = [*run_checks(backbone, texts, draw_pictures()), _check_agreement(backbone, texts)]
    accuracy = None if pictures is None else _measure(backbone, pictures, wording, batch_size, dataset)
    return Report(describe(backbone, texts), tuple(checks), accuracy)


def describe(backbone: Backbone, texts: Sequence[str]) -> dict[str, str]:
    """What was loaded, in plain texts: what the backbone says of itself, and what can be counted."""
    side = backbone.text_side(list(texts)) if texts else None
    device, dtype = find_place(backbone.encoder)
    towers = {"image": backbone.encoder} | ({} if side is None else {"text": side.tower})
    counts = {name: sum(p.numel() for p in tower.parameters()) for name, tower in towers.items()}
    digests = {name: digest_tensors(tower.state_dict())[:12] for name, tower in towers.items()}
    facts = getattr(backbone, "facts", {})
    own = {key.replace("_", " "): facts[key] for key in sorted(facts, key=_find_place_on_screen) if key not in _HIDDEN}
    if _follows_name_alone(facts):
        own["activation"] += (
            f", as the name {facts['architecture']} says; weights tuned from OpenAI's need "
            f"--architecture {facts['architecture']}-quickgelu"
        )
    bias = getattr(backbone, "logit_bias", 0.0)
    try:
        adapted = f"{NormBank(backbone.encoder).size:,}, the numbers of its layer norms"
    except LmrError:
        adapted = "none, it has no layer norms"
    return {
        "name": backbone.name,
        **own,
        **_describe_towers(towers.values()),
        "input": " x ".join(map(str, backbone.input_shape)) + f", {str(dtype).removeprefix('torch.')} on {device}",
        "parameters": ", ".join(f"{name} {count:,}" for name, count in counts.items()),
        "adapted": adapted,
        "logit scale": f"{backbone.logit_scale:.4g}" + (f", bias {bias:.4g}" if bias else ""),
        "weights": ", ".join(f"{name} {digest}" for name, digest in digests.items()) + " (SHA-256, first 12 digits)",
    }


def _follows_name_alone(facts: Mapping[str, str]) -> bool:
    """Whether nothing but a named architecture made the activation GELU, in sizes that OpenAI's QuickGELU has too."""
    name = facts.get("architecture")
    return name in OPENAI_MODELS and facts.get("sizes from") == f"the named architecture {name}"


def _find_place_on_screen(fact: str) -> tuple[int, str]:
    """What everybody asks first comes first; a file's own remarks follow in the order of their names."""
    return (_FIRST.index(fact), "") if fact in _FIRST else (len(_FIRST), fact)


def _describe_towers(towers: Iterable[nn.Module]) -> dict[str, str]:
    """Depth and width of the towers we know."""
    lines = {}
    for tower in towers:
        if isinstance(tower, VisionTower | TextTower):
            config = tower.config
            line = f"{config.depth} blocks, {config.width} wide, {config.heads} heads, {config.features} features"
            if isinstance(config, VisionConfig):
                lines["image tower"] = f"{config.resolution} pixels in patches of {config.patch}, {line}"
            else:
                lines["text tower"] = f"at most {config.context} tokens, {line}"
    return lines


def _check_agreement(backbone: Backbone, texts: Sequence[str]) -> Check:
    """Common words, as unusual ones are cleaned differently before they are tokenised."""
    name = "agreement with transformers"
    if not texts:
        return Check(name, None, f"not compared, {NO_TOKENIZER}")
    device, dtype = find_place(backbone.encoder)
    images = torch.stack([backbone.preprocess(picture) for picture in draw_pictures(4)])
    with contextlib.suppress(LmrError):
        texts = choose_texts(backbone)
    try:
        found = compare_with_transformers(backbone, images.to(device, dtype), texts)
    except (LmrError, OSError, ValueError, RuntimeError, ImportError) as error:
        return Check(name, False, f"transformers cannot run these weights: {str(error).partition(chr(10))[0]}")
    if found.reason:
        return Check(name, None, f"not compared, {found.reason}")
    tolerance = TOLERANCES.get(dtype, 1e-4)
    fits = found.image <= tolerance and found.text <= tolerance
    measured = f"image {found.image:.1e}, text {found.text:.1e} apart ({tolerance:g}), {found.reader}"
    return Check(name, fits, measured)


def _list_pictures(data: AnyPath, names: list[str] | dict[str, str] | None, images: int | None) -> Labelled:
    try:
        pictures = list_labelled(data, names)
    except (ValueError, OSError) as error:
        raise LmrError(str(error)) from error
    return pictures if images is None else pictures.choose(images)


def _measure(
    backbone: Backbone, pictures: Labelled, prompts: Prompts | None, batch_size: int, dataset: str | None
) -> Accuracy:
    classifier = make_classifier(backbone, pictures.names, prompts)
    accuracy = measure_accuracy(classifier, backbone.preprocess, pictures, batch_size, _describe_prompts(prompts))
    if accuracy.images == 0:
        raise LmrError(f"None of the {accuracy.unreadable} pictures can be read; the first: {accuracy.first_error}")
    published = None if dataset is None else find_published_accuracy(backbone.name, dataset)
    return replace(accuracy, dataset=dataset, published=published)


def _describe_prompts(prompts: Prompts | None) -> str:
    if prompts is None:
        return "the default prompt"
    if isinstance(prompts, (str, os.PathLike)):
        return f"the prompts of {os.fspath(prompts)}"
    if isinstance(prompts, Mapping):
        return f"{sum(map(len, prompts.values()))} sentences"
    return f"{len(prompts)} prompts" if len(prompts) > 1 else f"the prompt {prompts[0]!r}"
