"""Label images while adapting to them; a run that is killed at any moment can be resumed.

``predict_images`` is ``lmr predict``: it checks the options, loads the model (``Labeller``) and labels all images batch
by batch (``PredictRun``). After every batch the results are written first; the adapted state and the length of the
finished output follow in one file that is replaced atomically. So a killed run resumes after its last saved batch, and
its output has the same bytes as that of a run that was never interrupted.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast, get_args

import torch
from torch import Tensor

from lmr.apps.model_options import create_suited, describe_suited, explain_other_method
from lmr.apps.options import AnyPath, DType
from lmr.apps.precision import load_model
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import ImageAnswer, PredictSummary, ResultFile, RunTally, pack_logits, print_answers
from lmr.core.answer import Answer, make_answers, rank
from lmr.core.card import Role
from lmr.core.errors import LmrError
from lmr.core.files import hold_lock, sync_folder
from lmr.core.functional.look import judge_look, measure_look
from lmr.core.method import Method
from lmr.core.placement import digest_tensors
from lmr.core.prediction import Prediction
from lmr.core.progress import show_progress
from lmr.core.remembered import Remembered
from lmr.core.reused import Reused
from lmr.core.state import read_state
from lmr.core.wrapper import Wrapper, unwrap
from lmr.images.ahead import ReadAhead
from lmr.images.files import UnreadableImage
from lmr.images.lists import is_list
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


def predict_images(
    sources: AnyPath | Sequence[AnyPath],
    options: PredictOptions,
    labelled: Container[str] | None = None,
    *,
    begin: Path | None = None,
    title: str = "labelling",
    load: Callable[[PredictOptions, Sequence[Path]], Labeller] | None = None,
) -> PredictSummary:
    """Label image files, folders and videos, adapting batch by batch; write one line per image to ``options.out``.

    ``sources`` may also be .csv lists of paths. Options that do not fit together raise LmrError before any file is
    changed; an image that cannot be read gets a line with an error. With ``labelled``, absolute paths of images, lines
    hold all logits, and the frozen model answers these images too. ``begin`` is the state after a first pass, only
    read, and ``title`` labels the progress bar. ``load`` gives the model, where it is loaded already.
    """
    if options.truth is not None:
        raise LmrError("Call predict_taught for a run with true labels.")
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
    with hold_files(output, progress, state):
        check_files(output, progress, options)
        images = list_sources(sources, options.column)
        check_images(images, options.every)
        run = (load or Labeller)(resume_dtype(options, progress), images).prepare(output, progress, images)
        run.labelled, run.title, run.again = labelled, title, begin is not None
        finished = run.start(begin or (None if state is None else Path(state)), options.resume)
        start = time.perf_counter()
        run.label(images, finished)
        seconds = time.perf_counter() - start
        if progress is not None and state is None:
            progress.unlink(missing_ok=True)
            progress = None
    biased = run.method.logit_offset()
    return PredictSummary(
        run.answers,
        run.tally,
        seconds,
        out,
        progress,
        run.describe_watch(),
        biased is not None and bool(biased.any()),
        adapted=run.adapted,
    )


def resume_dtype(options: PredictOptions, progress: Path | None) -> PredictOptions:
    """Return the options with the type that a run has had until now, in place of "auto"."""
    if options.dtype != "auto" or not options.resume or progress is None or not progress.exists():
        return options
    noted = read_state(progress)[1].get("note.dtype")
    return replace(options, dtype=cast(DType, noted)) if noted in get_args(DType) else options


class Labeller:
    """A model that is loaded once and labels any number of runs, each with a fresh adaptation of its own."""

    def __init__(self, options: PredictOptions, images: Sequence[Path] = ()) -> None:
        loaded = load_model(options, images)
        self.backbone, self.classifier, self.said = loaded.backbone, Remembered(loaded.classifier), loaded.said
        self.options = replace(options, dtype=cast(DType, loaded.dtype))

    def use(self, options: PredictOptions) -> Labeller:
        """Return the same model, and the features it has computed, with other options for its runs."""
        other = copy.copy(self)
        other.options = replace(options, dtype=self.options.dtype)
        return other

    def prepare(self, output: ResultFile | None, progress: Path | None, images: Sequence[Path] = ()) -> PredictRun:
        """Return a run that has not begun; if there are videos among the images, it reuses the answers to frames."""
        method = create_suited(self.options.method, self.classifier, unknown=self.options.unknown)
        watch, reuse = self.options.watch_settings, self.options.reuse
        frugal = Reused(method, reuse) if reuse and has_frames(images) else method
        watched = frugal if watch is None else Watched(frugal, watch)
        run = PredictRun(watched, self.backbone.preprocess, self.options, output, progress)
        run.tally.suited = describe_suited(self.options.method, method)
        run.tally.precision = self.said
        run.tally.rests, run.tally.classes = method.phases() is not None, len(self.options.names)
        return run


class PredictRun:
    """A method that labels a list of images, the output it writes, and the file that keeps its progress."""

    def __init__(
        self,
        method: Method | Wrapper,
        preprocess: Callable[[Image], Tensor],
        options: PredictOptions,
        output: ResultFile | None,
        progress: Path | None,
    ) -> None:
        self.method, self.preprocess, self.options = method, preprocess, options
        self.output, self.progress = output, progress
        self.name = "" if output is None else os.path.abspath(output.path)  # of the output, in the progress
        self.answers: Counter[str | None] = Counter()  # labels in the whole output; None is an error
        self.tally = RunTally()  # of this run
        self.labelled: Container[str] | None = None  # of a first pass: see ``predict_images``
        self.title = "labelling"
        self.again = False  # a second pass over the same images
        self.adapted = 0  # answers of an adapted model in the whole output
        self.saved = 0  # images that are saved on the disk
        self.finished = False

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
            if self.again:
                self.method.rewind()
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

    def load_state(self, path: Path, *, adopt: bool = False) -> dict[str, str]:
        """Load a state and return its notes; the error for the state of another method says how to go on."""
        try:
            return self.method.load(path, adopt=adopt)
        except LmrError:
            stored = read_state(path)[1].get("spec")
            if stored is None or stored == self.method.spec:
                raise
            method = unwrap(self.method)
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
            if (noted := notes.get(key)) != now and key != "folder":
                option = f"--{key.replace('_', '-')}"
                raise LmrError(
                    f"The run had {option} {noted}, not {now}; resume with the same, or start again with --overwrite."
                )
        try:
            offset, digest, folder = int(notes["offset"]), notes["digest"], notes["folder"]
        except (KeyError, ValueError) as error:
            lost = f"{str(self.progress)!r} does not say how much of the output is finished"
            raise LmrError(f"{lost}; start again with --overwrite.") from error
        finished = self.output.recover(offset, digest)
        if folder != os.getcwd() and not all(os.path.isabs(line.path) for line in finished):
            raise LmrError(f"The run was started in {folder!r} and its paths are relative to it; resume it there.")
        self.output.open()
        self.output.cut()
        self.answers.update(line.label for line in finished)
        self.adapted = int(notes.get("adapted", 0))
        self.saved = self.images
        return {(os.path.abspath(line.path), line.frame) for line in finished}

    def label(
        self,
        images: Sequence[Path],
        finished: Collection[PlaceKey] = (),
        take: Callable[[Sequence[ImageAnswer]], object] | None = None,
    ) -> None:
        """Label all images that are not finished, batch by batch, while threads decode those of the next batches.

        ``take`` gets the answers of each batch; by default they are written to the output.
        """
        take = take or (print_answers if self.output is None else self.output.append)
        shown = _is_terminal(sys.stderr) and not (take is print_answers and _is_terminal(sys.stdout))
        self.finished, ended, size = False, threading.Event(), self.options.batch_size
        left = None  # the number of frames of a video is not known
        if not has_frames(images):
            left = sum(ImagePlace(image).key not in finished for image in images)
        items = iterate_images(images, self.options.every, set(finished), ended.is_set)
        ahead = ReadAhead(items, self.prepare, ahead=BATCHES_AHEAD * size, workers=WORKERS, ended=ended)
        total = None if left is None else self.images + left
        try:
            with show_progress(self.title, total, done=self.images, shown=shown) as bar, ahead as prepared:
                while batch := list(islice(prepared, size)):
                    answers = self.answer(batch)
                    take(answers)
                    self._count(answers)
                    self.finished = not prepared.has_more()
                    self.save()
                    bar.advance(len(answers))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Interrupted.{self._explain_resuming()}") from None
        except LmrError as error:
            raise LmrError(f"{error}{self._explain_resuming()}") from error
        except torch.OutOfMemoryError as error:  # a resumed run must have the same settings, so it would fail again
            raise LmrError(
                f"There is not enough memory for a batch of {size} images on {self.method.classifier.device}; start "
                "again with a smaller --batch-size."
            ) from error

    def prepare(self, item: ImageItem) -> Prepared:
        """Open one image and turn it into an input of the model; runs in several threads at a time."""
        try:
            return item.place, self.preprocess(item.open())
        except UnreadableImage as error:
            return item.place, _make_error(item.place, str(error))
        except (ValueError, OSError, MemoryError) as error:
            return item.place, _make_error(item.place, f"Cannot prepare {item.place} for the model: {error}")

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
        classifier, key = self.method.classifier, digest_tensors({"images": images})
        images = images.to(classifier.device, classifier.dtype)
        if isinstance(classifier, Remembered):  # a second pass, or another method, encodes no batch again
            classifier.expect(images, key)
        prediction = self.method.step(images)
        frozen = self._compare(images, prediction, places)
        self.tally.adapted += prediction.info.get("adapted", 0)
        self.adapted += prediction.info.get("adapted", len(places))
        self._look(images)
        rankings = rank(prediction.logits, classifier.names, self.options.top)
        unknown = [False] * len(places) if prediction.unknown is None else prediction.unknown.tolist()
        reused = [False] * len(places) if prediction.reused is None else prediction.reused.tolist()
        self.tally.reused += sum(reused)
        answers = []
        shown = {k: classifier.names[label] for k, label in frozen.items()} if self.options.html is not None else None
        for k, answer in enumerate(make_answers(rankings, prediction.known.tolist(), unknown, shown, reused=reused)):
            place, plain = places[k], classifier.names[frozen[k]] if k in frozen else None
            if answer.error is not None:
                problem = (
                    f"The model's answer to {place} is not a finite number; give another --state, or check the model "
                    "with 'lmr doctor'."
                )
                answers.append(_make_error(place, problem))
            else:
                logits = None if self.labelled is None else pack_logits(prediction.logits[k])
                answers.append(ImageAnswer(str(place.path), answer, place.frame, place.time, plain, logits))
        return answers

    def _look(self, images: Tensor) -> None:
        """Note how the images look, where their pixels are known."""
        scale = self.method.classifier.pixels
        if scale is not None and images.ndim == 4 and images.shape[1] == 3:
            numbers = measure_look(scale.to_shares(images.float()))
            self.tally.looks += judge_look(numbers, min(images.shape[2:]))

    def _compare(self, images: Tensor, prediction: Prediction, named: Sequence[ImagePlace]) -> dict[int, int]:
        """Return the frozen model's label at some places of a batch: where the watch compared, or one image in eight.

        A batch on which nothing adapted was answered by the frozen model, so that its labels cost nothing.
        """
        if self.labelled is not None:
            places = [place for place, one in enumerate(named) if one.key[0] in self.labelled]
        elif self.options.html is not None:
            places = list(range(len(images)))
        elif "compared" in prediction.info:
            return dict(prediction.info["compared"][0])
        elif self.method.card.role is Role.BASELINE:
            return {}
        else:
            places = [place for place in range(len(images)) if (self.images + place) % COMPARED == 0]
            if prediction.reused is not None:  # it would cost what was saved
                places = [place for place in places if not prediction.reused[place]]
        if prediction.info.get("adapted") == 0:
            return {place: int(prediction.labels[place]) for place in places}
        classifier = self.method.classifier
        with torch.no_grad():
            if isinstance(classifier, Remembered) and classifier.knows(images):
                labels = classifier(images)[places].argmax(1).tolist()
            else:
                labels = classifier(images[places]).argmax(1).tolist() if places else []
        return dict(zip(places, labels, strict=True))

    def _count(self, answers: Sequence[ImageAnswer]) -> None:
        """Add answers to the summary."""
        self.answers.update(answer.label for answer in answers)
        self.tally.images += len(answers)
        self.tally.sureness += sum(answer.answer.probability or 0.0 for answer in answers)
        compared = [answer for answer in answers if answer.frozen is not None and answer.answer.label is not None]
        self.tally.compared += len(compared)
        self.tally.differing += sum(answer.label != answer.frozen for answer in compared)
        for answer in answers:
            if answer.error is not None:
                self.tally.failed += 1
                self.tally.first_error = self.tally.first_error or answer.error

    def _note_progress(self) -> dict[str, str]:
        notes = {"images": str(self.images), "adapted": str(self.adapted)}
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
        notes = {
            key: str(getattr(options, key)) for key in ("batch_size", "top", "every", "unknown", "passes", "reuse")
        }
        notes |= {"watch": "off" if watch is None else watch.spec, "labels": f"with the digest {names[:16]}"}
        return notes | {"folder": os.getcwd()} | options.note()

    def describe_watch(self) -> str | None:
        """Return the events that the watch has reported, if there is one."""
        return self.method.describe_events() if isinstance(self.method, Watched) else None

    def _explain_resuming(self) -> str:
        if self.output is None:
            return ""
        return f" To continue after the {self.saved} finished images, run the same command with --resume."


def _make_error(place: ImagePlace, message: str) -> ImageAnswer:
    return ImageAnswer(str(place.path), Answer(error=message), frame=place.frame, time=place.time)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def check_images(images: Sequence[Path], every: int) -> None:
    """Refuse an empty list, and ``every`` where there is no video."""
    if not images:
        raise LmrError("There is nothing to label; give at least one image or one folder of images.")
    if every != 1 and not has_frames(images):
        raise LmrError(
            "--every is for videos, and there are none among the sources (folders are searched for images only); "
            "leave it out, or name the videos."
        )


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
        raise LmrError("--column is for .csv lists, and there is none among the sources; leave it out.")


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


@contextlib.contextmanager
def hold_files(output: ResultFile | None, progress: Path | None, state: AnyPath | None) -> Iterator[None]:
    """Keep other runs away from an output and its progress within this context, and close the output at its end."""
    busy = "" if output is None else f"Another run is writing {str(output.path)!r}; wait for it, or give another --out."
    busy_state = (
        f"Another run is using the state {os.fspath(state or '')!r}; wait for it, or give another --state. Two runs on "
        "one state would lose what one of them learns."
    )
    with contextlib.ExitStack() as held:
        if output is not None:
            held.enter_context(hold_path(output.path, busy))
            held.callback(output.close)
        if progress is not None:
            held.enter_context(hold_path(progress, busy_state if state is not None else busy))
        yield


def check_files(output: ResultFile | None, progress: Path | None, options: PredictOptions) -> None:
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
