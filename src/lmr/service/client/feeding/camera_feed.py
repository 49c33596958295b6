"""Feed the frames of a source to a stream of the service: in order, each applied once, also over restarts."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lmr.core.errors import LmrError
from lmr.core.files import hold_lock
from lmr.service.client.client_errors import ServiceError
from lmr.service.client.feeding.camera_position import CameraPosition, read_position, write_position
from lmr.service.client.feeding.camera_sources import CameraFrame, CameraSource, Say
from lmr.service.client.service_answer import ServiceAnswer
from lmr.service.client.service_client import Client

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REFUSED_IMAGES = (413, 415, 422)  # the service will not take these images, today or tomorrow; others may be fine
LINGER_SECONDS = 1.0  # an incomplete batch is sent when no frame came for so long
JPEG_QUALITY = 95


@dataclass
class FeedSummary:
    """What a feeder did."""

    frames: int = 0  # answered
    requests: int = 0
    refused: int = 0  # frames that the service would not take
    repeated: int = 0  # requests that an earlier attempt had already applied
    last: ServiceAnswer | None = None

    def __str__(self) -> str:
        words = f"{self.frames} frames in {self.requests} requests"
        if self.repeated:
            words += f", {self.repeated} of them already applied"
        if self.refused:
            words += f", {self.refused} frames refused"
        if self.last is not None:
            first = self.last.answers[-1]
            answer = first.error or f"{first.label} {first.probability or 0:.2f}"
            words += f"; step {self.last.seq}, health {self.last.adaptation.get('health', '?')}, last answer: {answer}"
        return words


class CameraFeed:
    """A source, a client and a stream. ``fps`` bounds the frames sent per second."""

    def __init__(
        self,
        source: CameraSource,
        client: Client,
        stream: str,
        *,
        batch: int = 1,
        fps: float | None = None,
        mode: str = "adapt",
        lossless: bool = False,
        position: Path | None = None,
        out: IO[str] | None = None,
        say: Say = lambda words: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if batch < 1 or not (fps is None or 0 < fps < math.inf):
            raise LmrError(f"Expected at least one frame a request and a positive rate, got {batch} and {fps}.")
        self._source, self._client, self._stream, self._batch = source, client, stream, batch
        self._gap = 0.0 if fps is None or not source.replays else 1.0 / fps  # a live source drops frames instead
        self._mode, self._lossless, self._path, self._out, self._say = mode, lossless, position, out, say
        self._clock, self._sleep = clock, sleep
        self.summary = FeedSummary()

    def run(
        self, is_stopped: Callable[[], bool] = lambda: False, progress: Callable[[FeedSummary], object] = lambda s: None
    ) -> FeedSummary:
        """Send frames until the source ends; safe to interrupt at any moment."""
        with ExitStack() as stack:
            if self._path is not None:
                locked = f"Another process uses the position file {str(self._path)!r}; give this camera another one."
                stack.enter_context(hold_lock(f"{self._path}.lock", locked))
                position = read_position(self._path, self._source.name, self._stream)
            else:
                position = CameraPosition(self._source.name, self._stream)
            if position.pending and not self._source.replays:
                position = position.finish(0)  # these frames are gone
            for frames in self._group(position, is_stopped):
                position = self._send(position, frames)
                progress(self.summary)
        return self.summary

    def _group(self, position: CameraPosition, is_stopped: Callable[[], bool]) -> Iterator[list[CameraFrame]]:
        """Frames request by request. The first is the one that was pending, with exactly its frames."""
        frames = self._pace(self._source.read(position.last, is_stopped))
        if position.pending:
            again = list(_take_pending(frames, position.pending))
            found = [frame for frame in again if frame.place in position.pending]
            if [frame.place for frame in found] == list(position.pending):
                yield found
            else:
                self._say(
                    f"The frames {position.pending[0]} to {position.pending[-1]} were sent before the interruption and "
                    "are no longer all there, so they are not sent again; the service may or may not have used them."
                )
            frames = chain((frame for frame in again if frame not in found), frames)
        batch: list[CameraFrame] = []
        since = self._clock()
        for frame in frames:
            if frame is not None:
                batch.append(frame)
                since = self._clock()
            if len(batch) == self._batch or (batch and self._clock() - since >= LINGER_SECONDS):
                yield batch
                batch = []
        if batch:
            yield batch

    def _pace(self, frames: Iterator[CameraFrame | None]) -> Iterator[CameraFrame | None]:
        due = self._clock()
        for frame in frames:
            if frame is not None and self._gap:
                self._sleep(max(0.0, due - self._clock()))
                due = max(due, self._clock() - self._gap) + self._gap
            yield frame

    def _send(self, position: CameraPosition, frames: Sequence[CameraFrame]) -> CameraPosition:
        position = position.announce([frame.place for frame in frames])
        self._keep(position)
        images = [frame.image if isinstance(frame.image, Path) else self._encode(frame.image) for frame in frames]
        answered = len(frames)
        try:
            answer = self._client.step(self._stream, images, mode=self._mode, key=position.key)
        except ServiceError as error:
            if error.status not in REFUSED_IMAGES or error.code == "key_reused":
                raise
            self._say(f"{error} (frames {frames[0].place} to {frames[-1].place})")
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

    def _encode(self, pixels: NDArray[np.uint8]) -> bytes:
        """The same pixels always give the same bytes, so that a request can be sent again after a restart."""
        from PIL import Image

        file, image = io.BytesIO(), Image.fromarray(pixels)
        if self._lossless:
            image.save(file, "PNG", compress_level=1)
        else:
            image.save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return file.getvalue()

    def _keep(self, position: CameraPosition) -> None:
        if self._path is not None:
            write_position(self._path, position)

    def _write(self, frames: Sequence[CameraFrame], answer: ServiceAnswer) -> None:
        """A line for each frame."""
        if self._out is None:
            return
        for frame, one in zip(frames, answer.answers, strict=True):
            facts = {"frame": frame.place, "seq": answer.seq, "label": one.label, "probability": one.probability}
            self._out.write(json.dumps({**facts, "error": one.error} if one.error else facts) + "\n")
        self._out.flush()


def _take_pending(frames: Iterator[CameraFrame | None], pending: Sequence[str]) -> Iterator[CameraFrame]:
    """Frames up to the last pending one, or until the source has none for now."""
    for frame in frames:
        if frame is None:
            return
        yield frame
        if frame.place == pending[-1]:
            return
