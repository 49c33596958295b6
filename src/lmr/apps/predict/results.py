"""The results of ``lmr predict``: lines on standard output, a file that can be resumed after a crash, and a summary."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmr.apps.options import AnyPath
from lmr.core.answer import UNKNOWN, Answer, Ranking
from lmr.core.errors import LmrError
from lmr.core.foreign_text import read_cell, write_cell

if TYPE_CHECKING:
    from torch import Tensor

_FILE_NAME_ERRORS = sys.getfilesystemencodeerrors()  # a name that is not valid text becomes the bytes on the disk


@dataclass(frozen=True)
class ImageAnswer:
    """The answer to one image and where it is from; ``frame`` and ``time`` are those of a frame of a video."""

    path: str
    answer: Answer
    frame: int | None = None
    time: float | None = None
    frozen: str | None = None  # the frozen model's label, where it was compared; not written
    logits: str | None = None  # all logits in half precision, relative to the largest, in base64; see ``taught.py``

    @property
    def label(self) -> str | None:
        """The most probable class, or "unknown"; None for an error."""
        return self.answer.text

    @property
    def probability(self) -> float | None:
        """The probability of the most probable class; None for an error."""
        return self.answer.probability

    @property
    def top(self) -> Ranking:
        """The most probable classes with their probabilities."""
        return self.answer.top

    @property
    def error(self) -> str | None:
        """The reason why there is no label."""
        return self.answer.error


def pack_logits(logits: Tensor) -> str:
    """Return logits [C] as text: half precision, relative to the largest one, in base64."""
    relative = (logits.detach().float() - logits.max()).clamp(min=-60_000).half().cpu().numpy()
    return base64.b64encode(relative.astype("<f2").tobytes()).decode()


def unpack_logits(text: str) -> NDArray[np.float32]:
    """Return logits [C] from a text of ``pack_logits``."""
    return np.frombuffer(base64.b64decode(text), "<f2").astype(np.float32)


class FinishedLine(NamedTuple):
    """The part of a line that a resumed run needs; a label of None is an error."""

    path: str
    frame: int | None
    label: str | None


def print_answers(answers: Sequence[ImageAnswer]) -> None:
    """Print a line of JSON per answer, in UTF-8, and flush, so that the next program in the pipe can begin."""
    print_bytes(b"".join(map(format_json, answers)))


def print_bytes(content: bytes) -> None:
    """Write finished lines to standard output and flush."""
    if sys.stdout is None:
        raise LmrError("There is no standard output to write to; give a file with --out.")
    try:
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.flush()
            _write_all(sys.stdout.buffer, content)
        else:  # a notebook's output takes text only
            sys.stdout.write(content.decode())
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LmrError(f"Cannot write to standard output: {error.strerror or error}; use --out.") from error


class ResultFile:
    """A .jsonl or .csv file whose first ``offset`` bytes, with the digest ``digest``, are finished."""

    def __init__(self, path: str | os.PathLike[str], columns: int) -> None:
        self.path, self.columns = Path(path), columns
        self.is_csv = self.path.suffix.lower() == ".csv"
        if not self.is_csv and self.path.suffix.lower() != ".jsonl":
            raise LmrError(f"Expected an output file that ends in .jsonl or .csv, got {str(path)!r}; rename it.")
        self.offset = 0
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self._created = False

    @property
    def digest(self) -> str:
        """The SHA-256 of the finished part."""
        return self._hash.hexdigest()

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to lose: no file, or an empty one."""
        return not self.path.exists() or (self.path.is_file() and self.path.stat().st_size == 0)

    def open(self) -> None:
        """Open the file for appending, without changing its content."""
        try:
            self._created = not self.path.exists()
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (close() closes it)
        except OSError as error:
            raise LmrError(f"Cannot write {str(self.path)!r}: {error.strerror or error}.") from error

    def recover(self, offset: int, digest: str) -> list[FinishedLine]:
        """Take the first ``offset`` bytes as finished and return their lines."""
        content = b"" if self.is_empty else self.path.read_bytes()[:offset]
        read = hashlib.sha256(content)
        if len(content) < offset or read.hexdigest() != digest:
            raise LmrError(
                f"{str(self.path)!r} has changed since the run ended: the file was cut, edited or replaced. Restore it "
                "to resume, or start again with --overwrite."
            )
        self.offset, self._hash = offset, read
        return self._parse(content)

    def read_all(self) -> list[FinishedLine]:
        """Return the lines of a complete file."""
        return self._parse(self.path.read_bytes())

    def _parse(self, content: bytes) -> list[FinishedLine]:
        text = content.decode("utf-8", _FILE_NAME_ERRORS)
        if not self.is_csv:
            records = [json.loads(line) for line in text.split("\n") if line]
            return [
                FinishedLine(line["path"], line.get("frame"), None if "error" in line else line["label"] or UNKNOWN)
                for line in records
            ]
        return [
            FinishedLine(
                read_cell(row["path"]),
                int(row["frame"]) if row["frame"] else None,
                None if row["error"] else read_cell(row["label"]),
            )
            for row in csv.DictReader(io.StringIO(text, newline=""))
        ]

    def cut(self) -> None:
        """Drop everything after the finished part."""
        assert self._file is not None
        try:
            self._file.truncate(self.offset)
        except OSError as error:
            raise LmrError(f"Cannot shorten {str(self.path)!r}: {error.strerror or error}.") from error

    def append(self, answers: Sequence[ImageAnswer]) -> None:
        """Write the answers and flush them to the disk; only then they count as finished."""
        assert self._file is not None
        content = b"".join(format_csv(a, self.columns) if self.is_csv else format_json(a) for a in answers)
        if self.is_csv and self.offset == 0:
            best = [f"top{k}" for k in range(1, self.columns + 1)]
            content = _join_row(["path", "frame", "time", "label", "probability", "known", *best, "error"]) + content
        try:
            _write_all(self._file, content)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LmrError(f"Cannot write {str(self.path)!r}: {error.strerror or error}.") from error
        self.offset += len(content)
        self._hash.update(content)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Close the file, and remove it if it was created here and is empty."""
        self.close()
        if self._created and self.is_empty:
            self.path.unlink(missing_ok=True)


def format_json(answer: ImageAnswer) -> bytes:
    """Return one line of JSON. Only a file name that is not valid text is escaped."""
    record: dict[str, object] = {"path": answer.path}
    if answer.frame is not None:
        record |= {"frame": answer.frame, "time": answer.time}
    record |= answer.answer.format()
    if answer.logits is not None:
        record |= {"plain": answer.frozen, "logits": answer.logits}
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record).encode() + b"\n"


def format_csv(answer: ImageAnswer, columns: int) -> bytes:
    """Return one row: path, frame, time, label, probability, known, ``columns`` times label:probability, error."""
    place = [answer.path, *("" if value is None else str(value) for value in (answer.frame, answer.time))]
    if answer.error is not None:
        return _join_row([*place, *[""] * (columns + 3), answer.error])
    best = [f"{label}:{probability:.6f}" for label, probability in answer.answer.top]
    numbers = ["" if one is None else f"{one:.6f}" for one in (answer.answer.probability, answer.answer.known)]
    return _join_row([*place, answer.label or "", *numbers, *best, ""])


def _join_row(cells: Sequence[str]) -> bytes:
    """Return one row that ends in a line feed, without formulas for a spreadsheet."""
    # The writer quotes the characters of its line terminator, so it is given both: Python before 3.13 would leave a
    # carriage return unquoted otherwise.
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(map(write_cell, cells))
    return (text.getvalue().removesuffix("\r\n") + "\n").encode("utf-8", _FILE_NAME_ERRORS)


def _write_all(file: IO[bytes], content: bytes) -> None:
    """Write until nothing is left: an unbuffered file may take only a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


