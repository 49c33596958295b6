"""What can be asked of a stream beside a step, each in its turn among the stream's requests."""

from __future__ import annotations

from dataclasses import dataclass

from lmr.service.engine.step_types import StepRequest
from lmr.service.engine.stream_types import StreamAction


@dataclass(frozen=True)
class ActTask:
    """What an operator asks for."""

    action: StreamAction


@dataclass(frozen=True)
class ReadTask:
    """Give the state as a file."""


@dataclass(frozen=True)
class WriteTask:
    """Take the state from a file."""

    content: bytes


@dataclass(frozen=True)
class LabelTask:
    """True labels of the images of a request."""

    seq: int
    labels: tuple[str | None, ...]


Task = StepRequest | ActTask | ReadTask | WriteTask | LabelTask
