from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmr.service.engine.status import Overview
from service_maker import ScriptedService, serve_scripted


@pytest.fixture(scope="session")
def service() -> Iterator[ScriptedService]:
    """One service for all tests; its engine forgets between them what it was told."""
    with serve_scripted() as made:
        yield made


@pytest.fixture(autouse=True)
def obedient(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "service" in request.fixturenames:
        engine = request.getfixturevalue("service").engine
        engine.refusal, engine.hold, engine.full, engine.overview = None, False, None, Overview("ready")
        engine.known_keys.clear()
        for calls in (engine.held, engine.requests, engine.dropped, engine.acts, engine.events):
            calls.clear()
        for known in (engine.statuses, engine.details):
            known.clear()
