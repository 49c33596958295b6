"""LiveService: the engine with all that the routes need."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from fastapi import Request

from lmr.service.app.images import ImageDecoder, Preprocess, RecentFrames
from lmr.service.app.metrics import ServiceMetrics
from lmr.service.app.request import BodyReader
from lmr.service.app.steps import ImageSteps
from lmr.service.engine.engine import Engine
from lmr.service.engine.status import ServiceEvent
from lmr.watch.watched import Watched

LOGGER = logging.getLogger("lmr.service.events")
_EVENTS = 1000  # noted at once
_RECENT = 100  # events that a new client receives


class LiveService:
    """A started engine with what surrounds it: image steps, metrics, recent events and frames, the end of the server.

    ``preprocess`` is that of the backbone; ``model`` is its name, with facts about it.
    """

    def __init__(self, engine: Engine, preprocess: Preprocess, model: str, facts: dict[str, str] | None = None) -> None:
        self.engine, self.settings, self.model, self.facts = engine, engine.settings, model, facts or {}
        self.bodies = BodyReader(self.settings.max_body, self.settings.timeout_ms / 1000)
        self.frames = RecentFrames() if self.settings.show_frames else None
        self.steps = ImageSteps(engine, ImageDecoder(preprocess, self.settings), self.bodies, self.frames)
        self.metrics = ServiceMetrics(engine.read_overview, engine.list_estimated)
        engine.listen(self.metrics.add_batch)
        self.listeners = 0  # clients of the events
        self.stopping = threading.Event()
        self.recent: deque[ServiceEvent] = deque(maxlen=_RECENT)
        self.event_listeners: list[Callable[[ServiceEvent], object]] = []  # called with each event, and must not wait
        self._noted = engine.read_overview().change  # the change up to which events were counted and logged

    @property
    def watch(self) -> str:
        """The settings of the watch, "off" if there is none."""
        watched = getattr(self.engine.method, "method", None)  # inside the labels
        return watched.settings.spec if isinstance(watched, Watched) else "off"

    def note_events(self) -> int:
        """Count and log the events since the last call; return the change up to which that is done."""
        changes = self.engine.read_changes(self._noted, _EVENTS)
        self._noted = changes.upto
        for event in changes.events:
            self.recent.append(event)
            self.metrics.add_event(event)
            for listener in self.event_listeners:
                listener(event)
            LOGGER.info("event", extra={"fields": {"event": asdict(event)}})
        return self._noted

    def close(self) -> None:
        """End the threads that decode."""
        self.steps.decoder.close()


def find_service(request: Request) -> LiveService:
    """Return the service of the app that a request came to."""
    service: LiveService = request.app.state.service
    return service
