"""``lmr check``: which setting of ``lmr predict`` is the most accurate on a folder of labelled images?

All settings answer the images side by side, in the order of the file names or times, so that each image is opened once
in a pass, and the frozen model encodes it once. Only the default and the most accurate setting get a second pass. Of
images in sub-folders twenty teach and the others judge. Those in a file of labels all judge, each by what the others
teach.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmr.apps.model_options import add_prior, create_suited, read_names, takes_shares
from lmr.apps.options import DEFAULT_MODEL, AnyPath
from lmr.apps.predict.options import CheckOptions, PredictOptions
from lmr.apps.predict.results import ImageAnswer
from lmr.apps.predict.run import BATCHES_AHEAD, WORKERS, Labeller
from lmr.apps.predict.verdict import write_command
from lmr.apps.truth import read_truth
from lmr.bench.table import format_table
from lmr.core.errors import LmrError
from lmr.core.functional.offset import Estimate, answer_held_out, learn_offset
from lmr.core.method import Method
from lmr.core.progress import show_progress
from lmr.core.registry import expand_methods, find_addressed
from lmr.core.remembered import Remembered
from lmr.data.labelled import Labelled, list_labelled
from lmr.data.streams import shuffle_places
from lmr.images.ahead import ReadAhead
from lmr.images.files import list_images, make_sort_key
from lmr.images.sources import iterate_images
from lmr.report.statistics import Difference, measure_difference

NONE = -1  # the label of an image without one
TAUGHT = 20  # labels that teach; at most half of them
PSEUDO = 8.0  # images, spread evenly over the classes, that are added to counted labels
MOST_MORE = 1000  # labels that are worth asking for
ELSE = "openai/clip-vit-base-patch16"  # the model to try where the embedded one fails
FROZEN = "frozen model"
LABELS = ("labels",)  # in place of the options of a setting
ONE_PASS = ("--passes", "1")
DEFAULT, OPTION, TEACHING, WORSE = range(4)  # what a setting needs


@dataclass(frozen=True)
class SettingResult:
    """A setting of ``lmr predict`` in words and as the command, and its answers to the images that judge."""

    name: str
    command: str
    accuracy: float
    difference: Difference  # from the frozen model
    differing: float  # share of the answers with another label than the frozen model's
    effort: int = OPTION  # DEFAULT without an option, TEACHING with labels


@dataclass(frozen=True)
class CheckReport:
    """All settings on one folder; the frozen model is the first."""

    title: str
    settings: tuple[SettingResult, ...]
    majority: tuple[str, float]  # the most frequent class, and its share
    another: str = ""  # the command that checks another model

    @property
    def better(self) -> list[SettingResult]:
        """The settings that are shown to be better than the frozen model, the one to recommend first.

        That is the most accurate one, or one that needs less and whose gain is within the interval of that one's.
        """
        found = sorted((one for one in self.settings if one.difference.low > 0), key=lambda one: -one.accuracy)
        close = [one for one in found if one.difference.mean >= found[0].difference.low]
        return sorted(found, key=lambda one: one.effort if one in close else WORSE)

    @property
    def recommendation(self) -> str:
        """One or two sentences, and below each the command to copy."""
        name, share = self.majority
        images, always = self.settings[0].difference.images, f"to answer {name!r} always ({share:.1%})"
        highest = max(one.accuracy for one in self.settings)
        low, high = Estimate(round(highest * images), images).interval
        said = []
        if high < share:
            said.append(
                f"The model does not work on these images: no setting is better than {always}. Check another model or "
                "other class names."
            )
            said += [f"  {self.another}"] if self.another else []
        if self.better:
            best, top = self.better[0], max(self.better, key=lambda one: one.accuracy)
            gain = f"{best.name}, {100 * best.difference.mean:+.1f} points on {images} images"
            beside = f" ({top.name}: {100 * top.difference.mean:+.1f}, not clearly more)" if top is not best else ""
            said.append(f"Best: {gain}{beside}. It was chosen on these images, so expect a little less.")
            said.append(f"  {best.command}")
        elif high >= share:
            own = min(self.settings, key=lambda one: one.effort)
            own = self.settings[0] if own.difference.high < 0 else own
            said.append(f"No setting is shown to be better than the frozen model on {images} images.\n  {own.command}")
        if low <= share <= high:
            more = _count_more(highest, images, share)
            said.append(
                f"{images} labels are too few to tell whether a setting is better than {always}; label "
                f"{'many' if more is None else f'about {more}'} more."
            )
        return "\n".join(said)

    def __str__(self) -> str:
        rows = [["setting", "accuracy", "beside the frozen model, 95 % interval", "changed answers"]]
        for one in self.settings:
            change = one.difference
            interval = f"{100 * change.mean:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
            more = ["", ""] if one.name == FROZEN else [interval, f"{one.differing:.1%}"]
            rows.append([one.name, f"{one.accuracy:.1%}", *more])
        return "\n".join([self.title, "", format_table(rows), "", self.recommendation])


def _count_more(accuracy: float, labels: int, share: float) -> int | None:
    """Return how many more labels tell such an accuracy from a share; None if more than MOST_MORE."""
    for more in range(10, MOST_MORE + 1, 10):
        low, high = Estimate(round(accuracy * (labels + more)), labels + more).interval
        if not low <= share <= high:
            return more
    return None


@dataclass
class _Run:
    """A method that answers all images once or twice, and the labels of each pass."""

    method: Method
    passes: int
    adapted: int = 0
    labels: list[list[str | None]] = field(default_factory=list)
    logits: list[Tensor] | None = None  # of the first pass, where they are needed
    biased: bool = False  # after the first pass

    def step(self, images: Tensor, number: int) -> None:
        """Answer a batch of a pass."""
        if len(self.labels) < number:
            self.labels.append([])
        answer = self.method.step(images)
        self.labels[-1] += answer.names
        self.adapted += answer.info.get("adapted", len(images))
        if self.logits is not None and number == 1:
            self.logits.append(answer.logits.detach().float().cpu())

    def end(self) -> None:
        """Finish a pass."""
        offset = self.method.logit_offset()
        if len(self.labels) == 1:
            self.biased = offset is not None and bool(offset.any())
            self.method.rewind()

    @property
    def goes_on(self) -> bool:
        """Whether a second pass can change anything."""
        return self.passes > 1 and self.adapted > 0


def check_folder(folder: AnyPath, options: CheckOptions) -> CheckReport:
    """Compare the settings of ``lmr predict`` on a folder with one sub-folder per class.

    With ``options.truth`` it needs no sub-folders: all images are answered, and those with a label are judged. Of the
    other options, those about the model, the class names, the method and the batches count. Raises LmrError.
    """
    names = read_names(options.labels) if options.labels else None
    found = list_labelled(folder, names) if options.truth is None else _read_truth(folder, options)
    found = _sort(found, options.order)
    classes = [name.replace("_", " ") for name in found.names]
    given = replace(options, labels=",".join(classes) if options.labels is None else options.labels, truth=None)
    labeller = Labeller(replace(options, labels=classes, truth=None, watch="off").resolve(), found.paths)
    held_out = options.truth is not None  # all labels teach, and each is judged by what the others teach
    taught = set[int]() if held_out else _choose_taught(found)
    runs = _prepare(labeller, _count_shares(found, taught, classes) if not options.prior else None)
    truth = {place: classes[k] for place, k in enumerate(found.labels) if k != NONE and place not in taught}
    readable = _answer(labeller, found.paths, runs, truth)
    places = [place for place in readable if found.labels[place] != NONE]
    judged = np.array([place not in taught for place in places])
    if not judged.any():
        raise LmrError(f"None of the {len(found.paths)} images with a label can be answered; check the files.")
    row = {place: k for k, place in enumerate(readable)}
    picked = [row[place] for place in places]
    shown = np.array([classes[found.labels[place]] for place in places])
    answers = {(name, more): np.array(labels, dtype=object)[picked] for name, more, labels in _list_answers(runs)}
    teach = torch.tensor([row[k] for k in (places if held_out else taught) if k in row], dtype=torch.long)
    if len(teach) > held_out:
        known = torch.tensor([found.labels[readable[k]] for k in teach.tolist()])
        labels = [classes[k] for k in _answer_labelled(runs[()], teach, known, held_out)]
        answers[f"{len(teach)} labels", LABELS] = np.array(labels, dtype=object)[picked]
    frozen = next(iter(answers.values()))[judged]
    efforts = {(): DEFAULT, LABELS: TEACHING}
    settings = tuple(
        _judge(
            name, _write(folder, given, options, more), efforts.get(more, OPTION), labels[judged], frozen, shown[judged]
        )
        for (name, more), labels in answers.items()
    )
    kinds, counts = np.unique(shown[judged], return_counts=True)
    unreadable = len(found.paths) - len(readable)
    title = (
        f"{os.fspath(folder)}: {judged.sum()} images judged, {len(kinds)} of {len(classes)} classes, in the order of "
        f"file {options.order}; {f'{len(taught)} other' if taught else 'the other'} labels teach; model "
        f"{labeller.backbone.name}"
    )
    title += f"; {unreadable} images could not be read" if unreadable else ""
    title += f"; {labeller.said}" if labeller.said else ""
    another = write_command("check", [folder], replace(given, model=ELSE), *_truth_words(options))
    return CheckReport(
        title,
        settings,
        (str(kinds[counts.argmax()]), float(counts.max() / counts.sum())),
        another if options.model == DEFAULT_MODEL else "",
    )


def _read_truth(folder: AnyPath, options: PredictOptions) -> Labelled:
    """Return all images of a folder with the labels of a file; those without one have NONE."""
    assert options.truth is not None
    paths, names = list_images([folder]), options.resolve().names
    truth = read_truth(options.truth, paths, names, [folder])
    labels = tuple(truth.known.get(place, NONE) for place in range(len(paths)))
    return Labelled(tuple(paths), labels, tuple(names))


def _sort(found: Labelled, order: str) -> Labelled:
    """Return the images in the order of the names of their files, or of their times, whatever their folders."""

    def key(place: int) -> tuple[object, ...]:
        path = found.paths[place]
        return (path.stat().st_mtime if order == "times" else 0, make_sort_key(Path(path.name)), path)

    places = sorted(range(len(found.paths)), key=key)
    return replace(found, paths=tuple(found.paths[k] for k in places), labels=tuple(found.labels[k] for k in places))


def _choose_taught(found: Labelled) -> set[int]:
    """Return the places of random images whose labels teach."""
    known = [place for place, label in enumerate(found.labels) if label != NONE]
    return {known[place] for place in shuffle_places(len(known))[: min(TAUGHT, len(known) // 2)]}


def _count_shares(found: Labelled, taught: set[int], classes: Sequence[str]) -> dict[str, float]:
    """Return the shares of the classes that the labels which teach have; the others share the rest evenly."""
    counts = {name: sum(found.labels[place] == k for place in taught) for k, name in enumerate(classes)}
    total = len(taught) + PSEUDO
    return {name: round((n + PSEUDO / len(classes)) / total, 3) for name, n in counts.items() if n}


def _prepare(labeller: Labeller, shares: dict[str, float] | None) -> dict[tuple[str, ...], _Run]:
    """Return the methods by the options that choose them; ``shares`` is None where ``--prior`` is given."""
    options, (plain, *_, published) = labeller.options, expand_methods("paper")
    classifier = Remembered(labeller.classifier, every=True)
    specs: dict[tuple[str, ...], str] = {("--method", plain): plain, (): options.method}
    if shares is not None and takes_shares(find_addressed(options.method)):
        text = ",".join(f"{name}={share:g}" for name, share in shares.items())
        specs |= {("--prior", "uniform"): add_prior(options.method, "uniform", options.names)}
        specs |= {("--prior", text): add_prior(options.method, shares, options.names)} if shares else {}
    if find_addressed(options.method).name != published:
        specs |= {("--method", published): published}
    runs = {}
    for more, spec in specs.items():
        method = create_suited(spec, classifier, unknown=options.unknown)
        remembers = method.memory_span == "stream" and spec != plain
        runs[more] = _Run(method, options.passes if remembers else 1)
    runs[()].logits = []
    return runs


def _answer(
    labeller: Labeller, paths: Sequence[Path], runs: dict[tuple[str, ...], _Run], truth: Mapping[int, str]
) -> list[int]:
    """Let all methods answer all images, and some once more; return the places of readable ones."""
    run, readable = labeller.prepare(None, None), list[int]()
    classifier, numbers = labeller.classifier, {os.path.abspath(path): place for place, path in enumerate(paths)}

    def read() -> Iterator[tuple[list[int], Tensor]]:
        size = labeller.options.batch_size
        ahead = ReadAhead(iterate_images(paths), run.prepare, ahead=BATCHES_AHEAD * size, workers=WORKERS)
        with ahead as prepared:
            while batch := list(islice(prepared, size)):
                good = [(place, found) for place, found in batch if not isinstance(found, ImageAnswer)]
                bar.advance(len(batch))
                if good:
                    images = torch.stack([found for _, found in good]).to(classifier.device, classifier.dtype)
                    yield [numbers[place.key[0]] for place, _ in good], images

    for number in (1, 2):
        active = list(runs.values()) if number == 1 else _choose_second(runs, [truth.get(place) for place in readable])
        if not active:
            break
        with show_progress(f"pass {number}", len(paths)) as bar:
            for places, images in read():
                readable += places if number == 1 else []
                for one in active:
                    one.step(images, number)
        for one in active:
            one.end()
        if not readable:
            raise LmrError(f"None of the {len(paths)} images can be answered; check that they are images.")
    return readable


def _choose_second(runs: Mapping[tuple[str, ...], _Run], truth: Sequence[str | None]) -> list[_Run]:
    """Return what gets a second pass: the default, and the most accurate other setting if it is better."""

    def count_right(run: _Run) -> int:
        return sum(label == name for label, name in zip(run.labels[0], truth, strict=True) if name is not None)

    best = max(runs.values(), key=count_right)
    return [run for more, run in runs.items() if run.goes_on and (not more or run is best)]


def _list_answers(
    runs: Mapping[tuple[str, ...], _Run],
) -> Iterator[tuple[str, tuple[str, ...], list[str | None]]]:
    """Yield the name of each setting, the options of ``lmr predict``, and the label of every readable image."""
    for k, (more, run) in enumerate(runs.items()):
        name = {0: FROZEN, 1: run.method.name}.get(k, run.method.card.label)
        if more[:1] == ("--prior",):
            name = f"{runs[()].method.name}, equal shares" if more[1] == "uniform" else "shares of the labels"
        if run.goes_on:
            yield f"{name}, one pass", (*more, *ONE_PASS), run.labels[0]
        if not run.goes_on or len(run.labels) > 1:
            yield f"{name}, two passes" if run.goes_on else name, more, run.labels[-1]


def _answer_labelled(own: _Run, teach: Tensor, labels: Tensor, held_out: bool) -> list[int]:
    """Return the classes of all images with what the ``labels`` [n] of the images ``teach`` [n] teach.

    With ``held_out`` each of these has the class that the others give it.
    """
    assert own.logits is not None
    logits = torch.cat(own.logits)
    answers = None if own.biased else logits
    found = (logits + learn_offset(logits[teach], labels, answers).float()).argmax(1)
    if held_out:
        found[teach] = answer_held_out(logits[teach], labels, answers)
    classes: list[int] = found.tolist()
    return classes


def _judge(
    name: str,
    command: str,
    effort: int,
    labels: NDArray[np.object_],
    frozen: NDArray[np.object_],
    truth: NDArray[np.str_],
) -> SettingResult:
    ours, theirs = labels == truth, frozen == truth
    difference = measure_difference(ours, theirs)
    return SettingResult(name, command, float(ours.mean()), difference, float((labels != frozen).mean()), effort)


def _write(folder: AnyPath, given: PredictOptions, options: PredictOptions, more: tuple[str, ...]) -> str:
    """Return the command that uses a setting. Sub-folders are labels as they are."""
    if more != LABELS:
        return write_command("predict", [folder], given, *more)
    return write_command("predict", [folder], given, *(_truth_words(options) or ["--truth", os.fspath(folder)]))


def _truth_words(options: PredictOptions) -> list[str]:
    return [] if options.truth is None else ["--truth", os.fspath(options.truth)]
