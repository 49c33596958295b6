"""``lmr camera`` from Python: open a source, connect, feed, and say how it goes."""

from __future__ import annotations

import math
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from lmr.core.errors import LmrError
from lmr.service.client.feeding.camera_feed import CameraFeed, FeedSummary
from lmr.service.client.feeding.camera_sources import Say, open_source
from lmr.service.client.service_client import Client
from lmr.service.network import read_token_file

TELL_SECONDS = 10.0  # between two lines of progress


def run_camera(
    source: str,
    url: str,
    stream: str,
    *,
    every: int = 1,
    batch: int = 1,
    fps: float | None = None,
    mode: str = "adapt",
    lossless: bool = False,
    token_file: str | None = None,
    position: str | None = None,
    out: str | None = None,
    idle: float | None = None,
    patience: float = 600.0,
    say: Say = lambda words: None,
) -> FeedSummary:
    """Send the frames of a source to a stream of the service at ``url``; see ``lmr camera --help``.

    An interrupt passes through as KeyboardInterrupt with a sentence that says how to go on.
    """
    if every < 1 or not (fps is None or 0 < fps < math.inf) or not (idle is None or idle >= 0):
        raise LmrError(f"Expected every ≥ 1, a positive fps and idle ≥ 0, got every={every}, fps={fps}, idle={idle}.")
    frames = open_source(source, every, fps, idle, say)
    token = None if token_file is None else read_token_file(token_file)
    with ExitStack() as stack:
        client = stack.enter_context(Client(url, token, patience=patience, on_wait=say))
        lines: IO[str] | None = None
        if out is not None:
            lines = sys.stdout if out == "-" else stack.enter_context(open(out, "a", encoding="utf-8"))
        feed = CameraFeed(
            frames,
            client,
            stream,
            batch=batch,
            fps=fps,
            mode=mode,
            lossless=lossless,
            position=None if position is None else Path(position),
            out=lines,
            say=say,
        )
        try:
            return feed.run(progress=_Progress(stream, say))
        except KeyboardInterrupt:
            how = "Give the same command to go on." if position else "Without --position it would begin anew."
            raise KeyboardInterrupt(f"Interrupted after {feed.summary}. {how}") from None


class _Progress:
    """A line now and then."""

    def __init__(self, stream: str, say: Say) -> None:
        self._stream, self._say, self._told = stream, say, time.monotonic()

    def __call__(self, summary: FeedSummary) -> None:
        if summary.requests == 1 or time.monotonic() - self._told >= TELL_SECONDS:
            self._say(f"{self._stream}: {summary}")
            self._told = time.monotonic()
