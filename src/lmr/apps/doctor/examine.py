"""Examine a model: describe it, check it and measure its accuracy, all that ``lmr doctor`` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lmr.apps.doctor import screen
from lmr.apps.doctor.accuracy import Accuracy, measure_accuracy, measure_dataset
from lmr.apps.doctor.description import ModelDescription, describe_model
from lmr.apps.doctor.self_check import Check, CheckKind, CheckOutcome, choose_texts, draw_images, run_checks
from lmr.apps.model_options import ModelOptions, Prompts, choose_prompts, make_classifier, read_names
from lmr.core.errors import LmrError
from lmr.data.dataset import Dataset
from lmr.data.labelled import AnyPath, Labelled, list_labelled
from lmr.data.photographs import Photographs
from lmr.models import Backbone
from lmr.models.catalog import DEFAULT_MODEL, find_published_accuracy
from lmr.models.facts import ModelFormat


@dataclass(frozen=True)
class DoctorReport:
    """What was loaded, what was checked and, with labelled images, how accurate the model is."""

    model: ModelDescription
    checks: tuple[Check, ...]
    accuracy: Accuracy | None = None

    @property
    def failed(self) -> list[CheckKind]:
        """The checks that failed."""
        return [check.kind for check in self.checks if check.outcome is CheckOutcome.FAILED]

    @property
    def ok(self) -> bool:
        """Whether no check failed; an accuracy that differs from the published one is a warning, not a failure."""
        return not self.failed

    @property
    def complaint(self) -> str | None:
        """An error message that names the checks that failed; None if all is well."""
        if self.ok:
            return None
        titles = "; ".join(screen.TITLES[kind] for kind in self.failed)
        return f"{len(self.failed)} of the checks failed: {titles}."

    def __str__(self) -> str:
        parts = [screen.format_description(self.model), screen.format_checks(self.checks)]
        parts += [] if self.accuracy is None else [screen.format_accuracy(self.accuracy)]
        return "\n\n".join(parts)


def examine(
    model: str | Backbone = DEFAULT_MODEL,
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
) -> DoctorReport:
    """Load a model, describe it, check it and, given labelled ``data``, measure its zero-shot accuracy.

    The accuracy of the default model is measured without ``data`` too, on the photographs that come with the package.

    ``data`` is a folder with one sub-folder per class, or a .csv file with the columns path and label; ``labels`` the
    class names (see ``lmr.data.labelled``); ``dataset`` what the images are, to compare with the
    published accuracy; ``images`` how many of them to use, drawn at random. ``templates`` or the JSON file ``prompts``
    are the texts around the class names; the last five arguments are those of ``lmr.load``. Raises LmrError for what
    cannot be loaded or read; a failed check is in the report.
    """
    for word, number in (("batch size", batch_size), ("number of images", 1 if images is None else images)):
        if not isinstance(number, int) or number < 1:
            raise LmrError(f"Expected a {word} of at least 1, got {number!r}.")
    if dataset is not None and data is None:
        raise LmrError(f"To compare with the published accuracy on {dataset!r}, give its images with --data.")
    options = ModelOptions(architecture, device, dtype, memory, compile)
    wording = choose_prompts(templates, prompts)
    names = None if labels is None else read_names(labels)
    labelled = None if data is None else list_labelled(data, names)
    if labelled is not None and images is not None:
        labelled = labelled.choose(images)
    backbone = model if isinstance(model, Backbone) else options.load(model)
    texts = choose_texts(backbone, list(names.values()) if isinstance(names, Mapping) else names)
    checks = run_checks(backbone, texts, draw_images())
    if labelled is not None:
        accuracy = _measure(backbone, labelled, wording, batch_size, dataset)
    elif (own := _open_own_images(backbone)) is not None:
        classifier = make_classifier(backbone, own.classes, wording)
        accuracy = measure_dataset(classifier, backbone.preprocess, own, batch_size, images)
        accuracy = replace(accuracy, prompts=wording)
    else:
        accuracy = None
    return DoctorReport(describe_model(backbone, texts), tuple(checks), accuracy)


def _open_own_images(backbone: Backbone) -> Dataset | None:
    """The images of a model's own kind that come with the package, if there are any."""
    return Photographs() if backbone.model_facts.format is ModelFormat.PHOTO else None


def _measure(
    backbone: Backbone, labelled: Labelled, prompts: Prompts | None, batch_size: int, dataset: str | None
) -> Accuracy:
    classifier = make_classifier(backbone, labelled.names, prompts)
    accuracy = measure_accuracy(classifier, backbone.preprocess, labelled, batch_size)
    if accuracy.images == 0:
        raise LmrError(f"None of the {accuracy.unreadable} images can be read; the first: {accuracy.first_error}")
    published = None if dataset is None else find_published_accuracy(backbone.name, dataset)
    return replace(accuracy, prompts=prompts, dataset=dataset, published=published)
