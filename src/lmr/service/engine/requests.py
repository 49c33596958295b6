"""Requests to the engine, their answers, and the errors for requests that it does not serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lmr.core.answer import Answer
from lmr.core.errors import LmrError
from lmr.service.json_text import JsonText

if TYPE_CHECKING:  # the client reads this module, and needs no torch
    from torch import Tensor

    from lmr.images.picture import Picture

RequestMode = Literal["adapt", "answer"]
REPLAYED = "Idempotency-Replayed"  # the HTTP header for ``replayed``: a retry gets the same body
StreamAction = Literal["reset", "rollback", "pause", "resume", "delete"]


@dataclass(frozen=True, eq=False)
class StepRequest:
    """Preprocessed images [n, ...] of one stream, answered together with at most the ``top`` best classes of each.

    ``key`` makes a retry safe: a request with the key and ``digest`` of an answered one gets that answer again.
    ``deadline`` is a time of the engine's clock. ``errors`` are the messages for images that could not be decoded, by
    their position among all that were sent. ``compare`` asks for the frozen model's answers, too. ``pictures`` are the
    statistics of the images, by which the camera is judged; without them it is not.
    """

    stream: str
    images: Tensor
    mode: RequestMode = "adapt"
    top: int = 5
    key: str | None = None
    digest: str = ""
    deadline: float | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    compare: bool = False
    pictures: Sequence[Picture] = ()

    @property
    def sent(self) -> int:
        """The number of images that were sent."""
        return len(self.images) + len(self.errors)

    @property
    def places(self) -> list[int]:
        """The positions of the decoded images among those that were sent."""
        return [place for place in range(self.sent) if place not in self.errors]


@dataclass(frozen=True)
class StepAnswer(JsonText):
    """The answer to a request, image by image in the order in which they were sent.

    ``seq`` counts the adapting requests of the stream, and ``saved`` says that its state is on the disk. ``adaptation``
    is what the request did to the stream, with the stream's health; ``timing`` has milliseconds and the size of the
    batch. ``replayed``: an earlier request with the same key was answered, and this is that answer.
    """

    stream: str
    seq: int
    saved: bool
    answers: tuple[Answer, ...]
    adaptation: dict[str, Any]
    timing: dict[str, float]
    replayed: bool = False


@dataclass(frozen=True)
class ServiceAnswer(StepAnswer):
    """The answer of the service, as the client gets it: with the model, and the method with all its values."""

    model: str = ""
    spec: str = ""

    @property
    def labels(self) -> list[str | None]:
        """The label of each image; None for one that could not be read, or that belongs to none of the classes."""
        return [one.label for one in self.answers]

    @property
    def label(self) -> str | None:
        """The label of the first image, for requests of a single one."""
        return self.answers[0].label if self.answers else None


@dataclass(frozen=True)
class StreamTask:
    """A task of an operator, which takes its turn among the requests of the stream.

    ``content`` is the state file of "write". ``labels`` are the true ones of the images of request ``seq``, None where
    unknown, for "label"; unless ``teach`` is set they are counted alone. ``images`` are those that "ask" remembers for
    a label. "silent" notes that no frame has come for long.
    """

    action: StreamAction | Literal["read", "write", "label", "ask", "silent"]
    content: bytes = b""
    seq: int = 0
    labels: tuple[str | None, ...] = ()
    images: tuple[QueuedImage, ...] = ()
    teach: bool = True


@dataclass(frozen=True)
class QueuedImage:
    """An image that can be labelled: number ``image`` of the ``images`` of request ``seq``, from 0."""

    seq: int
    image: int
    images: int
    b64: str | None = None  # a small copy, WebP in base64, where the service keeps frames


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
    """The service has been stopped."""


class StreamLimit(Refused):
    """The service has as many streams as it may have."""


class BadInput(Refused):
    """The input is invalid: images of a wrong shape, a state that does not fit, or labels of unknown classes."""


class ComputeFailed(Refused):
    """The method failed on the request; the stream is unchanged."""


class StreamDamaged(Refused):
    """What is stored of the stream cannot be used; it can be deleted."""


class StoreFailed(Refused):
    """The state could not be written; the streams of the batch are unchanged."""


class StreamMoved(Refused):
    """Another engine serves the stream now; the request is routed there when it is sent again."""


class CannotDo(Refused):
    """The action is not possible now, such as a rollback without a snapshot."""
