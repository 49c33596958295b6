"""One run over images: each batch is written to the output first and to the progress file second."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch
from torch import Tensor
from tqdm import tqdm

from lmr.apps.predict.result_file import ErrorCause, ImageAnswer, ResultFile, StandardOutput
from lmr.core.errors import LmrError
from lmr.core.files import sync_folder
from lmr.core.method import Method
from lmr.images.ahead import ReadAhead
from lmr.images.image_files import UnreadableImage
from lmr.images.image_places import ImageItem, ImagePlace, PlaceKey
from lmr.images.remote_files import is_url
from lmr.watch.watched import Watched

if TYPE_CHECKING:
    from PIL.Image import Image

Prepared = tuple[ImagePlace, Tensor | ImageAnswer]  # an input of the model, or why there is none

NAMES_NOTE, TEMPLATES_NOTE = "names", "templates"  # of a state: the class names and the texts around them, as JSON
BATCHES_AHEAD = 2
WORKERS = min(4, os.cpu_count() or 1)  # threads that decode


class FolderRun:
    """A method that labels a list of images, the output it writes, and the file that keeps its progress."""

    def __init__(
        self,
        method: Method,
        preprocess: Callable[[Image], Tensor],
        output: ResultFile | None,
        progress: Path | None,
        batch_size: int,
        top: int,
        settings: Mapping[str, str] | None = None,
        templates: Sequence[str] | None = None,
    ) -> None:
        self.method, self.preprocess = method, preprocess
        self.output, self.progress = output, progress
        self.batch_size, self.top = batch_size, top
        self.templates = templates  # to be noted in the state
        self.settings = dict(settings or {})  # others that change results, or their last bits
        self.images = self.errors = 0
        self.earlier = self.saved = 0  # of the images: finished by an earlier run, saved on the disk
        self.counts: Counter[str] = Counter()
        self.causes: Counter[ErrorCause] = Counter()  # of the errors of this run
        self.first_error: str | None = None  # of this run
        self.finished = False
        self.suited = ""  # which values were chosen for the number of classes, in words
        self.title: str | None = None  # what the progress calls the output; its path if there is no title
        self.after_save: Callable[[], None] = lambda: None  # what it raises ends the run after a whole batch

    def begin(self) -> None:
        """Save the progress, then empty the output: a run that is killed in between or later can be resumed."""
        if self.output is None:
            return self.save()
        self.output.open()
        try:
            sync_folder(self.output.path.parent)  # or a power cut could leave a progress file without its output
            self.save()
        except BaseException:
            self.output.discard()
            raise
        self.output.cut()
        return None

    def save(self) -> None:
        """Write state and progress as one file; the answers so far are finished then."""
        if self.progress is not None:
            self.method.save(self.progress, notes=self._note_progress() | self._note_settings())
            self.saved = self.images
            self.after_save()

    def recover(self) -> set[PlaceKey]:
        """Return to the last saved progress; gives the images that are finished."""
        assert self.output is not None
        assert self.progress is not None
        notes = self.method.load(self.progress)
        where, own = notes.get("out"), self._name_output(self.output)
        if where != own:
            about = f"the output {where!r}" if where else "no output"
            raise LmrError(
                f"{str(self.progress)!r} holds the progress of {about}, not of {own!r}; to start that, omit --resume."
            )
        for key, now in self._note_settings().items():
            noted = notes.get(key, now if key == "every" else None)  # a run without videos does not note it
            if noted != now and key != "folder":
                was = _describe_setting(key, noted)
                raise LmrError(f"The run {was}; resume with the same, or start again with --overwrite.")
        try:
            offset, digest, folder = int(notes["offset"]), notes["digest"], notes["folder"]
        except (KeyError, ValueError) as error:
            lost = f"{str(self.progress)!r} does not say how much of the output is finished"
            raise LmrError(f"{lost}; start again with --overwrite.") from error
        finished = self.output.recover(offset, digest)
        if folder != os.getcwd() and not all(os.path.isabs(line.path) or is_url(line.path) for line in finished):
            raise LmrError(f"The run was started in {folder!r} and its paths are relative to it; resume it there.")
        self.output.open()
        self.output.cut()
        self.count(line.label for line in finished)
        self.earlier = self.saved = self.images
        return {(os.path.abspath(line.path), line.frame) for line in finished}

    def label(
        self, items: Iterable[ImageItem], count: int | None, flag: str | None, ended: threading.Event | None = None
    ) -> None:
        """Label all images, batch by batch, while threads decode those of the next batches.

        ``count`` is their number where it is known. If this ends early, the message says how to resume with ``flag``
        (None: it does not), and ``ended`` is set, so that items that take long to come can end too.
        """
        results = self.output or StandardOutput()
        hidden = not _is_terminal(sys.stderr) or (self.output is None and _is_terminal(sys.stdout))
        self.finished = False
        count_ahead = BATCHES_AHEAD * self.batch_size
        ahead = ReadAhead(items, self.prepare, ahead=count_ahead, workers=WORKERS, ended=ended)
        total = None if count is None else self.images + count
        try:
            with tqdm(total=total, initial=self.images, unit="image", disable=hidden) as bar, ahead as prepared:
                while batch := list(islice(prepared, self.batch_size)):
                    answers = self.answer(batch)
                    results.append(answers)
                    self.count(answer.label for answer in answers)
                    self.note_errors(answers)
                    self.finished = not prepared.has_more()
                    self.save()
                    bar.update(len(answers))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Interrupted.{self._explain_resuming(flag)}") from None
        except LmrError as error:
            raise LmrError(f"{error}{self._explain_resuming(flag)}") from error
        except torch.OutOfMemoryError as error:  # a resumed run must have the same settings, so it would fail again
            raise LmrError(
                f"There is not enough memory for a batch of {self.batch_size} images on "
                f"{self.method.classifier.device}; start again with a smaller --batch-size or with --memory lean."
            ) from error

    def prepare(self, item: ImageItem) -> Prepared:
        """Open one image and turn it into an input of the model; runs in several threads at a time."""
        try:
            return item.place, self.preprocess(item.open())
        except UnreadableImage as error:
            return item.place, _make_error(item.place, str(error), ErrorCause.UNREADABLE)
        except (ValueError, OSError, MemoryError) as error:
            problem = f"Cannot prepare {item.place} for the model: {error}"
            return item.place, _make_error(item.place, problem, ErrorCause.UNSUITABLE)

    def answer(self, batch: Sequence[Prepared]) -> list[ImageAnswer]:
        """One step on the readable images of the batch; the others have an error."""
        inputs = [found for _, found in batch if isinstance(found, Tensor)]
        best = iter(self._step(torch.stack(inputs)) if inputs else ())
        answers = []
        for place, found in batch:
            if isinstance(found, ImageAnswer):
                answers.append(found)
                continue
            top = next(best)
            if all(math.isfinite(share) for _, share in top):
                answers.append(ImageAnswer(str(place.path), top, frame=place.frame, time=place.time))
            else:
                problem = f"The model's answer to {place} is not a finite number."
                answers.append(_make_error(place, problem, ErrorCause.NOT_FINITE))
        return answers

    def _step(self, images: Tensor) -> list[list[tuple[str, float]]]:
        """Adapt on a batch; the most probable classes of each image, with their probabilities."""
        classifier = self.method.classifier
        prediction = self.method.step(images.to(classifier.device, classifier.dtype))
        order = prediction.logits.sort(dim=1, descending=True, stable=True).indices[:, : self.top]
        shares = prediction.probabilities.gather(1, order)
        return [
            [(classifier.names[c], round(p, 6)) for c, p in zip(row, values, strict=True)]
            for row, values in zip(order.tolist(), shares.tolist(), strict=True)
        ]

    def count(self, labels: Iterable[str | None]) -> None:
        """Add answers to the summary; a label of None is an error."""
        for label in labels:
            self.images += 1
            if label is None:
                self.errors += 1
            else:
                self.counts[label] += 1

    def note_errors(self, answers: Iterable[ImageAnswer]) -> None:
        """Remember the causes of this run's errors and the first message, for the summary."""
        for answer in answers:
            if answer.cause is not None:
                self.causes[answer.cause] += 1
                self.first_error = self.first_error or answer.error

    def _note_progress(self) -> dict[str, str]:
        notes = {"images": str(self.images), NAMES_NOTE: json.dumps(self.method.classifier.names)}
        if self.templates is not None:
            notes[TEMPLATES_NOTE] = json.dumps(list(self.templates))
        if self.output is None:
            return notes
        where = {"out": self._name_output(self.output), "offset": str(self.output.offset)}
        where["finished"] = "yes" if self.finished else "no"
        return notes | where | {"digest": self.output.digest}

    def _note_settings(self) -> dict[str, str]:
        """What must be the same for a resumed run to equal an uninterrupted one, and is not checked by the state."""
        names = hashlib.sha256("\n".join(self.method.classifier.names).encode("utf-8", "surrogatepass")).hexdigest()
        return {
            "batch_size": str(self.batch_size),
            "top": str(self.top),
            "labels": names,
            "folder": os.getcwd(),
        } | self.settings

    def describe_watch(self) -> str | None:
        """What the watch has seen, if there is one."""
        return self.method.describe_events() if isinstance(self.method, Watched) else None

    def _name_output(self, output: ResultFile) -> str:
        return self.title or os.path.abspath(output.path)

    def _explain_resuming(self, flag: str | None) -> str:
        if self.output is None or flag is None:
            return ""
        return f" To continue after the {self.saved} finished images, run the same command with {flag}."


def _make_error(place: ImagePlace, message: str, cause: ErrorCause) -> ImageAnswer:
    return ImageAnswer(str(place.path), error=message, cause=cause, frame=place.frame, time=place.time)


def _describe_setting(key: str, value: str | None) -> str:
    """How a run differed in one of its settings, as the end of "The run"."""
    if key == "labels":
        return "had other spellings in --labels"
    if key == "compile":
        return "was started with --compile" if value == "yes" else "was started without --compile"
    if key == "watch" and value is None:
        return "had no --watch"
    return f"had --{key.replace('_', '-')} {value}"


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
