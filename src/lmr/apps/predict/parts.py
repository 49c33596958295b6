"""StreamParts: the work folder of a run over streams, beside its output, at a path or at an address."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from lmr.apps.options import AnyPath
from lmr.apps.predict.results import FinishedLine, ResultFile
from lmr.core.errors import LmrError
from lmr.core.files import replace_durably
from lmr.images.remote import explain_error, find_system, is_url

RUN_FILE = "run.json"


class StreamParts:
    """The work folder OUT.parts: answers and progress of each stream, until all are merged into ``out``.

    A stream that is not finished has NUMBER.part.jsonl and NUMBER.state, as a run of its own would; when it is
    finished, it has NUMBER.jsonl. Every file is replaced as a whole, so two processes at the same stream do no harm.
    """

    def __init__(self, out: AnyPath) -> None:
        self.out = os.fspath(out)
        self.folder = f"{self.out}.parts"
        self.suffix = Path(self.out).suffix
        self._system, self._root = find_system(self.folder)

    @property
    def exists(self) -> bool:
        """True if there is a run to continue."""
        return self.read(RUN_FILE) is not None

    @property
    def is_output_empty(self) -> bool:
        """True if ``out`` holds nothing that could be lost."""
        system, path = find_system(self.out)
        with _explain(f"Cannot read {self.out!r}"):
            return not system.exists(path) or system.size(path) == 0

    def begin(self, facts: Mapping[str, str]) -> None:
        """Start a run that is described by ``facts``; the rest of another one is deleted."""
        self.remove()
        with _explain(f"Cannot create the folder {self.folder!r}"):
            self._system.makedirs(self._root)
        self.write(RUN_FILE, json.dumps(dict(facts), indent=1).encode())

    def check(self, facts: Mapping[str, str]) -> None:
        """Refuse to continue a run with other ``facts``."""
        try:
            noted = json.loads(self.read(RUN_FILE) or b"")
            differing = [key for key in facts if noted.get(key) != facts[key]]
        except (ValueError, AttributeError) as error:
            raise LmrError(
                f"{f'{self.folder}/{RUN_FILE}'!r} cannot be read ({error}); start again with --overwrite."
            ) from error
        if differing:
            key = differing[0]
            raise LmrError(
                f"{self.folder!r} holds a run that is not finished and had {key} {noted.get(key)}, not "
                f"{facts[key]}; give the same command to continue it, or start again with --overwrite."
            )

    def answers(self, number: int) -> str:
        """Return the name of the finished answers of a stream."""
        return f"{number:06}{self.suffix}"

    def part(self, number: int) -> str:
        """Return the name of the answers of a stream that is not finished."""
        return f"{number:06}.part{self.suffix}"

    def progress(self, number: int) -> str:
        """Return the name of the state of a stream, which notes how much of its part is finished."""
        return f"{number:06}.state"

    def earlier(self, number: int) -> str:
        """Return the name of a copy of the state of an earlier run, for machines that do not have it."""
        return f"{number:06}.earlier"

    def list_finished(self) -> set[int]:
        """Return the streams that have all their answers."""
        with _explain(f"Cannot list {self.folder!r}"):
            self._system.invalidate_cache()
            names = [path.rpartition("/")[2] for path in self._system.ls(self._root, detail=False)]
        return {int(name[:6]) for name in names if re.fullmatch(rf"\d{{6}}{re.escape(self.suffix)}", name)}

    def finish(self, number: int, keep_state: bool) -> None:
        """Take the part of a stream as its finished answers; for a folder on this machine."""
        folder = Path(self.folder)
        replace_durably(folder / self.part(number), folder / self.answers(number))
        if not keep_state:
            (folder / self.progress(number)).unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file of the folder, None if there is none."""
        with _explain(f"Cannot read {f'{self.folder}/{name}'!r}"):
            try:
                content: bytes = self._system.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the folder, or replace it at once."""
        with _explain(f"Cannot write {f'{self.folder}/{name}'!r}"), replace_file(f"{self.folder}/{name}") as file:
            file.write(content)

    def read_lines(self, number: int) -> list[FinishedLine]:
        """Return the answers of a finished stream."""
        with self._fetch(self.answers(number)) as path:
            return ResultFile(path, 0).read_all()

    def merge(self, numbers: Sequence[int]) -> None:
        """Write all answers to ``out``, stream after stream; a failure leaves ``out`` unchanged."""
        try:
            with replace_file(self.out) as file:
                for place, number in enumerate(numbers):
                    with self._fetch(self.answers(number)) as path, open(path, "rb") as part:
                        if place and self.suffix.lower() == ".csv":
                            part.readline()  # the column names, which the first part has too
                        shutil.copyfileobj(part, file, 1 << 20)
        except OSError as error:
            raise LmrError(
                f"Cannot write {self.out!r}: {explain_error(error)}. Nothing is lost: when there is room, give "
                "the same command again."
            ) from error

    def remove(self) -> None:
        """Delete the folder; the file that says what the run is goes first, so that a half is never continued."""
        with _explain(f"Cannot remove the folder {self.folder!r}"):
            for path in (f"{self._root}/{RUN_FILE}", self._root):
                with contextlib.suppress(FileNotFoundError):
                    self._system.rm(path, recursive=True)

    @contextlib.contextmanager
    def _fetch(self, name: str) -> Iterator[Path]:
        """Yield the path of a file of the folder on this machine: its own, or that of a copy."""
        if not is_url(self.folder):
            yield Path(self.folder) / name
            return
        with tempfile.TemporaryDirectory(prefix="lmr-parts-") as folder:
            (copy := Path(folder) / name).write_bytes(self.read(name) or b"")
            yield copy


@contextlib.contextmanager
def replace_file(place: str) -> Iterator[IO[bytes]]:
    """Yield a new file. At the end of the context it replaces, at once, the one at ``place``, a path or an address."""
    system, path = find_system(place)
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.part"
    try:
        with system.open(temporary, "wb") as file:
            yield file
        if is_url(place):
            system.mv(temporary, path)
        else:
            replace_durably(temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):
            system.rm(temporary)
        raise


@contextlib.contextmanager
def _explain(failed: str) -> Iterator[None]:
    """Turn an error of a file system, each of which has exceptions of its own, into a sentence."""
    try:
        yield
    except Exception as error:
        raise LmrError(f"{failed}: {getattr(error, 'strerror', None) or explain_error(error)}.") from error
