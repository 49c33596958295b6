"""Requests to the engine, their answers, and the errors for requests that it does not serve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lmr.core.errors import LmrError

if TYPE_CHECKING:  # the client reads this module, and needs no torch
    from torch import Tensor

RequestMode = Literal["adapt", "answer"]
StreamAction = Literal["reset", "rollback", "pause", "resume", "undo", "delete"]


@dataclass(frozen=True, eq=False)
class StepRequest:
    """Preprocessed images [n, ...] of one stream, answered together.

    ``key`` makes a retry safe: a request with the key and ``digest`` of an answered one gets that answer again.
    ``deadline`` is a time of the engine's clock. ``note`` is stored and returned with the answer. ``places`` are the
    positions of the images among the ``sent`` ones if some could not be decoded; empty, all were. Labels that come
    later cover all images that were sent.
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
    """The answer to a request, in plain values.

    ``top`` holds the best classes of each image with their probabilities; it is empty for an image whose logits are
    not finite. ``seq`` counts the adapting requests of the stream. ``saved`` says that its state is on the disk.
    """

    stream: str
    seq: int
    saved: bool
    top: list[list[tuple[str, float]]]
    adaptation: dict[str, Any]
    timing: dict[str, float]
    note: dict[str, Any] = field(default_factory=dict)
    replayed: bool = False  # True for the stored answer to an earlier request with the same key

    def to_json(self) -> str:
        """Return the text that is stored under the key of the request."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> StepAnswer:
        """Return a stored answer, marked as replayed."""
        values = json.loads(text)
        top = [[(label, share) for label, share in one] for one in values["top"]]
        return cls(**{**values, "top": top, "replayed": True})


# Tasks of operators, which take their turn among the requests of the stream.


@dataclass(frozen=True)
class ActTask:
    """An action on the stream."""

    action: StreamAction


@dataclass(frozen=True)
class ReadTask:
    """A request for the state of the stream as a file."""


@dataclass(frozen=True)
class WriteTask:
    """A state file that replaces the state of the stream."""

    content: bytes


@dataclass(frozen=True)
class LabelTask:
    """True labels of the images of request ``seq``; None where a label is unknown."""

    seq: int
    labels: tuple[str | None, ...]


Task = StepRequest | ActTask | ReadTask | WriteTask | LabelTask


class Refused(LmrError):
    """Base class of the errors for requests that the engine does not serve; nothing was adapted."""


class QueueFull(Refused):
    """The queue limit is reached; ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlinePassed(Refused):
    """The deadline of the request passed while it was queued."""


class KeyInFlight(Refused):
    """A request with the same key is being served."""


class KeyReused(Refused):
    """The key was used before, by a request with another body."""


class UnknownStream(Refused):
    """The stream does not exist, and must not be created."""


class NotReady(Refused):
    """The service is loading, draining or closed."""


class TooManyStreams(NotReady):
    """All rows of the method are in use, and there is no store to which a stream could be moved."""


class BadInput(Refused):
    """The input is invalid: images of a wrong shape, a state that does not fit, or labels of unknown classes."""


class ComputeFailed(Refused):
    """The method failed on the request; the stream is unchanged."""


class StoreFailed(Refused):
    """The state could not be written; the streams of the batch are unchanged."""


class StreamMoved(Refused):
    """Another engine serves the stream now; the request is routed there when it is sent again."""


class CannotDo(Refused):
    """The action is not possible now, such as a rollback without a snapshot."""
