"""``lmr doctor``: describe a model, check it, and measure its zero-shot accuracy on labelled images."""

from __future__ import annotations

import math
import os
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from lmr.apps.doctor.checks import Check, CheckKind, choose_texts, draw_images, run_checks
from lmr.apps.model_options import choose_prompts, make_classifier, read_names
from lmr.apps.options import DEFAULT_MODEL, DoctorOptions, Prompts
from lmr.core.card import Tower
from lmr.core.classifier import ZeroShot, digest_tensors
from lmr.core.errors import LmrError
from lmr.core.norms import NormBank
from lmr.core.progress import show_progress
from lmr.data.dataset import CLEAN, Dataset
from lmr.data.labelled import open_labelled
from lmr.data.photographs import Photographs
from lmr.images.files import UnreadableImage
from lmr.models import Backbone
from lmr.models.catalog import PublishedAccuracy, find_published_accuracy
from lmr.models.facts import ModelFormat
from lmr.models.towers.image import VisionTower
from lmr.models.towers.text import TextTower

_WIDTH = 110  # columns, or those of a narrower terminal
_NARROW = 60


@dataclass(frozen=True)
class DoctorReport:
    """A description of the model, its checks and, with labelled images, its accuracy."""

    model: Mapping[str, str]
    checks: tuple[Check, ...]
    accuracy: Accuracy | None = None

    @property
    def failed(self) -> list[CheckKind]:
        """The checks that failed."""
        return [check.kind for check in self.checks if check.passed is False]

    @property
    def ok(self) -> bool:
        """True if no check failed; an accuracy that differs from the published one is a warning, not a failure."""
        return not self.failed

    @property
    def complaint(self) -> str | None:
        """An error message that names the checks that failed; None if all passed."""
        titles = "; ".join(kind.value for kind in self.failed)
        return f"{len(self.failed)} of the checks failed: {titles}." if titles else None

    def __str__(self) -> str:
        parts = [format_facts(self.model), "\n".join(["SELF-CHECK", *map(str, self.checks)])]
        return "\n\n".join(parts if self.accuracy is None else [*parts, str(self.accuracy)])


def examine(model: str | Backbone = DEFAULT_MODEL, options: DoctorOptions | None = None) -> DoctorReport:
    """Load a model, describe it, check it and, given labelled images, measure its zero-shot accuracy.

    The accuracy of the default model is measured without labelled images too, on the photographs that come with the
    package. Raises LmrError for a model or images that cannot be read; a failed check is in the report.
    """
    options = options or DoctorOptions()
    images, batch_size, dataset = options.images, options.batch_size, options.dataset
    for name, number in (("batch size", batch_size), ("number of images", 1 if images is None else images)):
        if not isinstance(number, int) or number < 1:
            raise LmrError(f"Expected a {name} of at least 1, got {number!r}.")
    if dataset is not None and options.data is None:
        raise LmrError(f"To compare with the published accuracy on {dataset!r}, give its images with --data.")
    prompts = choose_prompts(options.templates, options.prompts)
    names = None if options.labels is None else read_names(options.labels)
    labelled: Dataset | None = None
    if options.data is not None:
        labelled = open_labelled("data", Path(options.data), names)
    backbone = model if isinstance(model, Backbone) else options.load(model)
    texts = choose_texts(backbone, list(names.values()) if isinstance(names, Mapping) else names)
    checks = run_checks(backbone, texts, draw_images())
    accuracy, images_of = None, ""
    if labelled is None and backbone.model_facts.format is ModelFormat.PHOTO:
        labelled = Photographs()  # images of its own kind come with the package
        images_of = labelled.protocol["images"]
    if labelled is not None:
        classifier = make_classifier(backbone, labelled.classes, prompts)
        accuracy = measure_accuracy(classifier, backbone.preprocess, labelled, batch_size, images)
        if accuracy.images == 0:
            raise LmrError(f"None of the {accuracy.unreadable} images can be read; the first: {accuracy.first_error}")
        published = None if dataset is None else find_published_accuracy(backbone.name, dataset)
        accuracy = replace(accuracy, prompts=prompts, dataset=dataset, published=published, images_of=images_of)
    return DoctorReport(describe_model(backbone, texts), tuple(checks), accuracy)


def describe_model(backbone: Backbone, texts: Sequence[str]) -> dict[str, str]:
    """Return titles and texts of all that is known about a model; ``texts`` are some that it can read, or none."""
    side = backbone.text_side(list(texts)) if texts else None
    device, dtype = backbone.placement
    towers = {Tower.IMAGE: backbone.encoder} | ({} if side is None else {Tower.TEXT: side.tower})
    try:
        adapted = f"{NormBank(backbone.encoder).size:,} parameters of layer norms"
    except LmrError:
        adapted = "none, it has no layer norms"
    facts = dict(backbone.facts)
    if backbone.model_facts.activation_assumed:
        name = backbone.model_facts.architecture
        facts["activation"] += (
            f", as the name {name} says; weights tuned from OpenAI's need --architecture {name}-quickgelu"
        )
    sizes = {f"{which.value} tower": _describe_sizes(tower) for which, tower in towers.items()}
    counts = (f"{which.value} {sum(p.numel() for p in tower.parameters()):,}" for which, tower in towers.items())
    digests = (f"{which.value} {digest_tensors(tower.state_dict())[:12]}" for which, tower in towers.items())
    place, bias = f"{str(dtype).removeprefix('torch.')} on {device}", backbone.logit_bias
    return {
        "name": backbone.name,
        **facts,
        **{title: text for title, text in sizes.items() if text},
        "input": f"{' x '.join(map(str, backbone.input_shape))}, {place}",
        "parameters": ", ".join(counts),
        "adapted": adapted,
        "logit scale": f"{backbone.logit_scale:.4g}" + (f", bias {bias:.4g}" if bias else ""),
        "weights": ", ".join(digests) + " (SHA-256, first 12 digits)",
    }