@dataclass
class RunTally:
    """The answers of this command, without those of earlier commands."""

    images: int = 0
    failed: int = 0  # images without a label
    first_error: str | None = None
    watches: Counter[str] = field(default_factory=Counter)  # events of the watch -> streams that had them
    suited: str = ""  # the values that were chosen for the number of classes
    precision: str | None = None  # what the type "auto" has found out
    rests: bool = False  # the method answers as the frozen model until it suffers
    adapted: int = 0  # images that such a method answered adapted
    first_adapted: int | None = None  # the number of the first of them in the output of one stream
    compared: int = 0  # answers that were compared with the frozen model's
    differing: int = 0  # those of them with another label
    sureness: float = 0.0  # the sum of the probabilities of all labels
    looks: list[int] = field(default_factory=list)  # of readable images: see ``judge_look``
    classes: int = 0  # that the model chooses from
    reused: int = 0  # repeated frames that took the answer to the one before

    def add(self, other: RunTally) -> None:
        """Add the tally of another stream."""
        for key in ("images", "failed", "watches", "adapted", "compared", "differing", "sureness", "looks", "reused"):
            setattr(self, key, getattr(self, key) + getattr(other, key))
        for key in ("first_error", "suited", "precision", "rests", "classes"):
            setattr(self, key, getattr(self, key) or getattr(other, key))


