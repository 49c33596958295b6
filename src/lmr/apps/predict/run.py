"""Label images while adapting to them; a run that is killed at any moment can be resumed.

``predict_images`` is ``lmr predict``: it checks the options, loads the model (``Labeller``) and labels all images batch
by batch (``PredictRun``). After every batch the results are written first; the adapted state and the length of the
finished output follow in one file that is replaced atomically. So a killed run resumes after its last saved batch, and
its output has the same bytes as that of a run that was never interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch
from torch import Tensor

from lmr.apps.model_options import create_suited, describe_suited, explain_other_method, make_classifier
from lmr.apps.options import AnyPath
from lmr.apps.predict.budget import choose_switch
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import ErrorCause, ImageAnswer, PredictSummary, ResultFile, RunTally, print_answers
from lmr.core.card import Role
from lmr.core.errors import LmrError
from lmr.core.files import hold_lock, sync_folder
from lmr.core.known import check_unknown
from lmr.core.method import Method
from lmr.core.prediction import Prediction
from lmr.core.progress import show_progress
from lmr.core.state import read_state
from lmr.images.ahead import ReadAhead
from lmr.images.files import UnreadableImage
from lmr.images.lists import ListedImage, is_list
from lmr.images.remote import is_url
from lmr.images.sources import ImageItem, ImagePlace, PlaceKey, has_frames, iterate_images, list_sources
from lmr.watch.watched import Watched

if TYPE_CHECKING:
    from PIL.Image import Image


Prepared = tuple[ImagePlace, Tensor | ImageAnswer]  # an input of the model, or the error that it has instead

TEMPLATES_NOTE = "templates"  # of a state: the texts around the class names, as JSON
BATCHES_AHEAD = 2
WORKERS = min(4, os.cpu_count() or 1)  # threads that decode
COMPARED = 8  # one image in so many is compared with the frozen model, where no watch does it: 4 % of a step of LMR
LOCK_SECONDS = 0.1  # time for a run that is just ending to remove its lock


def predict_images(sources: AnyPath | Sequence[AnyPath], options: PredictOptions) -> PredictSummary:
    """Label image files, folders and videos, adapting batch by batch; write one line per image to ``options.out``.

    ``sources`` may also be .csv or .parquet lists of paths. Options that do not fit together raise LmrError before any
    file is changed; an image that cannot be read gets a line with an error.
    """
    options = options.resolve()
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    out, state, progress = options.out, options.state, options.state_path
    for option, path in (("--out", out), ("--state", progress if state is None else state)):
        if path is not None:
            check_path(option, path)
    output = None if out is None else ResultFile(out, options.top)
    check_sources(sources, {"--out": out, "--state": progress}, options.column)
    if out is not None and progress is not None and os.path.abspath(progress) == os.path.abspath(out):
        raise LmrError(f"--state and --out are both {os.fspath(out)!r}; give them different names.")
    busy_state = (
        f"Another run is using the state {os.fspath(state or '')!r}; wait for it, or give another --state. Two runs on "
        "one state would lose what one of them learns."
    )
    with contextlib.ExitStack() as held:
        if output is not None:
            held.enter_context(hold_path(output.path, explain_busy(output.path)))
            held.callback(output.close)
        if progress is not None:
            held.enter_context(hold_path(progress, explain_busy(out) if out and state is None else busy_state))
        _check_files(output, progress, options)
        images = list_sources(sources, options.column)
        videos = check_images(images, options.every)
        if output is not None:
            output.frames = videos
        run = Labeller(options).prepare(output, progress)
        finished = run.start(None if state is None else Path(state), options.resume)
        start = time.perf_counter()
        run.label(images, finished, "--resume instead of --overwrite" if options.overwrite else "--resume")
        seconds = time.perf_counter() - start
        if progress is not None and state is None:
            progress.unlink(missing_ok=True)
            progress = None
    return PredictSummary(
        run.answers, run.tally, seconds, None if output is None else output.path, progress, run.describe_watch()
    )


class Labeller:
    """A model that is loaded once and labels any number of runs, each with a fresh adaptation of its own."""

    def __init__(self, options: PredictOptions) -> None:
        self.options = options
        self.backbone = options.load(options.model)
        self.classifier = make_classifier(self.backbone, options.names, options.wording)
        self._switch: Mapping[str, object] = {}
        if options.budget is not None:
            chosen = choose_switch(options.method, self.classifier, options.budget, options.batch_size)
            self._switch = chosen.values
            print(f"lmr: {chosen.describe()}", file=sys.stderr)

    def prepare(self, output: ResultFile | None, progress: Path | None, title: str | None = None) -> PredictRun:
        """Return a run that has not begun; ``title`` is the name that its progress gives to the output."""
        unknown = check_unknown(self.options.unknown)
        method = create_suited(self.options.method, self.classifier, unknown=unknown, **self._switch)
        watch = self.options.watch_settings
        watched = method if watch is None else Watched(method, watch)
        run = PredictRun(watched, self.backbone.preprocess, self.options, output, progress, title)
        run.tally.suited = describe_suited(self.options.method, method)
        run.tally.rests = method.phases() is not None
        return run


class PredictRun:
    """A method that labels a list of images, the output it writes, and the file that keeps its progress."""

    def __init__(
        self,
        method: Method | Watched,
        preprocess: Callable[[Image], Tensor],
        options: PredictOptions,
        output: ResultFile | None,
        progress: Path | None,
        title: str | None = None,
    ) -> None:
        self.method, self.preprocess, self.options = method, preprocess, options
        self.output, self.progress = output, progress
        self.name = title or ("" if output is None else os.path.abspath(output.path))  # of the output, in the progress
        self.answers: Counter[str | None] = Counter()  # labels in the whole output; None is an error
        self.tally = RunTally()  # of this run
        self.saved = 0  # images that are saved on the disk
        self.finished = False
        self.after_save: Callable[[], None] = lambda: None  # an exception from it ends the run after a whole batch

    @property
    def images(self) -> int:
        """The number of images in the output, earlier runs included."""
        return self.answers.total()

    def start(self, earlier: Path | None, resume: bool) -> Collection[PlaceKey]:
        """Continue from the saved progress, or begin, with the state of an earlier run if there is one.

        Returns the images that are finished.
        """
        if resume and self.progress is not None and self.progress.exists():
            return self.recover()
        if earlier is not None and earlier.exists():
            self._check_unfinished(self.load_state(earlier, adopt=self.options.adopt))
        self.begin()
        return ()

    def _check_unfinished(self, notes: Mapping[str, str]) -> None:
        """Refuse a state that an interrupted run with another output still needs for its --resume."""
        other = notes.get("out", "")
        if notes.get("finished") == "no" and self.name != other and os.path.exists(other):
            raise LmrError(
                f"The state belongs to the run that writes {other!r}, which is not finished; resume that run first, or "
                "copy the state file and give the copy."
            )

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

    def load_state(self, path: Path, *, adopt: bool = False) -> dict[str, str]:
        """Load a state and return its notes; the error for the state of another method says how to go on."""
        try:
            return self.method.load(path, adopt=adopt)
        except LmrError:
            stored = read_state(path)[1].get("spec")
            if stored is None or stored == self.method.spec:
                raise
            method = self.method.method if isinstance(self.method, Watched) else self.method
            option = "--out" if self.options.state is None else "--state"
            raise LmrError(explain_other_method(stored, method, f"The state {str(path)!r}", option)) from None

    def recover(self) -> set[PlaceKey]:
        """Return to the last saved progress, and return the images that are finished."""
        assert self.output is not None
        assert self.progress is not None
        notes = self.load_state(self.progress)
        if (where := notes.get("out")) != self.name:
            about = f"the output {where!r}" if where else "no output"
            raise LmrError(
                f"{str(self.progress)!r} holds the progress of {about}, not of {self.name!r}; to start that, omit "
                "--resume."
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
        self.answers.update(line.label for line in finished)
        self.saved = self.images
        return {(os.path.abspath(line.path), line.frame) for line in finished}

    def label(
        self,
        images: Sequence[ListedImage],
        finished: Collection[PlaceKey] = (),
        flag: str | None = None,
        take: Callable[[Sequence[ImageAnswer]], object] | None = None,
    ) -> None:
        """Label all images that are not finished, batch by batch, while threads decode those of the next batches.

        If this ends early, the error message says how to resume with ``flag``; None: it does not. ``take`` gets the
        answers of each batch; by default they are written to the output.
        """
        take = take or (print_answers if self.output is None else self.output.append)
        shown = _is_terminal(sys.stderr) and not (take is print_answers and _is_terminal(sys.stdout))
        self.finished, ended, size = False, threading.Event(), self.options.batch_size
        left = None  # the number of frames of a video is not known
        if not any(map(has_frames, images)):
            left = sum(ImagePlace(image).key not in finished for image in images)
        items = iterate_images(images, self.options.every, set(finished), ended.is_set)
        ahead = ReadAhead(items, self.prepare, ahead=BATCHES_AHEAD * size, workers=WORKERS, ended=ended)
        total = None if left is None else self.images + left
        try:
            with show_progress("labelling", total, done=self.images, shown=shown) as bar, ahead as prepared:
                while batch := list(islice(prepared, size)):
                    answers = self.answer(batch)
                    take(answers)
                    self._count(answers)
                    self.finished = not prepared.has_more()
                    self.save()
                    bar.advance(len(answers))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Interrupted.{self._explain_resuming(flag)}") from None
        except LmrError as error:
            raise LmrError(f"{error}{self._explain_resuming(flag)}") from error
        except torch.OutOfMemoryError as error:  # a resumed run must have the same settings, so it would fail again
            raise LmrError(
                f"There is not enough memory for a batch of {size} images on {self.method.classifier.device}; start "
                "again with a smaller --batch-size or with --memory lean."
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
        """Adapt on the readable images of the batch and return one answer per image; the others have an error."""
        places = [place for place, found in batch if isinstance(found, Tensor)]
        inputs = [found for _, found in batch if isinstance(found, Tensor)]
        answers = iter(self._step(places, torch.stack(inputs)) if inputs else ())
        if self.tally.adapted and self.tally.first_adapted is None:
            numbers = [number for number, (_, found) in enumerate(batch, self.images + 1) if isinstance(found, Tensor)]
            self.tally.first_adapted = numbers[-self.tally.adapted]
        return [found if isinstance(found, ImageAnswer) else next(answers) for _, found in batch]

    def _step(self, places: Sequence[ImagePlace], images: Tensor) -> list[ImageAnswer]:
        """Adapt on a batch and return the answer to each image."""
        classifier = self.method.classifier
        images = images.to(classifier.device, classifier.dtype)
        prediction = self.method.step(images)
        frozen = self._compare(images, prediction)
        self.tally.adapted += prediction.info.get("adapted", 0)
        order = prediction.logits.sort(dim=1, descending=True, stable=True).indices[:, : self.options.top]
        shares = prediction.probabilities.gather(1, order).tolist()
        known = prediction.known.tolist()
        unknown = [False] * len(places) if prediction.unknown is None else prediction.unknown.tolist()
        answers = []
        for k, (place, classes) in enumerate(zip(places, order.tolist(), strict=True)):
            if not all(map(math.isfinite, shares[k])):
                problem = f"The model's answer to {place} is not a finite number."
                answers.append(_make_error(place, problem, ErrorCause.NOT_FINITE))
                continue
            answers.append(
                ImageAnswer(
                    str(place.path),
                    [(classifier.names[c], round(share, 6)) for c, share in zip(classes, shares[k], strict=True)],
                    frame=place.frame,
                    time=place.time,
                    frozen=classifier.names[frozen[k]] if k in frozen else None,
                    known=round(known[k], 6),
                    unknown=unknown[k],
                )
            )
        return answers

    def _compare(self, images: Tensor, prediction: Prediction) -> dict[int, int]:
        """Return the frozen model's label at some places of a batch: where the watch compared, or one image in eight.

        A batch on which nothing adapted was answered by the frozen model, so that its labels cost nothing.
        """
        if "compared" in prediction.info:
            return dict(prediction.info["compared"][0])
        if self.method.card.role is Role.BASELINE:
            return {}
        places = [place for place in range(len(images)) if (self.images + place) % COMPARED == 0]
        if prediction.info.get("adapted") == 0:
            return {place: int(prediction.labels[place]) for place in places}
        with torch.no_grad():
            labels = self.method.classifier(images[places]).argmax(1).tolist() if places else []
        return dict(zip(places, labels, strict=True))

    def _count(self, answers: Sequence[ImageAnswer]) -> None:
        """Add answers to the summary."""
        self.answers.update(answer.label for answer in answers)
        self.tally.images += len(answers)
        compared = [answer for answer in answers if answer.frozen is not None and not answer.unknown]
        self.tally.compared += len(compared)
        self.tally.differing += sum(answer.label != answer.frozen for answer in compared)
        for answer in answers:
            if answer.cause is not None:
                self.tally.causes[answer.cause] += 1
                self.tally.first_error = self.tally.first_error or answer.error

    def read_tally(self) -> RunTally:
        """Return a copy of the tally so far; a finished run adds the events of its watch."""
        watches = Counter([events]) if (events := self.describe_watch()) and self.finished else Counter()
        drifted = int(self.finished and self.tally.adapted > 0)
        return replace(self.tally, causes=Counter(self.tally.causes), watches=watches, drifted=drifted)

    def _note_progress(self) -> dict[str, str]:
        notes = {"images": str(self.images)}
        if self.options.templates is not None:
            notes[TEMPLATES_NOTE] = json.dumps(list(self.options.templates))
        if self.output is None:
            return notes
        notes |= {"out": self.name, "offset": str(self.output.offset), "digest": self.output.digest}
        return notes | {"finished": "yes" if self.finished else "no"}

    def _note_settings(self) -> dict[str, str]:
        """Return the settings that a resumed run must share, except those that the state itself checks."""
        names = hashlib.sha256("\n".join(self.method.classifier.names).encode("utf-8", "surrogatepass")).hexdigest()
        options, watch = self.options, self.options.watch_settings
        notes = {"batch_size": str(options.batch_size), "top": str(options.top), "labels": names}
        notes |= {"folder": os.getcwd()} | options.note()
        if self.output is not None and self.output.frames:
            notes["every"] = str(options.every)
        notes |= {} if options.unknown is None else {"unknown": str(options.unknown)}
        return notes if watch is None else notes | {"watch": watch.spec}

    def describe_watch(self) -> str | None:
        """Return the events that the watch has reported, if there is one."""
        return self.method.describe_events() if isinstance(self.method, Watched) else None

    def _explain_resuming(self, flag: str | None) -> str:
        if self.output is None or flag is None:
            return ""
        return f" To continue after the {self.saved} finished images, run the same command with {flag}."


def _make_error(place: ImagePlace, message: str, cause: ErrorCause) -> ImageAnswer:
    return ImageAnswer(str(place.path), error=message, cause=cause, frame=place.frame, time=place.time)


def _describe_setting(key: str, value: str | None) -> str:
    """Return how a run differed in one of its settings, as the end of "The run"."""
    if key == "labels":
        return "had other spellings in --labels"
    if key in ("watch", "unknown") and value is None:
        return f"had no --{key}"
    return f"had --{key.replace('_', '-')} {value}"


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def check_images(images: Sequence[ListedImage], every: int) -> bool:
    """Return whether there are videos; refuse an empty list, and ``every`` where there is no video."""
    if not images:
        raise LmrError("There is nothing to label; give at least one image or one folder of images.")
    videos = any(map(has_frames, images))
    if every != 1 and not videos:
        raise LmrError(
            "--every is for videos, and there are none among the sources (folders are searched for images only); "
            "leave it out, or name the videos."
        )
    return videos


def check_path(option: str, path: AnyPath) -> None:
    """Refuse a path that is not a file that can be read and replaced. Opening a pipe would wait for its other end."""
    name = os.fspath(path)
    if not name:
        raise LmrError(f"Expected the name of a file for {option}, got an empty one.")
    if os.path.isdir(path):
        raise LmrError(f"{name!r} is a folder; give {option} the name of a file.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise LmrError(f"{name!r} is a pipe, a socket or a device; give {option} the name of a regular file.")
    folder = os.path.dirname(name) or os.curdir
    if not os.path.isdir(folder):
        raise LmrError(f"Cannot write {name!r}: there is no folder {folder!r}; create it first.")


def check_sources(sources: Sequence[AnyPath], outputs: Mapping[str, AnyPath | None], column: str | None) -> None:
    """Refuse to write over a source, under any of its names, and a column where there is no list."""
    for option, path in outputs.items():
        for source in sources:
            if path is not None and os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
                raise LmrError(f"{os.fspath(path)!r} is one of the sources; give another {option}.")
    if column is not None and not any(map(is_list, sources)):
        raise LmrError("--column is for .csv and .parquet lists, and there is none among the sources; leave it out.")


@contextlib.contextmanager
def hold_path(path: Path, message: str) -> Iterator[None]:
    """Keep other runs away from a file or folder within this context; LmrError with ``message`` if one is using it.

    The lock is the file ``.NAME.lock`` beside ``path``, as files are replaced at every save. It is removed at the end,
    while it is still locked; one that a killed run left does no harm.
    """
    lock = path.with_name(f".{path.name}.lock")
    with hold_lock(lock, message, LOCK_SECONDS, failed=f"Cannot write {str(path)!r}"):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows does not remove open files
                os.unlink(lock)


def explain_busy(out: AnyPath) -> str:
    """Return the error message for a second run on the output of one that is still running."""
    return f"Another run is writing {os.fspath(out)!r}; wait for it, or give another --out."


def _check_files(output: ResultFile | None, progress: Path | None, options: PredictOptions) -> None:
    """Refuse options that would lose or mix up results; changes nothing."""
    if output is None:
        if options.resume:
            raise LmrError("Only a run that writes to a file can be resumed; give the same --out as before.")
        return
    name = str(output.path)
    if options.resume and not output.is_empty and progress is not None and not progress.exists():
        raise LmrError(
            f"{name!r} cannot be resumed, because there is no {str(progress)!r}: the run has finished, or it had "
            "another --state. Give another --out for new images, or --overwrite to start again."
        )
    if not output.is_empty and not options.resume and not options.overwrite:
        raise LmrError(
            f"{name!r} exists; continue it with --resume, replace it with --overwrite, or give another --out."
        )
