"""LiveService: the engine with all that the routes need. Until the model is loaded there is no engine."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Self

from fastapi import Request

from lmr.core.classifier import ZeroShot
from lmr.service.app.images import ImageDecoder, Preprocess, RecentFrames
from lmr.service.app.metrics import ServiceMetrics
from lmr.service.app.request import BodyReader
from lmr.service.app.steps import ImageSteps
from lmr.service.engine.engine import Engine
from lmr.service.engine.requests import CannotDo, NotReady
from lmr.service.engine.status import Overview, ServiceEvent, StreamStatus
from lmr.service.settings import ServiceSettings
from lmr.watch.watched import Watched

LOGGER = logging.getLogger("lmr.service.events")
_EVENTS = 1000  # noted at once
_RECENT = 100  # events that a new client receives
Classify = Callable[[Sequence[str]], ZeroShot]


def _refuse_classes(names: Sequence[str]) -> ZeroShot:
    raise CannotDo("The classes of this service cannot be changed; start it with others.")


class LiveService:
    """The engine with what surrounds it: image steps, metrics, recent events and frames, and the end of the server."""

    _engine: Engine  # this and the following are set by ``install``
    _classify: Classify
    steps: ImageSteps
    model: str  # its name
    facts: dict[str, str]  # about the model

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.bodies = BodyReader(settings.max_body)
        self.metrics = ServiceMetrics(self.read_overview, self._list_estimated)
        self.run_id = secrets.token_hex(4)  # tells this run of the service from others
        self.listeners = 0  # clients of the events
        self.stopping = threading.Event()
        self.frames = RecentFrames() if settings.show_frames else None
        self.recent: deque[ServiceEvent] = deque(maxlen=_RECENT)
        self._noted = 0  # the change up to which events were counted and logged
        self._is_loaded = False
        self._changing = threading.Lock()  # held while the classes are changed

    def install(
        self,
        engine: Engine,
        preprocess: Preprocess,
        model: str,
        facts: dict[str, str] | None = None,
        classify: Classify = _refuse_classes,
    ) -> Self:
        """Serve requests from now on, with a started engine. ``preprocess`` is that of the backbone.

        ``classify`` returns the classifier of other class names with the same prompts.
        """
        engine.listen(self.metrics.add_batch)
        self._noted = engine.read_overview().change
        self.steps = ImageSteps(engine, ImageDecoder(preprocess, self.settings), self.bodies, self.frames)
        self._engine, self._classify, self.model, self.facts = engine, classify, model, facts or {}
        self._is_loaded = True
        return self

    @property
    def loaded(self) -> Self:
        """This service; NotReady while the model loads."""
        if not self._is_loaded:
            raise NotReady("The model is being loaded; try again in a few seconds.")
        return self

    @property
    def engine(self) -> Engine:
        """The engine; NotReady while the model loads."""
        return self.loaded._engine

    @property
    def watch(self) -> str:
        """The settings of the watch, "off" if there is none."""
        watched = getattr(self.engine.method, "method", None)  # inside the labels
        return watched.settings.spec if isinstance(watched, Watched) else "off"

    def change_classes(self, names: Sequence[str]) -> list[str]:
        """Answer with other classes from now on, and return them; an LmrError if that is not possible.

        One change is made at a time, as encoding names takes all cores.
        """
        if not self._changing.acquire(blocking=False):
            raise CannotDo("Another request is changing the classes; try again when it is answered.")
        try:
            classifier = self.loaded._classify(names)
            self.engine.change_classes(classifier, classifier.names)
            return list(classifier.names)
        finally:
            self._changing.release()

    def read_overview(self) -> Overview:
        """Return the overview of the engine, also before there is one."""
        return self.engine.read_overview() if self._is_loaded else Overview("loading", "The model is being loaded.")

    def _list_estimated(self, limit: int) -> list[StreamStatus]:
        return self.engine.list_estimated(limit) if self._is_loaded else []

    def note_events(self) -> int:
        """Count and log the events since the last call; return the change up to which that is done."""
        if not self._is_loaded:
            return self._noted
        changes = self.engine.read_changes(self._noted, _EVENTS)
        self._noted = changes.upto
        for event in changes.events:
            self.recent.append(event)
            if event.replica:  # it is counted and logged there
                continue
            self.metrics.add_event(event)
            LOGGER.info("event", extra={"fields": {"event": asdict(event)}})
        return self._noted

    def close(self) -> None:
        """End the threads that decode."""
        if self._is_loaded:
            self.steps.decoder.close()


def find_service(request: Request) -> LiveService:
    """Return the service of the app that a request came to."""
    service: LiveService = request.app.state.service
    return service