@dataclass(frozen=True)
class PredictSummary:
    """The result of a run: the answers in the whole output, earlier runs included, and those of this command."""

    answers: Counter[str | None]  # images per predicted class; those of None have an error
    tally: RunTally
    seconds: float  # of this run, without loading the model
    out: AnyPath | None
    state: Path | None
    watch: str | None = None  # events of the watch
    biased: bool = False  # the method has corrected its own bias
    taught: str | None = None  # what labels have changed, and the accuracy that they show
    adapted: int = 0  # answers of an adapted model in the whole output
    passes: int = 1  # over the images

    @property
    def images(self) -> int:
        """The number of images in the output."""
        return self.answers.total()

    @property
    def errors(self) -> int:
        """The number of images without a label."""
        return self.answers[None]

    @property
    def earlier(self) -> int:
        """The number of images that were finished before this run."""
        return self.images - self.tally.images

    @property
    def counts(self) -> dict[str, int]:
        """The number of images per predicted class."""
        return {label: count for label, count in self.answers.items() if label is not None}

    @property
    def complaint(self) -> str | None:
        """An error message if every image of this run or of the whole output failed, otherwise None.

        A run that finished without labelling any image must not look successful to a calling script.
        """
        new, failed = self.tally.images, self.tally.failed
        if not (new and failed == new) and not (self.images and self.errors == self.images):
            return None
        first = f" The first error: {self.tally.first_error}" if self.tally.first_error else ""
        again = f" Then label them again with --overwrite; {str(self.out)!r} holds the errors." if self.out else ""
        return f"None of the {new or self.images} images could be labelled.{first}{again}"

    @property
    def most(self) -> tuple[str, float]:
        """The most frequent class of the answers and its share; an empty one if there are none."""
        known = Counter({label: count for label, count in self.counts.items() if label != UNKNOWN})
        return next(((label, count / known.total()) for label, count in known.most_common(1)), ("", 0.0))

    def __str__(self) -> str:
        label, share = self.most
        tally = self.tally
        parts = [
            f"{self.images} images" + (f" ({self.earlier} of them finished earlier)" if self.earlier else ""),
            f"{self.answers[UNKNOWN]} unknown" if self.answers[UNKNOWN] else "",
            f"{self.errors} with an error",
            f"{self.passes * self.tally.images / max(self.seconds, 1e-9):.1f} images/s"
            + (" in two passes" if self.passes == 2 else ""),
            f"{tally.reused} frames repeated the one before and took its answer" if tally.reused else "",
            f"most predicted {label!r} ({share:.1%})" if label else "",  # near 1 adaptation may have collapsed
            f"{tally.differing} of {tally.compared} compared answers changed" if tally.compared else "",
            tally.suited,
            f"results in {self.out}" if self.out else "results on standard output",
            f"state in {self.state}" if self.state else "",
        ]
        return ", ".join(filter(None, parts)) + (f". {self.watch}" if self.watch else "")
