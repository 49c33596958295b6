"""``lmr camera``: send the frames of a source to a stream of the service, in order and each applied once."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

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

    An interrupt passes through as KeyboardInterrupt with a sentence that says what was sent.
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
            raise KeyboardInterrupt(f"Interrupted after {feed.summary}.") from None


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
        """Send frames until the source ends."""
        for frames in self._group(is_stopped):
            self._send(frames)
            progress(self.summary)
        return self.summary

    def _group(self, is_stopped: Callable[[], bool]) -> Iterator[list[CameraFrame]]:
        """Yield the frames of each request."""
        batch: list[CameraFrame] = []
        since = self.clock()
        for frame in self._pace(self.source.read(is_stopped)):
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
        gap = 1.0 / self.options.fps if self.options.fps is not None and not self.source.live else 0.0
        due = self.clock()
        for frame in frames:
            if frame is not None and gap:
                self.sleep(max(0.0, due - self.clock()))
                due = max(due, self.clock() - gap) + gap
            yield frame

    def _send(self, frames: Sequence[CameraFrame]) -> None:
        images = [one.image if isinstance(one.image, Path) else _encode(one.image) for one in frames]
        try:
            answer = self.client.step(self.stream, images)
        except ServiceError as error:
            if error.status not in REFUSED_IMAGES:
                raise
            self.report(f"{error} (frames {frames[0].name} to {frames[-1].name})")
            self.summary.refused += len(frames)
        else:
            self._write(frames, answer)
            self.summary.frames += len(frames)
            self.summary.requests += 1
            self.summary.repeated += answer.replayed
            self.summary.last = answer

    def _write(self, frames: Sequence[CameraFrame], answer: ServiceAnswer) -> None:
        if self.out is None:
            return
        for frame, one in zip(frames, answer.answers, strict=True):
            self.out.write(json.dumps({"frame": frame.name, "seq": answer.seq, **one.format()}) + "\n")
        self.out.flush()


def _encode(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels as the content of a JPEG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return file.getvalue()
