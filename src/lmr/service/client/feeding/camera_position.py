"""How far a camera has come: a small file that is written before and after every request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically


@dataclass(frozen=True)
class CameraPosition:
    """The ``last`` frame that was answered, and the ``pending`` ones: sent, but not known to be answered.

    ``run`` is part of every key: a run that is resumed sends a pending request again under its key, so that the
    service applies it once; a new run of the same source has other keys.
    """

    source: str
    stream: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    last: str | None = None
    pending: tuple[str, ...] = ()
    frames: int = 0  # answered so far

    def announce(self, places: Sequence[str]) -> CameraPosition:
        """Before a request with the frames of these places."""
        return dataclasses.replace(self, pending=tuple(places))

    def finish(self, answered: int) -> CameraPosition:
        """After the request with the pending frames."""
        return dataclasses.replace(self, last=self.pending[-1], pending=(), frames=self.frames + answered)

    @property
    def key(self) -> str:
        """The key of the pending request."""
        return hashlib.sha256(json.dumps([self.run, self.stream, *self.pending]).encode()).hexdigest()[:40]


def read_position(path: Path, source: str, stream: str) -> CameraPosition:
    """The position in a file, or the beginning if there is none; LmrError if it is of another source or stream."""
    if not path.exists():
        return CameraPosition(source, stream)
    try:
        content = json.loads(path.read_text("utf-8"))
        found = CameraPosition(**{**content, "pending": tuple(content["pending"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LmrError(
            f"Cannot read the position in {str(path)!r} ({error}); give another file, or delete it."
        ) from error
    if (found.source, found.stream) != (source, stream):
        raise LmrError(
            f"The position in {str(path)!r} is that of {found.source!r} as stream {found.stream!r}, not of {source!r} "
            f"as {stream!r}; give another file, or delete it."
        )
    return found


def write_position(path: Path, position: CameraPosition) -> None:
    """Write it so that a kill leaves the old one or the new one."""
    write_atomically(path, (json.dumps(dataclasses.asdict(position)) + "\n").encode())