def _describe_sizes(tower: nn.Module) -> str:
    """Return depth and width of a tower of ours; empty for others."""
    if not isinstance(tower, VisionTower | TextTower):
        return ""
    config = tower.config
    sizes = f"{config.depth} blocks, {config.width} wide, {config.heads} heads, {config.features} features"
    if isinstance(tower, TextTower):
        return f"at most {tower.config.context} tokens, {sizes}"
    resolution, patch = tower.config.resolution, tower.config.patch
    side = resolution // patch
    cut = f" in patches of {patch}" if tower.is_clip else f", by convolutions to {side} x {side} tokens"
    return f"{resolution} pixels{cut}, {sizes}"


def format_facts(facts: Mapping[str, str]) -> str:
    """Return the facts about a model, one title and its text per line."""
    wide = max(map(len, facts))
    width = max(_NARROW, min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns))
    lines = ["MODEL"]
    for title, text in facts.items():
        begin = f"  {title:<{wide}}  "
        lines.append(textwrap.fill(text, width, initial_indent=begin, subsequent_indent=" " * len(begin)))
    return "\n".join(lines)


@dataclass(frozen=True)
class Accuracy:
    """Right answers among the readable images of a set."""

    right: int
    images: int
    unreadable: int
    classes: int
    prompts: Prompts | None = None  # None for the model's default
    first_error: str = ""
    dataset: str | None = None
    published: PublishedAccuracy | None = None
    images_of: str = ""  # the source of the images, where they are not the user's own

    @property
    def value(self) -> float:
        """The accuracy in %."""
        return 100 * self.right / self.images if self.images else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The range of the accuracy on all such images, in %, with 95 % confidence (Wilson's score interval)."""
        if not self.images:
            return 0.0, 100.0
        z, n, p = 1.959964, self.images, self.right / self.images
        centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
        return 100 * max(low, 0.0), 100 * min(high, 1.0)

    @property
    def is_as_published(self) -> bool | None:
        """True if the published value is in the interval; None where none is known."""
        if self.published is None:
            return None
        low, high = self.interval
        return low <= self.published.accuracy <= high

    def __str__(self) -> str:
        low, high = self.interval
        counted = f"{self.right} of {self.images} images, {self.classes} classes, {_describe_prompts(self.prompts)}"
        lines = ["ZERO-SHOT ACCURACY", f"  {self.value:.2f} %, 95 % interval {low:.2f} to {high:.2f}  ({counted})"]
        if self.images_of:
            lines.append(f"  from the {self.images_of}")
        if self.unreadable:
            lines.append(
                f"  {self.unreadable} images could not be read and are not counted; the first: {self.first_error}"
            )
        if self.published is not None:
            known = self.published
            lines.append(f"  published: {known.accuracy:.2f} % for {known.model} on {known.dataset}")
            lines.append(f"             with {known.prompts} ({known.source})")
        elif self.dataset is not None:
            lines.append(f"  published: no value is known for this model on {self.dataset!r}")
        if self.is_as_published is False:
            lines.append(
                "  WARNING: the published value is outside the interval. Other prompts, class names or copies\n"
                "           of the images explain a few points; a larger difference suggests a wrong model."
            )
        return "\n".join(lines)


def _describe_prompts(prompts: Prompts | None) -> str:
    if prompts is None:
        return "the default prompt"
    if isinstance(prompts, (str, os.PathLike)):
        return f"the prompts of {os.fspath(prompts)}"
    if isinstance(prompts, Mapping):
        return f"{sum(map(len, prompts.values()))} prompts"
    return f"{len(prompts)} prompts" if len(prompts) > 1 else f"the prompt {prompts[0]!r}"


def measure_accuracy(
    classifier: ZeroShot,
    preprocess: Callable[[Image.Image], Tensor],
    dataset: Dataset,
    batch_size: int,
    images: int | None = None,
) -> Accuracy:
    """Label the clean images of a dataset without adaptation, or ``images`` of them, the same in every run.

    Images that cannot be read are counted and left out. One batch is in memory at a time.
    """
    labels = dataset.labels(CLEAN)
    places = choose_places(len(labels), len(labels) if images is None else images)
    right, counted, unreadable, first_error = 0, 0, 0, ""
    with show_progress("measuring the accuracy", len(places), delay=1.0) as bar:
        for first in range(0, len(places), batch_size):
            part = places[first : first + batch_size]
            inputs, wanted = list[Tensor](), list[int]()
            for place in part:
                try:
                    (pixels,) = dataset.read(CLEAN, 0, [place])
                    inputs.append(preprocess(Image.fromarray(pixels)))
                    wanted.append(int(labels[place]))
                except (UnreadableImage, ValueError, OSError, MemoryError) as error:
                    unreadable += 1
                    first_error = first_error or str(error)
            if inputs:
                with torch.no_grad():
                    answers = classifier(torch.stack(inputs).to(classifier.device, classifier.dtype)).argmax(1)
                right += int((answers.cpu() == torch.tensor(wanted)).sum())
                counted += len(inputs)
            bar.advance(len(part))
    return Accuracy(right, counted, unreadable, classifier.classes, first_error=first_error)


def choose_places(total: int, count: int) -> list[int]:
    """Return ``count`` of the indices below ``total``, drawn at random, always the same, and sorted; all if fewer."""
    chosen: list[int] = np.sort(np.random.default_rng(0).permutation(total)[:count]).tolist()
    return chosen
