"""The results of images: as lines on standard output, or in a file that is checked and cut back after a crash."""

from __future__ import annotations

import csv
import enum
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from lmr.core.errors import LmrError
from lmr.core.files import acquire_lock

_FILE_NAME_ERRORS = sys.getfilesystemencodeerrors()  # a name that is not valid text becomes the bytes on the disk


class ErrorCause(enum.Enum):
    """Why an image has no label."""

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

    @property
    def label(self) -> str | None:
        """The most probable class."""
        return self.top[0][0] if self.top else None


class FinishedLine(NamedTuple):
    """What a resumed run needs to know of a line; a label of None is an error."""

    path: str
    frame: int | None
    label: str | None


class StandardOutput:
    """Standard output: JSON lines in UTF-8, whatever the terminal's own encoding."""

    def append(self, answers: Sequence[ImageAnswer]) -> None:
        """Print one line per answer and flush, so that the next program in the pipe can begin."""
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
    """A .jsonl or .csv file of which the first ``offset`` bytes, with the digest ``digest``, are finished.

    A .csv file has columns for the number and the time of a frame if ``frames``.
    """

    def __init__(self, path: str | os.PathLike[str], columns: int) -> None:
        self.path = Path(path)
        self.columns = columns
        self.frames = False
        self.is_csv = self.path.suffix.lower() == ".csv"
        if not self.is_csv and self.path.suffix.lower() != ".jsonl":
            raise LmrError(f"Expected an output file that ends in .jsonl or .csv, got {str(path)!r}; rename it.")
        self.offset = 0
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self._created = False

    @property
    def digest(self) -> str:
        """SHA-256 of the finished part."""
        return self._hash.hexdigest()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to lose: no file, or an empty one."""
        return not self.path.exists() or (self.path.is_file() and self.path.stat().st_size == 0)

    def open(self) -> None:
        """Open for appending, without changing the content; a second run on the same file is refused."""
        if self._file is not None:
            return
        try:
            self._created = not self.path.exists()
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (close() closes it)
        except OSError as error:
            raise LmrError(f"Cannot write {str(self.path)!r}: {error.strerror or error}.") from error
        if not acquire_lock(self._file):
            self.close()
            raise LmrError(f"Another run is writing {str(self.path)!r}; wait for it, or give another --out.")

    def recover(self, offset: int, digest: str) -> list[FinishedLine]:
        """Take the first ``offset`` bytes as finished; gives their lines."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < offset:
            raise LmrError(
                f"{str(self.path)!r} has {size} bytes, but {offset} were finished when the run ended: the file was cut "
                "or replaced. Restore it to resume, or start again with --overwrite."
            )
        read = hashlib.sha256()
        for line in self._read_lines(offset):
            read.update(line)
        if read.hexdigest() != digest:
            raise LmrError(
                f"{str(self.path)!r} has changed since the run ended: the file was edited or replaced. Restore it to "
                "resume, or start again with --overwrite."
            )
        self.offset, self._hash = offset, read
        return self._parse(offset)

    def read_all(self) -> list[FinishedLine]:
        """The lines of a file that is complete."""
        return self._parse(self.path.stat().st_size)

    def _parse(self, offset: int) -> list[FinishedLine]:
        """The lines in the first ``offset`` bytes."""
        texts = (line.decode("utf-8", _FILE_NAME_ERRORS) for line in self._read_lines(offset))
        if not self.is_csv:
            records = map(json.loads, texts)
            return [FinishedLine(record["path"], record.get("frame"), record.get("label")) for record in records]
        try:
            return self._recover_rows(csv.DictReader(texts))
        except csv.Error as error:  # lmr 0.2 did not quote a carriage return
            raise LmrError(f"Cannot read {str(self.path)!r} back ({error}); start again with --overwrite.") from error

    def _recover_rows(self, rows: csv.DictReader[str]) -> list[FinishedLine]:
        names = rows.fieldnames
        if names is not None:  # there is a header: it decides for the lines that follow
            if self.frames and "frame" not in names:
                raise LmrError(
                    f"{str(self.path)!r} was begun without videos and has no columns for frames; give the videos "
                    "another --out, or start again with --overwrite."
                )
            self.frames = "frame" in names
        return [
            FinishedLine(
                row["path"],
                int(row["frame"]) if row.get("frame") else None,
                None if row["error"] else row["label"],
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
            names = ["path", *frames, "label", "probability", *_name_columns(self.columns), "error"]
            content = _join_row(names) + content
        try:
            _write_all(self._file, content)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LmrError(f"Cannot write {str(self.path)!r}: {error.strerror or error}.") from error
        self.offset += len(content)
        self._hash.update(content)

    def close(self) -> None:
        """Close the file and release the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Close, and remove the file if it was created here and is empty."""
        self.close()
        if self._created and self.is_empty:
            self.path.unlink(missing_ok=True)

    def _read_lines(self, offset: int) -> Iterator[bytes]:
        if offset == 0:
            return
        with open(self.path, "rb") as file:
            while offset > 0 and (line := file.readline(offset)):
                offset -= len(line)
                yield line


def format_json(answer: ImageAnswer) -> bytes:
    """One line of JSON. Names stay readable; only a file name that is not valid text is escaped."""
    record: dict[str, object] = {"path": answer.path}
    if answer.frame is not None:
        record |= {"frame": answer.frame, "time": answer.time}
    if answer.error is not None:
        record["error"] = answer.error
    else:
        record |= {"label": answer.label, "probability": answer.top[0][1], "top": answer.top}
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record).encode() + b"\n"


def format_csv(answer: ImageAnswer, columns: int, frames: bool = False) -> bytes:
    """One row: path, frame and time if ``frames``, label, probability, ``columns`` times label:probability, error.

    Cells are written as they are. A spreadsheet may read a file name or class name that begins with ``=``, ``+``,
    ``-`` or ``@`` as a formula; import the file with these columns set to text if its names come from strangers.
    """
    place = [answer.path]
    if frames:
        place += ["" if value is None else str(value) for value in (answer.frame, answer.time)]
    if answer.error is not None:
        return _join_row([*place, *[""] * (columns + 2), answer.error])
    best = [f"{label}:{probability:.6f}" for label, probability in answer.top]
    return _join_row([*place, answer.top[0][0], f"{answer.top[0][1]:.6f}", *best, ""])


def _join_row(cells: Sequence[str]) -> bytes:
    """One row that ends in a line feed.

    The writer quotes the characters of its line terminator, so it is given both; Python before 3.13 would leave a
    carriage return unquoted otherwise, and no reader could tell it from the end of a row.
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return (text.getvalue().removesuffix("\r\n") + "\n").encode("utf-8", _FILE_NAME_ERRORS)


def _name_columns(columns: int) -> list[str]:
    return [f"top{k}" for k in range(1, columns + 1)]


def _write_all(file: IO[bytes], content: bytes) -> None:
    """Write until nothing is left: an unbuffered file may take only a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
