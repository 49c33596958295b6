"""The work folder of a run over many streams: the finished answers of each, its progress, and what the run is.

It lies beside the output, as OUT.parts, until all streams are finished and merged. A stream that is not finished has
NUMBER.part.jsonl and NUMBER.state, as a run of its own would; when it is finished, it has NUMBER.jsonl.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmr.apps.predict.result_file import FinishedLine, ResultFile
from lmr.core.errors import LmrError
from lmr.core.files import replace_durably, sync_folder, write_atomically

RUN_FILE = "run.json"


class StreamParts:
    """Where the answers of each stream are until they are merged into ``out``."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")

    @property
    def exists(self) -> bool:
        """Whether there is a run to continue."""
        return (self.folder / RUN_FILE).exists()

    def begin(self, facts: Mapping[str, str]) -> None:
        """Start a run that is described by ``facts``; what is left of another one is deleted."""
        try:
            self.remove()
            self.folder.mkdir()
        except OSError as error:
            raise LmrError(f"Cannot create the folder {str(self.folder)!r}: {error.strerror or error}.") from error
        write_atomically(self.folder / RUN_FILE, json.dumps(dict(facts), indent=1).encode())
        sync_folder(self.folder.parent)

    def check(self, facts: Mapping[str, str]) -> None:
        """Refuse to continue a run that is not the one of ``facts``."""
        try:
            noted = json.loads((self.folder / RUN_FILE).read_text("utf-8"))
            differing = [key for key in facts if noted.get(key) != facts[key]]
        except (OSError, ValueError, AttributeError) as error:
            raise LmrError(
                f"{str(self.folder / RUN_FILE)!r} cannot be read ({error}); start again with --overwrite."
            ) from error
        if differing:
            key = differing[0]
            raise LmrError(
                f"{str(self.folder)!r} holds a run that is not finished and had {key} {noted.get(key)}, not "
                f"{facts[key]}; give the same command to continue it, or start again with --overwrite."
            )

    def answers(self, number: int) -> Path:
        """The finished answers of a stream."""
        return self.folder / f"{number:06}{self.out.suffix}"

    def part(self, number: int) -> Path:
        """The answers of a stream that is not finished."""
        return self.folder / f"{number:06}.part{self.out.suffix}"

    def progress(self, number: int) -> Path:
        """The state of a stream, with how much of its part is finished."""
        return self.folder / f"{number:06}.state"

    def is_finished(self, number: int) -> bool:
        """Whether a stream has all its answers."""
        return self.answers(number).exists()

    def finish(self, number: int, keep_state: bool) -> None:
        """All answers of a stream are in its part."""
        replace_durably(self.part(number), self.answers(number))
        if not keep_state:
            self.progress(number).unlink(missing_ok=True)

    def extend(self, number: int, offset: int, content: bytes, state: bytes) -> bool:
        """Take over answers of a stream that were written elsewhere, and then the state that counts them.

        False, and nothing changes, if answers before them are missing.
        """
        part = self.part(number)
        try:
            with open(part, "r+b" if part.exists() else "w+b") as file:
                if file.seek(0, os.SEEK_END) < offset:
                    return False
                file.seek(offset)
                file.truncate()
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise LmrError(f"Cannot write {str(part)!r}: {error.strerror or error}.") from error
        write_atomically(self.progress(number), state)
        return True

    def read(self, number: int) -> tuple[bytes, bytes] | None:
        """The part and the progress of a stream that has begun."""
        with contextlib.suppress(FileNotFoundError):
            return self.part(number).read_bytes(), self.progress(number).read_bytes()
        return None

    def read_lines(self, number: int) -> list[FinishedLine]:
        """The answers of a finished stream."""
        return ResultFile(self.answers(number), 0).read_all()

    def merge(self, numbers: Sequence[int]) -> None:
        """Write all answers to ``out``, stream after stream; it is complete or as it was."""
        merged = self.folder / f"merged{self.out.suffix}"
        try:
            with open(merged, "wb") as file:
                for place, number in enumerate(numbers):
                    with open(self.answers(number), "rb") as part:
                        if place and self.out.suffix.lower() == ".csv":
                            part.readline()  # the column names, which the first part has too
                        shutil.copyfileobj(part, file, 1 << 20)
            replace_durably(merged, self.out)
        except OSError as error:
            raise LmrError(
                f"Cannot write {str(self.out)!r}: {error.strerror or error}. Nothing is lost: when there is room, give "
                "the same command again."
            ) from error

    def remove(self) -> None:
        """Delete the folder; the file that says what the run is goes first, so that a half is never continued."""
        (self.folder / RUN_FILE).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)
