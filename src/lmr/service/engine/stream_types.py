"""What the engine tells of its streams and of itself: plain values, ready for JSON with ``dataclasses.asdict``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

StreamAction = Literal["reset", "rollback", "pause", "resume", "undo", "delete"]
EventKind = Literal["health", "operator", "store", "service"]
EngineState = Literal["loading", "ready", "degraded", "draining", "closed"]

UNWATCHED = "unwatched"  # the health of a stream of a method without a watch


@dataclass(frozen=True)
class StreamStatus:
    """One stream in a list. ``change`` is the number of the change that made it so."""

    stream: str
    seq: int  # requests so far that may adapt
    images: int  # in them
    health: str  # a rung of the watch, or "unwatched"
    adapts: bool
    resident: bool  # whether its state is in the method; others lie in the store
    waiting: int  # queued requests
    accuracy: float | None  # on labelled images; None before the first
    compared_accuracy: float | None  # on those that were compared with the frozen model
    frozen_accuracy: float | None  # of the frozen model, on the same images
    labelled: int  # labelled images
    updated: float  # Unix time
    change: int


@dataclass(frozen=True)
class ServiceEvent:
    """Something that an operator may want to know. ``stream`` is empty for the service itself."""

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
    """One stream, looked at closely."""

    status: StreamStatus
    signals: dict[str, Any]
    history: list[dict[str, Any]]  # recent points of the signals, oldest first, with their ``seq``
    shares: list[tuple[str, float]]  # of the predicted classes, largest first
    snapshots: list[int]  # the steps at which they were taken
    answers: list[dict[str, Any]]  # the last ones, oldest first: seq, label, probability
    events: list[ServiceEvent]  # of this stream, oldest first


@dataclass(frozen=True)
class Overview:
    """The engine at a glance."""

    state: EngineState
    reason: str = ""  # why it is not ready, as a sentence
    streams: int = 0  # that exist, in the store or in memory
    resident: int = 0
    by_health: dict[str, int] = field(default_factory=dict)
    queue_images: int = 0
    queue_requests: int = 0
    in_flight: int = 0  # requests whose batch was formed and that are not answered yet
    images_per_second: float = 0.0
    steps_per_second: float = 0.0
    latency_p50_ms: float | None = None  # from arrival to answer, of the recent requests
    latency_p99_ms: float | None = None
    batch_images: float | None = None  # mean of the recent batches
    batch_streams: float | None = None
    step_ms: float | None = None  # of the recent batches
    commit_ms: float | None = None
    store_bytes: int = 0
    durable: bool = False  # whether there is a store
    last_commit: float | None = None  # Unix time
    unsaved: int = 0  # answered requests whose state is not committed yet
    change: int = 0


@dataclass(frozen=True)
class Changes:
    """What changed after change number ``after``, up to ``upto``. ``lost``: too long ago, read everything anew."""

    after: int
    upto: int
    events: list[ServiceEvent]
    streams: list[StreamStatus]
    lost: bool = False
