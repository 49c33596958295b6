"""What goes into the engine and what comes out: requests, answers, reports of batches, and reasons for refusing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from lmr.core.errors import LmrError

RequestMode = Literal["adapt", "answer"]


@dataclass(frozen=True, eq=False)
class StepRequest:
    """Images [n, ...] of one stream, preprocessed, to be answered together.

    ``key`` makes a retry safe: a request with the key and ``digest`` of one that was answered gets that answer again.
    ``deadline`` is in the engine's clock. ``note`` is given back with the answer, and kept with it. ``places`` are the
    places of the images among the ``sent`` ones, where some could not be read; without them, these are all. Labels
    that come later are for all that were sent.
    """

    stream: str
    images: Tensor
    mode: RequestMode = "adapt"
    top: int = 5
    key: str | None = None
    digest: str = ""
    deadline: float | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    places: Sequence[int] = ()
    sent: int = 0


@dataclass(frozen=True)
class StepAnswer:
    """The answer to a request, in plain values. ``top`` holds, for each image, its best classes and probabilities.

    It is empty for an image to which the model gave no finite answer.
    ``seq`` counts the requests of a stream that may adapt. ``saved`` says that the state is on the disk.
    """

    stream: str
    seq: int
    saved: bool
    top: list[list[tuple[str, float]]]
    adaptation: dict[str, Any]
    timing: dict[str, float]
    note: dict[str, Any] = field(default_factory=dict)
    replayed: bool = False  # whether it is the kept answer to an earlier request with this key

    def to_json(self) -> str:
        """The answer as it is kept under its key."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> StepAnswer:
        """A kept answer, as a replayed one."""
        values = json.loads(text)
        top = [[(label, share) for label, share in one] for one in values["top"]]
        return cls(**{**values, "top": top, "replayed": True})


@dataclass(frozen=True)
class BatchReport:
    """One batch on the processor, for metrics."""

    images: int
    streams: int
    steps: int  # streams that adapted
    seconds: float
    commit_seconds: float | None  # None until it is committed, or where nothing had to be


class Refused(LmrError):
    """Base of the reasons for which the engine does not serve a request; nothing was adapted."""


class QueueFull(Refused):
    """The queue holds as many images as it may. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlinePassed(Refused):
    """The request waited longer than it may."""


class KeyInFlight(Refused):
    """A request with this key is being served."""


class KeyReused(Refused):
    """The key belongs to a request with another body."""


class UnknownStream(Refused):
    """There is no such stream, and none may be created."""


class NotReady(Refused):
    """The service is loading, draining or closed."""


class TooManyStreams(NotReady):
    """A service without a store keeps as many streams as its method has rows, and no more."""


class BadInput(Refused):
    """What was sent cannot be used: images of a wrong shape, a state that does not fit, labels of other classes."""


class ComputeFailed(Refused):
    """The method failed on a request; its stream is as it was before."""


class StoreFailed(Refused):
    """The state could not be written; the streams of the batch are as they were before it."""


class StreamMoved(Refused):
    """Another engine serves the stream now; sent again, the request finds it."""


class CannotDo(Refused):
    """An operator's action that is not possible now, such as a rollback without a snapshot."""
