"""``lmr check``: is the adapted model more accurate than the frozen one on a folder of labelled images?

The images are answered twice, class by class as the files are listed, and shuffled. The watch compares every image with
the frozen model and changes nothing, so that both models have answered the same images.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmr.apps.model_options import read_names
from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import ImageAnswer
from lmr.apps.predict.run import Labeller
from lmr.bench.table import format_table
from lmr.core.errors import LmrError
from lmr.data.labelled import Labelled, list_labelled
from lmr.data.streams import shuffle_places
from lmr.report.statistics import Difference, bootstrap_difference

_WATCH = "watch(mode='report', every=1)"


@dataclass(frozen=True)
class OrderResult:
    """The answers to the images in one order: accuracies, and what the watch reported."""

    order: str
    frozen: float
    adapted: float
    difference: Difference  # adapted - frozen
    differing: float  # share of the answers with another label than the frozen model's
    unreadable: int
    watch: str


@dataclass(frozen=True)
class CheckReport:
    """Both models on a folder, in the order of the files and shuffled."""

    title: str
    orders: tuple[OrderResult, ...]
    rests: bool = False  # the method answers as the frozen model until the images change

    @property
    def recommendation(self) -> str:
        """One sentence: adapt, do not adapt, or what is not known. Only intervals without 0 count."""
        found = [one.difference for one in self.orders]
        gains = [one.order for one in self.orders if one.difference.low > 0]
        losses = [one.order for one in self.orders if one.difference.high < 0]
        if gains and losses:
            return (
                f"It depends on the order: adapting gains accuracy when the images come as in {gains[0]!r} and loses "
                f"when they come as in {losses[0]!r}, so keep the frozen model unless yours come like the former."
            )
        if losses:
            return "Do not adapt these images with this method: the frozen model is more accurate."
        if len(gains) == len(found):
            return "Adapt: the adapted model is more accurate in both orders."
        if gains:
            return f"Adapt: the adapted model is more accurate in the order {gains[0]!r}, without a loss in the other."
        if not any(one.differing for one in self.orders):
            hint = "; if the images are bad from the first on, check --prior uniform" if self.rests else ""
            return f"It makes no difference: every answer is the frozen model's{hint}."
        low, high = min(d.low for d in found), max(d.high for d in found)
        return (
            f"Nothing is shown on {found[0].images} images, where adapting changes accuracy by {100 * low:+.1f} to "
            f"{100 * high:+.1f} points: keep the frozen model, or check with more images."
        )

    def __str__(self) -> str:
        rows = [["order", "frozen", "adapted", "difference, 95 % interval", "differing answers"]]
        for one in self.orders:
            change = one.difference
            interval = f"{100 * change.mean:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
            rows.append([one.order, f"{one.frozen:.1%}", f"{one.adapted:.1%}", interval, f"{one.differing:.1%}"])
        said = [f"{one.order}: {one.watch}" for one in self.orders]
        unreadable = self.orders[0].unreadable
        skipped = [f"{unreadable} images could not be read and are not counted."] if unreadable else []
        return "\n".join([self.title, *skipped, "", format_table(rows), "", *said, "", self.recommendation])


def check_folder(folder: AnyPath, options: PredictOptions) -> CheckReport:
    """Compare the frozen and the adapted model on a folder with one sub-folder per class.

    Of the options, those about the model, the class names, the method and the batches count. Raises LmrError.
    """
    names = read_names(options.labels) if options.labels else None
    found = list_labelled(folder, names)
    classes = [name.replace("_", " ") for name in found.names]
    labeller = Labeller(replace(options, labels=classes, watch=_WATCH).resolve())
    places = {"files": range(len(found.paths)), "shuffled": shuffle_places(len(found.paths)).tolist()}
    orders = tuple(_answer(labeller, found, order, own) for order, own in places.items())
    title = (
        f"{os.fspath(folder)}: {orders[0].difference.images} images of {len(set(found.labels))} classes, among "
        f"{len(classes)} names; model {labeller.backbone.name}, method {labeller.options.method}"
    )
    return CheckReport(title, orders, rests=labeller.prepare(None, None).tally.rests)


def _answer(labeller: Labeller, found: Labelled, order: str, places: Sequence[int]) -> OrderResult:
    """Answer the images in an order, with a new adaptation."""
    run, answers = labeller.prepare(None, None), list[ImageAnswer]()
    run.label([found.paths[place] for place in places], take=answers.extend)
    truth = [labeller.options.names[found.labels[place]] for place in places]
    rows = [(answer.label, answer.frozen, right) for answer, right in zip(answers, truth, strict=True)
            if answer.error is None]  # fmt: skip
    if not rows:
        raise LmrError(f"None of the {len(answers)} images can be answered; the first: {answers[0].error}")
    adapted, frozen, right = (np.array(column) for column in zip(*rows, strict=True))
    ours, theirs = adapted == right, frozen == right
    return OrderResult(
        order,
        float(theirs.mean()),
        float(ours.mean()),
        bootstrap_difference(ours, theirs),
        float((adapted != frozen).mean()),
        len(answers) - len(rows),
        run.describe_watch() or "",
    )
