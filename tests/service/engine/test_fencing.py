"""Two engines on one store, as on a cluster whose router changes its mind: each step is applied once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from engine_maker import (
    Clock,
    SharedSqliteStore,
    ask,
    check_state,
    make_engine,
    make_method,
    make_request,
    read_logits,
    run,
    run_alone,
    wait,
    work_without_commit,
)
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.requests import KeyReused, StepAnswer, StoreFailed, StreamMoved
from lmr.service.store.addresses import StateStore
from lmr.service.store.postgres_store import PostgresStore
from lmr.service.store.stored_types import StoreError


@pytest.fixture(params=["sqlite", "postgres"])
def open_shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], StateStore]]:
    """Opens a store for an engine, the same states at every call."""
    identity, opened = describe_identity(make_method()), list[StateStore]()
    if request.param == "sqlite":
        opened.append(SharedSqliteStore(tmp_path / "s", identity))
        yield lambda: opened[0]
    else:
        address = request.getfixturevalue("postgres").make_database()
        yield lambda: opened.append(PostgresStore(address, identity)) or opened[-1]  # type: ignore[func-returns-value]
    for store in opened:
        store.close()


@pytest.fixture
def pair(open_shared: Callable[[], StateStore]) -> tuple[Engine, Engine]:
    return make_engine(shared=open_shared()), make_engine(shared=open_shared())


def refuse(engine: Engine, future: Future[Any]) -> None:
    """The engine refuses, and says that the request can be sent again."""
    run(engine)
    with pytest.raises(StreamMoved, match="served by another replica now; send the request again"):
        future.result(0)


def check_answer(answer: StepAnswer, stream: str, k: int) -> None:
    """An answer is that of a solo run."""
    expected = run_alone(stream, range(k + 1))[1][k]
    torch.testing.assert_close(read_logits(answer), expected, atol=1e-6, rtol=0)
    assert (answer.seq, answer.saved) == (k + 1, True)


def test_stream_goes_to_and_fro_and_no_step_is_lost_or_doubled(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    (answer,) = ask(one, make_request("a", 0))
    check_answer(answer, "a", 0)
    (answer,) = ask(two, make_request("a", 1))
    check_answer(answer, "a", 1)
    refuse(one, one.submit(make_request("a", 2)))  # it has the state after one step
    (answer,) = ask(one, make_request("a", 2))  # and reads the stream anew
    check_answer(answer, "a", 2)
    refuse(two, two.submit(make_request("a", 3)))
    (answer,) = ask(two, make_request("a", 3))
    check_answer(answer, "a", 3)
    check_state(two, "a", range(4))


def test_other_streams_of_the_batch_are_served(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    ask(one, make_request("a", 0), make_request("b", 0))
    ask(two, make_request("a", 1))
    change = one.read_overview().change
    moved, kept = one.submit(make_request("a", 2)), one.submit(make_request("b", 1))
    refuse(one, moved)
    check_answer(kept.result(0), "b", 1)
    assert [status.stream for status in one.read_changes(change, 10).streams] == ["b"]
    assert one.read_overview().state == "ready"


def test_retry_on_another_engine_gets_the_kept_answer(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    (first,) = ask(one, make_request("a", 0, key="k", digest="d"))
    (again,) = ask(two, make_request("a", 0, key="k", digest="d"))
    assert again.replayed
    assert (again.seq, again.answers) == (first.seq, first.answers)
    check_state(two, "a", range(1))
    other = two.submit(make_request("a", 5, key="k", digest="another"))
    run(two)
    with pytest.raises(KeyReused):
        other.result(0)
    check_state(two, "a", range(1))


def test_first_engine_loses_the_race(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    early = one.submit(make_request("a", 0, key="k", digest="d"))
    work_without_commit(one)  # computed, and not committed when the second engine takes the stream
    (answer,) = ask(two, make_request("a", 0, key="k", digest="d"))
    check_answer(answer, "a", 0)
    refuse(one, early)
    (again,) = ask(one, make_request("a", 0, key="k", digest="d"))
    assert again.replayed
    check_state(one, "a", range(1))


def test_what_was_computed_on_top_of_a_refused_step_is_refused(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    ask(one, make_request("a", 0))
    ask(two, make_request("a", 1))
    first = one.submit(make_request("a", 2))
    work_without_commit(one)
    second = one.submit(make_request("a", 3))
    work_without_commit(one)
    refuse(one, first)
    refuse(one, second)
    check_state(one, "a", range(2))


def test_answers_and_states_are_never_those_of_an_old_copy(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    ask(one, make_request("a", 0))
    ask(two, make_request("a", 1))
    refuse(one, one.read_state("a"))
    check_state(one, "a", range(2))
    refuse(two, two.submit(make_request("a", 2, mode="answer")))
    (answer,) = ask(two, make_request("a", 2, mode="answer"))
    assert (answer.seq, answer.adaptation["stepped"]) == (2, False)
    assert one.find("a").status.seq == two.find("a").status.seq == 2
    assert [status.seq for status in one.list_streams()] == [2]


def test_stream_that_another_engine_began_or_deleted(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    (answer,) = ask(one, make_request("a", 0, mode="answer"))  # it does not exist, and is not begun
    assert answer.seq == 0
    ask(two, make_request("a", 0))
    check_state(one, "a", range(1))
    wait(one, one.act("a", "delete"))
    refuse(two, two.submit(make_request("a", 1)))
    (answer,) = ask(two, make_request("a", 0))
    check_answer(answer, "a", 0)


def test_streams_of_all_engines_are_counted(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    ask(one, make_request("a", 0))
    ask(two, make_request("b", 0), make_request("c", 0))
    one.recount()
    assert one.read_overview().streams == 3


def test_interval_loses_what_was_not_written_when_a_stream_moves(open_shared: Callable[[], StateStore]) -> None:
    """And what was written under an old claim is never mixed with what follows."""
    clock = Clock()
    one = make_engine(shared=open_shared(), durability="interval", clock=clock)
    two = make_engine(shared=open_shared(), durability="interval", clock=clock)

    def wait_for_commit(engine: Engine) -> None:
        clock.now += 1
        run(engine)

    (answer,) = ask(one, make_request("a", 0, key="k", digest="d"))
    assert (answer.saved, answer.seq) == (False, 1)
    wait_for_commit(one)
    (again,) = ask(two, make_request("a", 0, key="k", digest="d"))  # takes the stream; the answer is in the store
    assert (again.replayed, again.seq) == (True, 1)
    ask(one, make_request("a", 1))  # answered from its copy, and lost
    (answer,) = ask(two, make_request("a", 2))
    assert answer.seq == 2
    wait_for_commit(two)
    wait_for_commit(one)
    check_state(one, "a", [0, 2])
    (answer,) = ask(one, make_request("a", 3))
    assert answer.seq == 3
    wait_for_commit(one)
    assert two.find("a").status.seq == 3
    assert [status.seq for status in one.read_changes(one.read_overview().change - 1, 9).streams] == [3]


def test_store_that_is_away_refuses_what_adapts_and_comes_back(
    open_shared: Callable[[], StateStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows meanwhile whether another engine serves the stream."""
    clock, store = Clock(), open_shared()
    engine = make_engine(shared=store, clock=clock)
    ask(engine, make_request("a", 0))

    def fail(*_: object) -> NoReturn:
        raise StoreError("connection refused")

    with monkeypatch.context() as patch:
        for name in ("commit", "claim", "probe"):
            patch.setattr(store, name, fail)
        lost = engine.submit(make_request("b", 0))  # it is not in memory
        run(engine)
        with pytest.raises(StoreFailed, match="cannot be read: connection refused"):
            lost.result(0)
        assert engine.read_overview().state == "degraded"
        for stream in "ab":
            refused = engine.submit(make_request(stream, 1))
            run(engine)
            with pytest.raises(StoreFailed, match=r"are refused\. This request was not applied; try again"):
                refused.result(0)
        (answer,) = ask(engine, make_request("a", 1, mode="answer"))
        assert (answer.seq, answer.adaptation["stepped"]) == (1, False)
        clock.now += 6
        run(engine)
        assert engine.read_overview().state == "degraded"
    clock.now += 6
    run(engine)
    assert engine.read_overview().state == "ready"
    (answer,) = ask(engine, make_request("a", 1))
    check_answer(answer, "a", 1)
