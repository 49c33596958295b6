"""Frames that repeat in the engine: reused answers follow the rules of all others."""

from __future__ import annotations

from pathlib import Path

import lmr
from engine_maker import CALM, NAMES, Clock, FragileStore, ask, make_images, make_method, wait
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.requests import StepAnswer, StepRequest
from lmr.service.settings import ServiceSettings

FRAME = make_images("cam", 0, 1)


def start(path: Path, *, reuse: bool = True) -> Engine:
    method = make_method("lmr", 2, None)
    watched = lmr.Watched(lmr.Reused(method) if reuse else method, CALM)
    store = FragileStore(path, describe_identity(watched))
    engine = Engine(watched, NAMES, ServiceSettings(resident=2, max_wait_ms=0.0), store, threads=False, clock=Clock())
    engine.start()
    return engine


def send(engine: Engine, count: int, stream: str = "cam", key: str | None = None) -> StepAnswer:
    """Send a frame so often, one in a request, and return the last answer."""
    for _ in range(count):
        (answer,) = ask(engine, StepRequest(stream, FRAME, key=key))
    return answer


def test_reused_answers_are_counted_kept_and_survive_a_restart(tmp_path: Path) -> None:
    engine = start(tmp_path / "a.sqlite")
    first = send(engine, 1)
    assert first.answers[0].reused is None
    send(engine, 24)
    answer = send(engine, 1, key="one")
    assert (answer.seq, answer.saved, answer.answers[0].reused) == (26, True, True)
    assert not answer.adaptation["stepped"]
    again = send(engine, 1, key="one")
    assert (again.replayed, again.seq, again.answers) == (True, 26, answer.answers)
    for stream in ("b", "c"):  # both rows are taken: the stream goes to the store and comes back
        send(engine, 1, stream)
    assert send(engine, 1).answers[0].reused
    engine.close()
    engine = start(tmp_path / "a.sqlite")
    answer = send(engine, 1)
    assert (answer.seq, answer.answers[0].reused) == (28, True)
    content = wait(engine, engine.read_state("cam"))
    lmr.Watched(make_method("lmr", 1, None)).restore(content)  # of a program that does not know of reuse
    wait(engine, engine.act("cam", "reset"))
    assert send(engine, 1).answers[0].reused is None
    engine.close()
    engine = start(tmp_path / "a.sqlite", reuse=False)
    answer = send(engine, 1)
    assert (answer.seq, answer.answers[0].reused) == (30, None)
    engine.close()


def test_a_commit_that_fails_takes_the_memory_back(tmp_path: Path) -> None:
    engine = start(tmp_path / "a.sqlite")
    send(engine, 24)
    before = {key: value.clone() for key, value in engine.method.state.items() if key.startswith("_reuse")}
    assert engine._worker.residents.use("cam") is not None
    row = engine._worker.residents.use("cam").row  # type: ignore[union-attr]
    (restore,) = engine._worker._compute.copy([row])
    engine.method.step(FRAME, streams=[row])
    restore()
    after = engine.method.state
    assert all(value[row].equal(after[key][row]) for key, value in before.items())
    engine.close()
