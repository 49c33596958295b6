"""ServiceSettings: the limits and choices of ``lmr serve``, checked once."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_type_hints

from lmr.core.errors import LmrError
from lmr.core.spec import convert

Durability = Literal["answer", "interval"]
Overload = Literal["shed", "answer"]
Creation = Literal["auto", "never"]


@dataclass(frozen=True)
class ServiceSettings:
    """Limits and choices of the service, each with the meaning of the option of the same name.

    ``step`` 0 stands for "request": the images of a request are one step. With N, every N images of a stream are.
    """

    resident: int = 256
    max_batch: int = 64
    max_step_ms: float = 1000.0
    max_wait_ms: float = 5.0
    queue_images: int = 256
    queue_per_stream: int = 8
    timeout_ms: float = 30_000.0
    max_body: int = 10_000_000
    max_images: int = 32
    max_pixels: int = 25_000_000
    step: int = 0
    durability: Durability = "answer"
    interval_s: float = 1.0  # between commits with durability "interval"
    overload: Overload = "shed"
    create: Creation = "auto"
    drain_s: float = 30.0
    keys_per_stream: int = 64  # answers that are kept for retries
    show_frames: bool = False

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in dataclasses.fields(self):
            value = convert(getattr(self, item.name), hints[item.name], f"{item.name!r} of the service")
            object.__setattr__(self, item.name, value)
            if isinstance(value, (int, float)) and not (0 if item.name in _MAY_BE_ZERO else 1) <= value < math.inf:
                raise LmrError(f"Expected {item.name!r} of the service to be positive and finite, got {value!r}.")
        if self.max_images > self.queue_images:
            raise LmrError(
                f"A request may have {self.max_images} images, but the queue holds {self.queue_images}; "
                "raise queue_images or lower max_images."
            )


_MAY_BE_ZERO = ("max_wait_ms", "step", "interval_s", "drain_s", "keys_per_stream", "show_frames")
