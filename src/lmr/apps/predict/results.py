"""The results of ``lmr predict``: lines on standard output, a file that can be resumed after a crash, and a summary."""

from __future__ import annotations

import csv
import enum
import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from lmr.apps.options import AnyPath
from lmr.core.errors import LmrError
from lmr.core.foreign_text import read_cell, write_cell
from lmr.core.known import UNKNOWN

_FILE_NAME_ERRORS = sys.getfilesystemencodeerrors()  # a name that is not valid text becomes the bytes on the disk


class ErrorCause(enum.Enum):
    """The reason why an image has no label."""

    UNREADABLE = enum.auto()  # the file is missing, damaged or not an image
    UNSUITABLE = enum.auto()  # the image cannot be turned into an input of the model
    NOT_FINITE = enum.auto()  # the model or its adapted state answers with NaN or infinity


@dataclass(frozen=True)
class ImageAnswer:
    """The result of one image: its best classes with their probabilities, or an error message and its cause.

    ``frame`` and ``time`` are those of a frame of a video.
    """

    path: str
    top: Sequence[tuple[str, float]] = ()
    error: str | None = None
    cause: ErrorCause | None = None
    frame: int | None = None
    time: float | None = None
    frozen: str | None = None  # the frozen model's label, where it was compared; not written
    known: float | None = None  # the score that the image belongs to one of the classes
    unknown: bool = False  # it belongs to none

    @property
    def label(self) -> str | None:
        """The most probable class, or "unknown"; None for an error."""
        return UNKNOWN if self.unknown else self.top[0][0] if self.top else None


class FinishedLine(NamedTuple):
    """The part of a line that a resumed run needs; a label of None is an error."""

    path: str
    frame: int | None
    label: str | None


