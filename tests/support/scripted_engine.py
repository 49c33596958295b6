"""An engine that does as it is told, for tests of what stands around it: it refuses, waits or answers on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from lmr.core.answer import Answer
from lmr.core.method import Method
from lmr.service.engine.batch import BatchReport
from lmr.service.engine.engine import Engine
from lmr.service.engine.requests import StepAnswer, StepRequest, StreamAction, UnknownStream
from lmr.service.engine.status import Changes, Overview, ServiceEvent, StreamDetail, StreamStatus
from lmr.service.settings import ServiceSettings


def make_status(stream: str, **values: Any) -> StreamStatus:
    plain = StreamStatus(
        stream, 1, 1, "ok", updated=time.time(), change=1, resident=True, waiting=0,
        accuracy=None, compared_accuracy=None, frozen_accuracy=None,
    )  # fmt: skip
    return replace(plain, **values)


class ScriptedEngine(Engine):
    """Every image is the first class, and the second for the frozen model.

    ``refusal`` is raised instead, ``held`` keeps futures unanswered.
    """

    def __init__(self, method: Method, names: Sequence[str], settings: ServiceSettings | None = None) -> None:
        self.method, self.names, self.settings = method, list(names), settings or ServiceSettings()
        self.clock = time.monotonic
        self.overview = Overview("ready")
        self.refusal: Exception | None = None
        self.hold = False
        self.held: list[Future[StepAnswer]] = []
        self.requests: list[StepRequest] = []
        self.dropped: list[Future[StepAnswer]] = []
        self.acts: list[tuple[str, str]] = []
        self.statuses: dict[str, StreamStatus] = {}
        self.details: dict[str, StreamDetail] = {}
        self.events: list[ServiceEvent] = []
        self.listeners: list[Callable[[BatchReport], None]] = []
        self.full: Exception | None = None  # what every request is refused by before it is decoded, but for known keys
        self.known_keys: set[str | None] = set()

    def check_room(self, stream: str, key: str | None) -> None:
        if self.full is not None and key not in self.known_keys:
            raise self.full

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def listen(self, callback: Callable[[BatchReport], None]) -> None:
        self.listeners.append(callback)

    def submit(self, request: StepRequest) -> Future[StepAnswer]:
        self.requests.append(request)
        future: Future[StepAnswer] = Future()
        if self.refusal is not None:
            future.set_exception(self.refusal)
        elif self.hold:
            self.held.append(future)
        else:
            future.set_result(self.answer(request))
        return future

    def answer(self, request: StepRequest) -> StepAnswer:
        top = tuple((name, 0.9 if place == 0 else 0.1) for place, name in enumerate(self.names))[: request.top]
        errors = {place: Answer(error=message) for place, message in request.errors.items()}
        result = Answer(*top[0], top=top)
        if request.compare:
            result = replace(result, frozen=self.names[1], frozen_top=((self.names[1], 0.6), (self.names[0], 0.4)))
        answers = tuple(errors.get(place, result) for place in range(request.sent))
        report = BatchReport(len(request.images), 1, 1, 0.01, 0.005)
        for callback in self.listeners:
            callback(report)
        count = len(self.requests)
        self.statuses[request.stream] = make_status(request.stream, seq=count, change=count)
        adaptation = {"mode": request.mode, "stepped": request.mode == "adapt", "health": "ok"}
        timing = {"queue_ms": 1.0, "step_ms": 2.0, "batch_images": len(request.images), "batch_streams": 1}
        return StepAnswer(request.stream, count, True, answers, adaptation, timing)

    def drop(self, future: Future[StepAnswer]) -> bool:
        self.dropped.append(future)
        return True

    def act(self, stream: str, action: StreamAction) -> Future[StreamStatus]:
        self.acts.append((stream, action))
        return self._give(lambda: self._status(stream))

    def find(self, stream: str) -> StreamDetail:
        return self.details.get(stream) or StreamDetail(self._status(stream), {}, [], [], [], [], [])

    def list_streams(self, after: str = "", limit: int = 100) -> list[StreamStatus]:
        names = sorted(name for name in self.statuses if name > after)[:limit]
        return [self.statuses[name] for name in names]

    def list_estimated(self, limit: int) -> list[StreamStatus]:
        return [status for status in self.statuses.values() if status.estimated_labels][:limit]

    def read_overview(self) -> Overview:
        return self.overview

    def read_changes(self, after: int, limit: int) -> Changes:
        events = [event for event in self.events if event.number > after]
        streams = [status for status in self.statuses.values() if status.change > after][:limit]
        return Changes(after, self.overview.change, events, streams)

    def _status(self, stream: str) -> StreamStatus:
        if stream not in self.statuses:
            raise UnknownStream(f"There is no stream {stream!r}.")
        return self.statuses[stream]

    def _give(self, make: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(make())
        except Exception as error:
            future.set_exception(error)
        return future
