from __future__ import annotations

from collections.abc import Iterator

import pytest

from service_maker import ScriptedService, serve_scripted


@pytest.fixture(scope="module")
def service() -> Iterator[ScriptedService]:
    """One service for the tests of a file; its engine forgets between them what it was told."""
    with serve_scripted() as made:
        yield made


@pytest.fixture(autouse=True)
def obedient(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "service" in request.fixturenames:
        engine = request.getfixturevalue("service").engine
        engine.refusal, engine.hold = None, False
        for kept in (engine.held, engine.requests, engine.dropped, engine.acts, engine.events):
            kept.clear()
        for kept in (engine.statuses, engine.details):
            kept.clear()
