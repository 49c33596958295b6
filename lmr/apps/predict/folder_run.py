"""One run over images: each batch is written to the output first and to the progress file second."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch
from torch import Tensor
from tqdm import tqdm

from lmr.apps.predict.result_file import ErrorCause, ImageAnswer, ResultFile, StandardOutput
from lmr.core.errors import LmrError
from lmr.core.files import sync_folder
from lmr.core.method import Method
from lmr.images.image_files import UnreadableImage, open_image

if TYPE_CHECKING:
    from PIL.Image import Image


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
        model: Mapping[str, str] | None = None,
    ) -> None:
        self.method, self.preprocess = method, preprocess
        self.output, self.progress = output, progress
        self.batch_size, self.top = batch_size, top
        self.model = dict(model or {})  # how the model runs, which may change the last bits of a result
        self.images = self.errors = 0
        self.earlier = self.saved = 0  # of the images: finished by an earlier run, saved on the disk
        self.counts: Counter[str] = Counter()
        self.causes: Counter[ErrorCause] = Counter()  # of the errors of this run
        self.first_error: str | None = None  # of this run
        self.finished = False

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

    def recover(self, paths: Sequence[Path]) -> list[Path]:
        """Return to the last saved progress; gives the images that are not finished yet, in order."""
        assert self.output is not None
        assert self.progress is not None
        notes = self.method.load(self.progress)
        where, own = notes.get("out"), os.path.abspath(self.output.path)
        if where != own:
            about = f"the output {where!r}" if where else "no output"
            raise LmrError(
                f"{str(self.progress)!r} holds the progress of {about}, not of {own!r}; to start that, omit --resume."
            )
        for key, now in self._note_settings().items():
            if notes.get(key) != now and key != "folder":
                was = _describe_setting(key, notes.get(key))
                raise LmrError(f"The run {was}; resume with the same, or start again with --overwrite.")
        try:
            offset, digest, folder = int(notes["offset"]), notes["digest"], notes["folder"]
        except (KeyError, ValueError) as error:
            lost = f"{str(self.progress)!r} does not say how much of the output is finished"
            raise LmrError(f"{lost}; start again with --overwrite.") from error
        finished = self.output.recover(offset, digest)
        names = [path for path, _ in finished]
        if folder != os.getcwd() and not all(map(os.path.isabs, names)):
            raise LmrError(f"The run was started in {folder!r} and its paths are relative to it; resume it there.")
        self.output.open()
        self.output.cut()
        self.count(label for _, label in finished)
        self.earlier = self.saved = self.images
        known = set(map(os.path.abspath, names))
        return [path for path in paths if os.path.abspath(path) not in known]

    def label(self, paths: Sequence[Path], flag: str) -> None:
        """Label all images, batch by batch; if this ends early, the message says how to resume it with ``flag``."""
        results = self.output or StandardOutput()
        hidden = not _is_terminal(sys.stderr) or (self.output is None and _is_terminal(sys.stdout))
        self.finished = False
        try:
            with tqdm(total=self.images + len(paths), initial=self.images, unit="image", disable=hidden) as bar:
                for first in range(0, len(paths), self.batch_size):
                    answers = self.answer(paths[first : first + self.batch_size])
                    results.append(answers)
                    self.count(answer.label for answer in answers)
                    self.note_errors(answers)
                    self.finished = first + self.batch_size >= len(paths)
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

    def answer(self, chunk: Sequence[Path]) -> list[ImageAnswer]:
        """One step on the readable images of the chunk; the others get an error."""
        inputs: dict[Path, Tensor] = {}
        answers: dict[Path, ImageAnswer] = {}
        for path in chunk:
            try:
                inputs[path] = self.preprocess(open_image(path))
            except UnreadableImage as error:
                answers[path] = ImageAnswer(str(path), error=str(error), cause=ErrorCause.UNREADABLE)
            except (ValueError, OSError, MemoryError) as error:
                problem = f"Cannot prepare {str(path)!r} for the model: {error}"
                answers[path] = ImageAnswer(str(path), error=problem, cause=ErrorCause.UNSUITABLE)
        if inputs:
            classifier = self.method.classifier
            prediction = self.method.step(torch.stack(list(inputs.values())).to(classifier.device, classifier.dtype))
            order = prediction.logits.sort(dim=1, descending=True, stable=True).indices[:, : self.top]
            shares = prediction.probabilities.gather(1, order)
            for path, row, values in zip(inputs, order.tolist(), shares.tolist(), strict=True):
                if all(map(math.isfinite, values)):
                    best = [(classifier.names[c], round(p, 6)) for c, p in zip(row, values, strict=True)]
                    answers[path] = ImageAnswer(str(path), best)
                else:
                    problem = f"The model's answer to {str(path)!r} is not a finite number."
                    answers[path] = ImageAnswer(str(path), error=problem, cause=ErrorCause.NOT_FINITE)
        return [answers[path] for path in chunk]

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
        if self.output is None:
            return {"images": str(self.images)}
        where = {"out": os.path.abspath(self.output.path), "offset": str(self.output.offset)}
        where["finished"] = "yes" if self.finished else "no"
        return where | {"digest": self.output.digest, "images": str(self.images)}

    def _note_settings(self) -> dict[str, str]:
        """What must be the same for a resumed run to equal an uninterrupted one, and is not checked by the state."""
        names = hashlib.sha256("\n".join(self.method.classifier.names).encode("utf-8", "surrogatepass")).hexdigest()
        return {
            "batch_size": str(self.batch_size),
            "top": str(self.top),
            "labels": names,
            "folder": os.getcwd(),
        } | self.model

    def _explain_resuming(self, flag: str) -> str:
        if self.output is None:
            return ""
        return f" To continue after the {self.saved} finished images, run the same command with {flag}."


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