def print_answers(answers: Sequence[ImageAnswer]) -> None:
    """Print a line of JSON per answer, in UTF-8, and flush, so that the next program in the pipe can begin."""
    content = b"".join(map(format_json, answers))
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
    """A .jsonl or .csv file whose first ``offset`` bytes, with the digest ``digest``, are finished.

    With ``frames``, a .csv file has columns for the number and the time of a frame.
    """

    def __init__(self, path: str | os.PathLike[str], columns: int, frames: bool = False) -> None:
        self.path = Path(path)
        self.columns, self.frames = columns, frames
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
        if self._file is not None:
            return
        try:
            self._created = not self.path.exists()
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (close() closes it)
        except OSError as error:
            raise LmrError(f"Cannot write {str(self.path)!r}: {error.strerror or error}.") from error

    def recover(self, offset: int, digest: str) -> list[FinishedLine]:
        """Take the first ``offset`` bytes as finished and return their lines."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < offset:
            raise LmrError(
                f"{str(self.path)!r} has {size} bytes, but {offset} were finished when the run ended: the file was cut "
                "or replaced. Restore it to resume, or start again with --overwrite."
            )
        content = self._read(offset)
        read = hashlib.sha256(content)
        if read.hexdigest() != digest:
            raise LmrError(
                f"{str(self.path)!r} has changed since the run ended: the file was edited or replaced. Restore it to "
                "resume, or start again with --overwrite."
            )
        self.offset, self._hash = offset, read
        return self._parse(content)

    def read_all(self) -> list[FinishedLine]:
        """Return the lines of a complete file."""
        return self._parse(self._read(-1))

    def _read(self, size: int) -> bytes:
        """Return the first ``size`` bytes; all of them for -1."""
        if size == 0:  # there need not be a file
            return b""
        with open(self.path, "rb") as file:
            return file.read(size)

    def _parse(self, content: bytes) -> list[FinishedLine]:
        text = content.decode("utf-8", _FILE_NAME_ERRORS)
        if not self.is_csv:
            records = [json.loads(line) for line in text.split("\n") if line]
            return [
                FinishedLine(line["path"], line.get("frame"), None if "error" in line else line["label"] or UNKNOWN)
                for line in records
            ]
        rows = csv.DictReader(io.StringIO(text, newline=""))
        names = rows.fieldnames
        if names is not None:  # there is a header: it decides for the lines that follow
            if self.frames and "frame" not in names:
                raise LmrError(
                    f"{str(self.path)!r} was begun without videos and has no columns for frames; give the videos "
                    "another --out, or start again with --overwrite."
                )
            self.frames = "frame" in names
            if "known" not in names:
                raise LmrError(f"{str(self.path)!r} has no column 'known'; start again with --overwrite.")
        return [
            FinishedLine(
                read_cell(row["path"]),
                int(row["frame"]) if row.get("frame") else None,
                None if row["error"] else read_cell(row["label"]),
            )
            for row in rows
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
        content = b"".join(format_csv(a, self.columns, self.frames) if self.is_csv else format_json(a) for a in answers)
        if self.is_csv and self.offset == 0:
            frames = ["frame", "time"] * self.frames
            best = [f"top{k}" for k in range(1, self.columns + 1)]
            names = ["path", *frames, "label", "probability", "known", *best, "error"]
            content = _join_row(names) + content
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
    if answer.error is not None:
        record["error"] = answer.error
    else:
        label = None if answer.unknown else answer.label
        record |= {"label": label, "probability": answer.top[0][1], "known": answer.known, "top": answer.top}
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record).encode() + b"\n"


def format_csv(answer: ImageAnswer, columns: int, frames: bool = False) -> bytes:
    """Return one row: path, frame and time if ``frames``, label, probability, known, ``columns`` best classes, error.

    The best classes are label:probability.

    A cell that begins with ``=``, ``+``, ``-`` or ``@`` gets a quote before it: a spreadsheet would take a name of a
    file or class as a formula.
    """
    place = [answer.path]
    if frames:
        place += ["" if value is None else str(value) for value in (answer.frame, answer.time)]
    if answer.error is not None:
        return _join_row([*place, *[""] * (columns + 3), answer.error])
    best = [f"{label}:{probability:.6f}" for label, probability in answer.top]
    known = "" if answer.known is None else f"{answer.known:.6f}"
    return _join_row([*place, answer.label or "", f"{answer.top[0][1]:.6f}", known, *best, ""])


def _join_row(cells: Sequence[str]) -> bytes:
    """Return one row that ends in a line feed.

    The writer quotes the characters of its line terminator, so it is given both; Python before 3.13 would leave a
    carriage return unquoted otherwise, and no reader could tell it from the end of a row.
    """
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
    causes: Counter[ErrorCause] = field(default_factory=Counter)
    first_error: str | None = None
    watches: Counter[str] = field(default_factory=Counter)  # events of the watch -> streams that had them
    suited: str = ""  # the values that were chosen for the number of classes
    rests: bool = False  # the method answers as the frozen model until the images change
    adapted: int = 0  # images that such a method answered adapted
    drifted: int = 0  # finished streams with such images
    first_adapted: int | None = None  # the number of the first of them in the output of one stream
    compared: int = 0  # answers that were compared with the frozen model's
    differing: int = 0  # those of them with another label

    def add(self, other: RunTally) -> None:
        """Add the tally of another run."""
        for key in ("images", "causes", "watches", "adapted", "drifted", "compared", "differing"):
            setattr(self, key, getattr(self, key) + getattr(other, key))
        for key in ("first_error", "suited", "rests"):
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
        new, failed = self.tally.images, self.tally.causes.total()
        if not (new and failed == new) and not (self.images and self.errors == self.images):
            return None
        parts = [f"None of the {new or self.images} images could be labelled."]
        if self.tally.first_error is not None:
            parts.append(f"The first error: {self.tally.first_error}")
        parts.append(self._advise())
        if self.out is not None:
            parts.append(f"Then label them again with --overwrite; {str(self.out)!r} holds the errors.")
        return " ".join(parts)

    @property
    def adaptation(self) -> str | None:
        """A sentence on when the method adapted, for one that does not always; otherwise None."""
        tally, answered = self.tally, self.tally.images - self.tally.causes.total()
        if not tally.rests or not answered:
            return None
        if not tally.adapted:
            return (
                f"The images did not change: all {answered} answers are the frozen model's. If they are bad from the "
                "first on, with about as many of each class, give --prior uniform."
            )
        if tally.adapted == answered:
            return f"Adapted on all {answered} images."
        since = f" of {tally.drifted} streams"
        if tally.first_adapted is not None:
            since = f", from image {tally.first_adapted} on"
        return f"Adapted on {tally.adapted} of {answered} images, after a change{since}."

    @property
    def comparison(self) -> str | None:
        """A sentence on the share of answers that differ from the frozen model's; None if none was compared."""
        tally = self.tally
        if not tally.compared:
            return None
        share = 100 * tally.differing / tally.compared
        return (
            f"Of {tally.compared} answers that were compared, {tally.differing} ({share:.1f} %) differ from the frozen "
            "model's. To see which of the two is right more often, give images with labels to 'lmr check'."
        )

    def _advise(self) -> str:
        """Return what to try when every image failed, by the most frequent cause."""
        ((cause, _),) = self.tally.causes.most_common(1) or [(ErrorCause.UNREADABLE, 0)]
        if cause is ErrorCause.UNREADABLE:
            return "Check that the files are complete images."
        if cause is ErrorCause.NOT_FINITE and self.state is not None:
            return f"The state in {str(self.state)!r} is probably damaged; give another --state, or remove the file."
        return "Check the model with 'lmr doctor'."

    def __str__(self) -> str:
        known = Counter({label: count for label, count in self.counts.items() if label != UNKNOWN})
        most = "".join(f"most predicted {label!r} ({n / known.total():.1%})" for label, n in known.most_common(1))
        parts = [
            f"{self.images} images" + (f" ({self.earlier} of them finished earlier)" if self.earlier else ""),
            f"{self.answers[UNKNOWN]} unknown" if self.answers[UNKNOWN] else "",
            f"{self.errors} with an error",
            f"{self.tally.images / max(self.seconds, 1e-9):.1f} images/s",
            most,  # a share near 1 may mean that adaptation collapsed
            self.tally.suited,
            f"results in {self.out}" if self.out else "results on standard output",
            f"state in {self.state}" if self.state else "",
        ]
        return ", ".join(filter(None, parts)) + (f". {self.watch}" if self.watch else "")
