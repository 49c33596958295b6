"""Status of streams and of the engine, in plain values that ``dataclasses.asdict`` turns into JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lmr.service.engine.requests import StreamAction
from lmr.service.json_text import JsonText

EventKind = Literal["health", "camera", "operator", "label", "store", "service"]
EngineState = Literal["new", "ready", "degraded", "closed"]

UNWATCHED = "unwatched"  # the health of a stream whose method is not watched


@dataclass(frozen=True)
class StreamFacts:
    """What is stored of a stream and shown in lists. ``change`` is the number of its last change."""

    stream: str
    seq: int = 0  # adapting requests so far
    images: int = 0  # in them
    health: str = UNWATCHED  # a health level of the watch, or "unwatched"
    adapts: bool = True
    labelled: int = 0  # labelled images
    updated: float = 0.0  # Unix time
    change: int = 0
    adapting: str | None = None  # quiet, looking or adapting; None for a method that always adapts
    label: str | None = None  # of an image of the last request: the last compared, or the last; None: of no class
    probability: float | None = None
    known: float | None = None  # the score that this image belongs to one of the classes
    frozen_label: str | None = None  # of the same image; None if it was not compared
    taught: int = 0  # labels that the stream has learnt
    estimated_accuracy: float | None = None  # that the labels of images like the present ones show; None without any
    estimated_interval: tuple[float, float] | None = None  # of 95 %
    estimated_labels: int = 0  # these labels
    outdated: float | None = None  # Unix time since which the images are unlike all labelled ones
    best_accuracy: float | None = None  # the highest running accuracy, of at least 20 labelled images


@dataclass(frozen=True, kw_only=True)
class StreamStatus(StreamFacts):
    """One stream in a list."""

    resident: bool  # True if its state is in memory; the others are in the store
    waiting: int  # queued requests
    accuracy: float | None  # on labelled images; None before the first
    compared_accuracy: float | None  # on the labelled images that the frozen model classified as well
    frozen_accuracy: float | None  # of the frozen model, on the same images
    compared_labelled: int = 0  # labelled images that compared_accuracy and frozen_accuracy are averages of
    sureness: float | None = None  # mean probability of the last answers
    changed: float | None = None  # share of the last compared images whose label is not the frozen model's
    camera: str = "ok"  # what is wrong with its picture, such as "black" or "stuck"
    camera_since: float | None = None  # Unix time


@dataclass(frozen=True)
class StreamPage:
    """Some streams in the order of their names; ``next`` is the ``after`` of the next page, None at the end."""

    streams: list[StreamStatus]
    next: str | None


@dataclass(frozen=True)
class ServiceEvent(JsonText):
    """An event for operators. ``stream`` is empty for events of the service itself."""

    number: int
    time: float  # Unix time
    stream: str
    kind: EventKind
    before: str
    after: str
    message: str
    signals: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamDetail:
    """One stream in detail."""

    status: StreamStatus
    signals: dict[str, Any]
    history: list[dict[str, Any]]  # recent values of the signals with their ``seq``, oldest first
    shares: list[tuple[str, float]]  # of the predicted classes, largest first
    snapshots: list[int]  # the steps at which they were taken
    answers: list[dict[str, Any]]  # the last ones, oldest first: seq, label, probability, frozen (None if not compared)
    events: list[ServiceEvent]  # of this stream, oldest first

    @property
    def health(self) -> str:
        """The health of the stream, as in its status."""
        return self.status.health


@dataclass(frozen=True)
class Overview:
    """The engine at a glance."""

    state: EngineState
    reason: str = ""  # why it is not ready, as a sentence
    streams: int = 0  # in the store or in memory
    resident: int = 0
    by_health: dict[str, int] = field(default_factory=dict)
    by_phase: dict[str, int] = field(default_factory=dict)  # of the streams that changed since the start
    by_camera: dict[str, int] = field(default_factory=dict)  # of the same streams
    queue_images: int = 0
    queue_requests: int = 0
    in_flight: int = 0  # requests whose batch was formed and that are not answered yet
    store_bytes: int = 0
    durable: bool = False  # True if there is a store
    shared: bool = False  # True if other replicas serve streams of the store, too
    last_commit: float | None = None  # Unix time
    unsaved: int = 0  # answered requests whose state is not committed yet
    change: int = 0


@dataclass(frozen=True)
class Changes:
    """Changes with numbers above ``after``, up to ``upto``. ``lost``: some are no longer known, read everything."""

    after: int
    upto: int
    events: list[ServiceEvent]
    streams: list[StreamStatus]
    lost: bool = False


ACTION_MESSAGES: dict[StreamAction | Literal["write"], str] = {  # of the event of an operator's action
    "reset": "An operator reset the stream to its initial state.",
    "rollback": "An operator rolled the stream back to a snapshot.",
    "pause": "An operator paused adaptation; the stream is answered with its present state.",
    "resume": "An operator resumed adaptation.",
    "delete": "An operator deleted the stream.",
    "write": "An operator replaced the state of the stream with one from a file.",
}
_RUNGS = {
    "ok": "No signal was unusual for a while; the stream is healthy again.",
    "suspected": "A signal is unusual; every image is now compared with the frozen model.",
    "alarm": "The alarm was confirmed; this watch only reports.",
    "rolled back": "The alarm was confirmed; the stream was rolled back to a snapshot and rests for a while.",
    "reset": "The alarm was confirmed; the stream was reset to its initial state and rests for a while.",
    "paused": "The stream failed repeatedly; it was reset and does not adapt until an operator resumes it.",
}


def describe_health(event: Mapping[str, Any]) -> str:
    """Return the message of an event of the watch, given as in the info of a step."""
    message = _RUNGS.get(event["after"], f"The health of the stream is now {event['after']!r}.")
    if event["before"] in ("rolled back", "reset") and event["after"] == "suspected":
        message = "The rest is over; the stream adapts again, and every image is compared with the frozen model."
    return message + (f" Signals: {', '.join(event['alarms'])}." if event["alarms"] else "")
