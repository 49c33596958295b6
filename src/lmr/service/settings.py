"""The limits and choices of ``lmr serve`` and of ``lmr camera``, checked once."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from lmr.core.errors import LmrError
from lmr.core.spec import convert, find_hints

Durability = Literal["answer", "interval"]


@dataclass(frozen=True)
class ServiceSettings:
    """Limits and choices of the service; the text at a field is the help of the option of the same name."""

    resident: int = 256
    """streams whose states are in memory; the others are in --store and come back when they are used"""
    max_streams: int = 100_000
    """streams that may exist; the first request of a further one is refused, and deleting a stream makes room"""
    durability: Durability = "answer"
    """answer: an answer is sent after its state is on the disk; interval: at once, and states are written every
    --interval-s seconds, so that a crash, or with PostgreSQL a move to another replica, loses that much adaptation"""
    interval_s: float = 1.0
    """seconds between two writes with --durability interval: what a crash may lose"""
    max_body: int = 10_000_000  # bytes of the body of a request
    show_frames: bool = False  # keep small copies of the last frames in memory and show them on the page

    # These have no option.
    max_batch: int = 64  # images of different streams that are computed together
    max_pixels: int = 25_000_000  # of an image; a larger one is refused by its header, before it is unpacked
    max_images: int = 32  # in a request
    max_step_ms: float = 1000.0  # longest time of a batch; fewer images are put together where the model is slow
    # The longest time that a request waits for others while nothing is computed. It does not wait if every stream that
    # was active in the last second is there.
    max_wait_ms: float = 5.0
    queue_images: int = 256  # images that may wait; further requests are told to come back later, with 429
    queue_per_stream: int = 8  # requests of one stream that may wait
    timeout_ms: float = 30_000.0  # a request that waited longer is refused
    keys_per_stream: int = 64  # answers that are kept for retries
    note: str = ""  # what the page says at its head

    def __post_init__(self) -> None:
        hints = find_hints(type(self))
        for item in dataclasses.fields(self):
            value = convert(getattr(self, item.name), hints[item.name], f"{item.name!r} of the service")
            object.__setattr__(self, item.name, value)
            if isinstance(value, (int, float)) and not (0 if item.name in _MAY_BE_ZERO else 1) <= value < math.inf:
                raise LmrError(f"Expected {item.name!r} of the service to be positive and finite, got {value!r}.")


_MAY_BE_ZERO = ("max_wait_ms", "interval_s", "keys_per_stream", "show_frames")


@dataclass(frozen=True)
class CameraOptions:
    """Options of a feed; the text at a field is the help of the option of the same name."""

    every: int = 1  # send every N-th frame
    batch: int = 1  # frames per request, which are one step
    fps: float | None = None
    """send at most F frames per second; a network camera's other frames are dropped (default: no limit)"""
    token_file: str | None = None  # a file with the token of the service
    out: str | None = None  # append a JSON line for each frame to FILE, or - for standard output
    idle: float | None = None  # end when no file was added to the folder for S seconds (default: never)
    patience: float = 600.0  # give up when the service took no request for S seconds

    def __post_init__(self) -> None:
        if self.every < 1 or self.batch < 1:
            raise LmrError(f"Expected every ≥ 1 and batch ≥ 1, got every={self.every}, batch={self.batch}.")
        if not (self.fps is None or 0 < self.fps < math.inf) or not (self.idle is None or self.idle >= 0):
            raise LmrError(f"Expected a positive fps and idle ≥ 0, got fps={self.fps}, idle={self.idle}.")
