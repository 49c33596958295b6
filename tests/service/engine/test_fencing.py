"""Two engines on one store, as on a cluster whose router changes its mind: each step is applied once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_maker import (
    NAMES,
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
from lmr import LmrError
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.requests import BadInput, KeyReused, StepAnswer, StreamMoved
from lmr.service.store.fenced_store import FencedStore


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    store = FencedStore(tmp_path / "s", describe_identity(make_method()))
    yield make_engine(shared=store), make_engine(shared=store)
    store.close()


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


def test_request_that_waits_on_two_engines_is_applied_once(pair: tuple[Engine, Engine]) -> None:
    """The retry has passed every check of the second engine before the first one commits."""
    one, two = pair
    early = one.submit(make_request("a", 0, key="k", digest="d"))
    late = two.submit(make_request("a", 0, key="k", digest="d"))
    work_without_commit(one)
    run(one)
    run(two)
    assert (early.result(0).replayed, late.result(0).replayed) == (False, True)
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


def test_what_was_computed_on_top_of_a_doubled_step_is_refused(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    ask(one, make_request("a", 0, key="k", digest="d"))
    doubled = two.submit(make_request("a", 0, key="k", digest="d"))
    work_without_commit(two)
    on_top = two.submit(make_request("a", 1))
    work_without_commit(two)
    run(two)
    assert doubled.result(0).replayed
    refuse(two, on_top)
    check_state(two, "a", range(1))


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


def test_refusals_of_an_old_copy_are_not_sent(pair: tuple[Engine, Engine]) -> None:
    """Which requests a stream had is known to the engine that serves it alone."""
    one, two = pair
    ask(one, make_request("a", 0))
    ask(two, make_request("a", 1))
    labels = [NAMES[0], None, NAMES[1]]
    refuse(one, one.add_labels("a", 2, labels))
    assert wait(one, one.add_labels("a", 2, labels)).labelled == 2
    with pytest.raises(BadInput, match="has no request 9"):
        wait(one, one.add_labels("a", 9, labels))


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


def test_engine_without_threads_and_with_few_rows_shares_its_streams(tmp_path: Path) -> None:
    """Streams that make room for others come back with a new epoch, and nothing is refused."""
    engine = make_engine(shared=FencedStore(tmp_path / "s", describe_identity(make_method())), resident=2)
    for k in range(3):
        for stream in "abcd":
            (answer,) = ask(engine, make_request(stream, k))
            check_answer(answer, stream, k)
    engine.close()


def test_interval_is_not_for_a_shared_store(tmp_path: Path) -> None:
    store = FencedStore(tmp_path / "s", {})
    with pytest.raises(LmrError, match="expected durability 'answer', got 'interval'"):
        make_engine(shared=store, durability="interval")
    store.close()
