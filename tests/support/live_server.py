"""The real service in this process: engine, app and server on a free port, with a small model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import lmr
from lmr.apps.serve import create_served
from lmr.service.app.app import make_app
from lmr.service.app.server import Server
from lmr.service.app.service import LiveService
from lmr.service.engine.engine import Engine
from lmr.service.settings import ServiceSettings
from lmr.watch.settings import WatchSettings
from lmr.watch.watched import Watched


@contextmanager
def run_live_server(
    names: Sequence[str], model: str = "photo", settings: ServiceSettings | None = None, token: str | None = None
) -> Iterator[str]:
    """The address of a service of this model and these classes, with states in memory."""
    settings = settings or ServiceSettings(resident=8)
    backbone = lmr.load(model)
    method = create_served("lmr", backbone.classifier(list(names)), settings.resident)
    engine = Engine(Watched(method, WatchSettings()), list(names), settings)
    engine.start()
    service = LiveService(engine, backbone.preprocess, backbone.name)
    try:
        with Server(make_app(service, token=token)) as server:
            yield server.url
    finally:
        engine.close()
