"""LiveService: what the routes work with. While the model loads there is no engine, and every route says so."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from fastapi import Request
from PIL.Image import Image
from torch import Tensor

from lmr.service.app.frame_shelf import FrameShelf
from lmr.service.app.intake.body_reader import BodyReader
from lmr.service.app.intake.image_intake import ImageIntake
from lmr.service.app.intake.turns import Turns
from lmr.service.app.service_metrics import ServiceMetrics
from lmr.service.engine.engine import Engine
from lmr.service.engine.step_types import NotReady
from lmr.service.engine.stream_types import Overview, ServiceEvent
from lmr.service.settings import ServiceSettings
from lmr.watch.watched import Watched

LOGGER = logging.getLogger("lmr.service.events")
_EVENTS = 1000  # that are noted at once
_RECENT = 100  # events that a new client is told of
Preprocess = Callable[[Image], Tensor]


@dataclass(frozen=True)
class ServingParts:
    """What serves once the model is loaded. ``model`` is its name, ``facts`` what people may want to know of it."""

    engine: Engine
    intake: ImageIntake
    model: str
    facts: dict[str, str]

    @property
    def watch(self) -> str:
        """The settings of the watch, "off" if there is none."""
        method = self.engine.method
        return method.settings.spec if isinstance(method, Watched) else "off"


class LiveService:
    """The engine with what surrounds it: the pool that decodes, the metrics, and whether the server is stopping."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.bodies, self.turns = BodyReader(settings.max_body), Turns()
        self.metrics = ServiceMetrics(self.look)
        self.run_id = secrets.token_hex(4)  # tells this run of the service from others
        self.listeners = 0  # clients of the events
        self.stopping = threading.Event()
        self.frames = FrameShelf() if settings.show_frames else None
        self.recent: deque[ServiceEvent] = deque(maxlen=_RECENT)
        self._noted = 0  # the change up to which events were counted and logged
        self._parts: ServingParts | None = None

    def install(self, engine: Engine, preprocess: Preprocess, model: str, facts: dict[str, str] | None = None) -> None:
        """The model is loaded: from now on requests are served."""
        engine.listen(self.metrics.add_batch)
        self._noted = engine.look().change
        self._parts = ServingParts(engine, ImageIntake(preprocess, self.settings), model, facts or {})

    @property
    def parts(self) -> ServingParts:
        """What serves; NotReady while the model loads."""
        if self._parts is None:
            raise NotReady("The model is being loaded; try again in a few seconds.")
        return self._parts

    @property
    def engine(self) -> Engine:
        """The engine; NotReady while the model loads."""
        return self.parts.engine

    def look(self) -> Overview:
        """The engine at a glance, also before there is one."""
        if self._parts is None:
            return Overview("loading", "The model is being loaded.")
        return self._parts.engine.look()

    def note_events(self) -> int:
        """Count and log what happened since the last call; gives the change up to which that is done."""
        if self._parts is None:
            return self._noted
        changes = self._parts.engine.read_changes(self._noted, _EVENTS)
        self._noted = changes.upto
        for event in changes.events:
            self.recent.append(event)
            self.metrics.add_event(event)
            LOGGER.info("event", extra={"fields": {"event": asdict(event)}})
        return self._noted

    def close(self) -> None:
        """End the threads that decode."""
        if self._parts is not None:
            self._parts.intake.close()


def find_service(request: Request) -> LiveService:
    """The service of the app that a request came to."""
    service: LiveService = request.app.state.service
    return service
