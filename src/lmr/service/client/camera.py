"""``lmr camera``: send the frames of a source to a stream of the service, in order and each applied once.

That holds over restarts too. A small position file is written before and after every request: a run that is resumed
sends a pending request again under its key, and the service applies it once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lmr.core.errors import LmrError
from lmr.core.files import hold_lock, write_atomically
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError
from lmr.service.client.sources import CameraFrame, CameraSource, Report, open_source
from lmr.service.engine.requests import ServiceAnswer
from lmr.service.network import read_secret
from lmr.service.settings import CameraOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REFUSED_IMAGES = (413, 415, 422)  # the service will never take these images; others may be fine
LINGER_SECONDS = 1.0  # an incomplete batch is sent when no frame came for this long
PROGRESS_SECONDS = 10.0  # between two lines of progress
JPEG_QUALITY = 95


@dataclass(frozen=True)
class CameraPosition:
    """The ``last`` frame that was answered, and the ``pending`` ones: sent, but not known to be answered.

    ``run`` is part of every key: a new run of the same source has other keys.
    """

    source: str
    stream: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    last: str | None = None
    pending: tuple[str, ...] = ()
    frames: int = 0  # answered so far

    def announce(self, frames: Sequence[str]) -> CameraPosition:
        """Return the position before a request with these frames."""
        return dataclasses.replace(self, pending=tuple(frames))

    def finish(self, answered: int) -> CameraPosition:
        """Return the position after the request with the pending frames."""
        return dataclasses.replace(self, last=self.pending[-1], pending=(), frames=self.frames + answered)

    @property
    def key(self) -> str:
        """The key of the pending request."""
        return hashlib.sha256(json.dumps([self.run, self.stream, *self.pending]).encode()).hexdigest()[:40]


def read_position(path: Path, source: str, stream: str) -> CameraPosition:
    """Return the position in a file, or the start if there is none; LmrError if it is of another source or stream."""
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
    """Write the position so that a kill leaves the old one or the new one."""
    write_atomically(path, (json.dumps(dataclasses.asdict(position)) + "\n").encode())


@dataclass
class FeedSummary:
    """Counts of what a feed did."""

    frames: int = 0  # answered
    requests: int = 0
    refused: int = 0  # frames that the service would not take
    repeated: int = 0  # requests that an earlier attempt had already applied
    last: ServiceAnswer | None = None

    def __str__(self) -> str:
        text = f"{self.frames} frames in {self.requests} requests"
        if self.repeated:
            text += f", {self.repeated} of them already applied"
        if self.refused:
            text += f", {self.refused} frames refused"
        if self.last is not None:
            image = self.last.answers[-1]
            answer = image.error or f"{image.text} {image.probability or 0:.2f}"
            text += f"; step {self.last.seq}, health {self.last.adaptation.get('health', '?')}, last answer: {answer}"
        return text


def run_camera(
    source: str,
    url: str,
    stream: str,
    options: CameraOptions | None = None,
    report: Report = lambda message: None,
) -> FeedSummary:
    """Send the frames of a source to a stream of the service at ``url``; see ``lmr camera --help``.

    An interrupt passes through as KeyboardInterrupt with a sentence that says how to continue.
    """
    options = options or CameraOptions()
    frames = open_source(source, options.every, options.fps, options.idle, report)
    token = None if options.token_file is None else read_secret(options.token_file, "token")
    reported = time.monotonic()

    def show_progress(summary: FeedSummary) -> None:
        nonlocal reported
        if summary.requests == 1 or time.monotonic() - reported >= PROGRESS_SECONDS:
            report(f"{stream}: {summary}")
            reported = time.monotonic()

    with ExitStack() as stack:
        client = stack.enter_context(Client(url, token, patience=options.patience, on_wait=report))
        lines: IO[str] | None = None
        if options.out is not None:
            lines = sys.stdout if options.out == "-" else stack.enter_context(open(options.out, "a", encoding="utf-8"))
        feed = CameraFeed(frames, client, stream, options, lines, report)
        try:
            return feed.run(progress=show_progress)
        except KeyboardInterrupt:
            how = "Give the same command to continue." if options.position else "Without --position it starts again."
            raise KeyboardInterrupt(f"Interrupted after {feed.summary}. {how}") from None


@dataclass
class CameraFeed:
    """A source, a client and a stream. ``out`` gets a JSON line for each frame."""

    source: CameraSource
    client: Client
    stream: str
    options: CameraOptions = field(default_factory=CameraOptions)
    out: IO[str] | None = None
    report: Report = lambda message: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    summary: FeedSummary = field(default_factory=FeedSummary, init=False)

    def run(
        self, is_stopped: Callable[[], bool] = lambda: False, progress: Callable[[FeedSummary], object] = lambda s: None
    ) -> FeedSummary:
        """Send frames until the source ends; safe to interrupt at any moment."""
        with ExitStack() as stack:
            position = CameraPosition(self.source.name, self.stream)
            if self.options.position is not None:
                path = self.options.position
                locked = f"Another process uses the position file {path!r}; give this camera another one."
                stack.enter_context(hold_lock(f"{path}.lock", locked))
                position = read_position(Path(path), self.source.name, self.stream)
            if position.pending and not self.source.replays:
                position = position.finish(0)  # these frames are gone
            for frames in self._group(position, is_stopped):
                position = self._send(position, frames)
                progress(self.summary)
        return self.summary

    def _group(self, position: CameraPosition, is_stopped: Callable[[], bool]) -> Iterator[list[CameraFrame]]:
        """Yield the frames of each request. The first is the one that was pending, with exactly its frames."""
        frames = self._pace(self.source.read(position.last, is_stopped))
        if position.pending:
            again = list(_take_pending(frames, position.pending))
            found = [frame for frame in again if frame.name in position.pending]
            if [frame.name for frame in found] == list(position.pending):
                yield found
            else:
                self.report(
                    f"The frames {position.pending[0]} to {position.pending[-1]} were sent before the interruption, "
                    "and some of them are missing now, so they are not sent again; the service may have used them."
                )
            frames = chain((frame for frame in again if frame not in found), frames)
        batch: list[CameraFrame] = []
        since = self.clock()
        for frame in frames:
            if frame is not None:
                batch.append(frame)
                since = self.clock()
            if len(batch) == self.options.batch or (batch and self.clock() - since >= LINGER_SECONDS):
                yield batch
                batch = []
        if batch:
            yield batch

    def _pace(self, frames: Iterator[CameraFrame | None]) -> Iterator[CameraFrame | None]:
        """Yield at most ``fps`` frames per second; a live source drops frames instead."""
        gap = 1.0 / self.options.fps if self.options.fps is not None and self.source.replays else 0.0
        due = self.clock()
        for frame in frames:
            if frame is not None and gap:
                self.sleep(max(0.0, due - self.clock()))
                due = max(due, self.clock() - gap) + gap
            yield frame

    def _send(self, position: CameraPosition, frames: Sequence[CameraFrame]) -> CameraPosition:
        position = position.announce([frame.name for frame in frames])
        self._keep(position)
        lossless = self.options.lossless  # the client sends pixels as PNG
        images = [one.image if lossless or isinstance(one.image, Path) else _encode(one.image) for one in frames]
        answered = len(frames)
        try:
            answer = self.client.step(self.stream, images, key=position.key)
        except ServiceError as error:
            if error.status not in REFUSED_IMAGES or error.code == "key_reused":
                raise
            self.report(f"{error} (frames {frames[0].name} to {frames[-1].name})")
            answered = 0
            self.summary.refused += len(frames)
        else:
            self._write(frames, answer)
            self.summary.frames += answered
            self.summary.requests += 1
            self.summary.repeated += answer.replayed
            self.summary.last = answer
        position = position.finish(answered)
        self._keep(position)
        return position

    def _keep(self, position: CameraPosition) -> None:
        if self.options.position is not None:
            write_position(Path(self.options.position), position)

    def _write(self, frames: Sequence[CameraFrame], answer: ServiceAnswer) -> None:
        if self.out is None:
            return
        for frame, one in zip(frames, answer.answers, strict=True):
            self.out.write(json.dumps({"frame": frame.name, "seq": answer.seq, **one.format()}) + "\n")
        self.out.flush()


def _encode(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels as JPEG, always as the same bytes, so that a request can be sent again after a restart."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return file.getvalue()


def _take_pending(frames: Iterator[CameraFrame | None], pending: Sequence[str]) -> Iterator[CameraFrame]:
    """Yield frames up to the last pending one, or until the source has none for now."""
    for frame in frames:
        if frame is None:
            return
        yield frame
        if frame.name == pending[-1]:
            return
