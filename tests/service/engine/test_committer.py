"""Commits that fail, or come later: nothing is half done, nobody waits for ever, and the service mends itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_maker import (
    Clock,
    FragileStore,
    ask,
    check_state,
    make_engine,
    make_request,
    read_logits,
    run,
    run_alone,
    wait,
    work_without_commit,
)
from lmr.service.engine.committer import RETRY
from lmr.service.engine.engine import Engine
from lmr.service.engine.requests import StoreFailed
from lmr.service.store.stored_types import StoreError


def break_store(engine: Engine, full: bool = True) -> None:
    assert isinstance(engine._store, FragileStore)
    engine._store.full = full


def test_full_disk_undoes_a_batch_and_the_service_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    engine = make_engine(tmp_path / "s", clock=clock)
    ask(engine, make_request("a", 0))
    change = engine.read_overview().change
    break_store(engine)
    failed = engine.submit(make_request("a", 1, key="k", digest="d")), engine.submit(make_request("new", 0))
    run(engine)
    for future in failed:
        with pytest.raises(StoreFailed, match=r"disk is full.*This request was not applied"):
            future.result(0)
    overview = engine.read_overview()
    assert (overview.state, overview.streams) == ("degraded", 1)
    assert "disk is full" in overview.reason
    (event,) = engine.read_changes(change, 10).events
    assert (event.kind, event.before, event.after) == ("store", "ready", "degraded")
    check_state(engine, "a", range(1))

    refused = [engine.submit(make_request("a", 1, key="k", digest="d")), engine.submit(make_request("b", 0))]
    (answer,) = ask(engine, make_request("a", 1, mode="answer"))
    assert all(isinstance(future.exception(0), StoreFailed) for future in refused)
    assert (answer.seq, answer.adaptation["stepped"]) == (1, False)
    action = engine.act("a", "pause")
    run(engine)
    with pytest.raises(StoreFailed, match="nothing was changed"):
        action.result(0)
    check_state(engine, "a", range(1))

    clock.now += RETRY + 1
    run(engine)
    assert engine.read_overview().state == "degraded"
    break_store(engine, False)
    run(engine)
    assert engine.read_overview().state == "degraded"  # it is tried from time to time
    clock.now += RETRY + 1
    run(engine)
    assert (engine.read_overview().state, engine.read_overview().reason) == ("ready", "")
    (answer,) = ask(engine, make_request("a", 1, key="k", digest="d"))
    assert (answer.seq, answer.replayed, answer.saved) == (2, False, True)
    torch.testing.assert_close(read_logits(answer), run_alone("a", range(2))[1][1], atol=1e-6, rtol=0)
    assert [event.after for event in engine.read_changes(change, 10).events] == ["degraded", "ready"]
    engine.close()


def test_batches_on_top_of_a_failed_commit_fail_too(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s")
    ask(engine, make_request("a", 0), make_request("b", 0))
    futures = [engine.submit(make_request(stream, k)) for k in (1, 2) for stream in "ab"]
    work_without_commit(engine)
    work_without_commit(engine)
    assert engine.read_overview().in_flight == 4
    break_store(engine)
    run(engine)
    assert all(isinstance(future.exception(0), StoreFailed) for future in futures)
    break_store(engine, False)
    for stream in "ab":
        check_state(engine, stream, range(1))
    engine.close()


def test_batch_that_was_computed_while_a_commit_failed_is_lost(tmp_path: Path) -> None:
    clock = Clock()
    engine = make_engine(tmp_path / "s", clock=clock)
    ask(engine, make_request("a", 0))
    first, second = engine.submit(make_request("a", 1)), engine.submit(make_request("a", 2))
    other = engine.submit(make_request("b", 0, mode="answer"))
    work_without_commit(engine)
    with engine._changed:
        batch = engine._form()
    assert batch is not None
    break_store(engine)
    engine._committer.work()
    assert isinstance(first.exception(0), StoreFailed)
    assert not second.done()
    engine._work(batch)
    assert isinstance(second.exception(0), StoreFailed)
    assert other.result(0).seq == 0
    break_store(engine, False)
    clock.now += RETRY + 1
    run(engine)
    check_state(engine, "a", range(1))
    assert ask(engine, make_request("a", 1))[0].seq == 2
    engine.close()


def test_uncommitted_stream_keeps_its_row(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s", resident=1)
    first, second = engine.submit(make_request("a", 0)), engine.submit(make_request("b", 0))
    work_without_commit(engine)
    with engine._changed:
        assert engine._form() is None  # "b" has to wait for the commit of "a"
    engine._committer.work()
    run(engine)
    assert (first.result(0).seq, second.result(0).seq) == (1, 1)
    check_state(engine, "a", range(1))
    engine.close()


# Commits at intervals.


def test_commits_at_intervals(tmp_path: Path) -> None:
    clock = Clock()
    engine = make_engine(tmp_path / "s", clock=clock, durability="interval", interval_s=2.0)
    (answer,) = ask(engine, make_request("a", 0, key="k", digest="d"))
    assert not answer.saved
    assert engine._store.read_record("a") is None
    overview = engine.read_overview()
    assert (overview.unsaved, overview.streams, overview.in_flight) == (1, 1, 0)
    assert engine.find("a").status.seq == 1
    assert ask(engine, make_request("a", 0, key="k", digest="d"))[0].replayed
    ask(engine, make_request("a", 1))
    wait(engine, engine.add_labels("a", 1, [None, "class 0", None]))
    clock.now += 2.0
    run(engine)
    assert engine.read_overview().unsaved == 0
    assert engine._store.read_steps("a", 2) != []
    replayed = ask(engine, make_request("a", 0, key="k", digest="d"))[0]
    assert (replayed.replayed, replayed.saved, replayed.seq) == (True, True, 1)
    assert ask(engine, make_request("a", 5, mode="answer"))[0].saved
    ask(engine, make_request("a", 2))
    assert not ask(engine, make_request("a", 5, mode="answer"))[0].saved
    engine.close()  # commits what is left
    again = make_engine(tmp_path / "s")
    check_state(again, "a", range(3))
    assert again.find("a").status.labelled == 1
    again.close()


def test_streams_make_room_before_the_interval_is_over(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s", resident=2, durability="interval", interval_s=1000)
    for k in range(3):
        for stream in "abc":
            assert ask(engine, make_request(stream, k))[0].seq == k + 1
    for stream in "abc":
        check_state(engine, stream, range(3))
    engine.close()


def test_failed_interval_returns_streams_to_the_last_commit(tmp_path: Path) -> None:
    clock = Clock()
    engine = make_engine(tmp_path / "s", clock=clock, durability="interval", interval_s=1.0)
    ask(engine, make_request("a", 0))
    clock.now += 1
    run(engine)
    ask(engine, make_request("a", 1, key="k", digest="d"), make_request("new", 0))
    assert engine.read_overview().streams == 2
    break_store(engine)
    clock.now += 1
    run(engine)
    overview = engine.read_overview()
    assert (overview.state, overview.streams, overview.unsaved) == ("degraded", 1, 0)
    check_state(engine, "a", range(1))
    assert engine.find("a").status.seq == 1
    assert [one.stream for one in engine.list_streams()] == ["a"]
    break_store(engine, False)
    clock.now += RETRY + 1
    run(engine)
    (answer,) = ask(engine, make_request("a", 1, key="k", digest="d"))
    assert (answer.seq, answer.replayed) == (2, False)
    engine.close()


def test_deleted_stream_stays_deleted_at_intervals(tmp_path: Path) -> None:
    clock = Clock()
    engine = make_engine(tmp_path / "s", clock=clock, durability="interval", interval_s=1.0)
    ask(engine, *(make_request("a", k) for k in range(3)))
    clock.now += 1
    run(engine)
    wait(engine, engine.act("a", "delete"))
    ask(engine, make_request("a", 0))
    engine.close()
    again = make_engine(tmp_path / "s")
    check_state(again, "a", range(1))
    assert [one["seq"] for one in again.find("a").history] == [1]
    again.close()


def test_store_that_cannot_be_read_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tmp_path / "s", resident=1)
    ask(engine, make_request("a", 0), make_request("b", 0))

    def fail(*given: object) -> None:
        raise StoreError("disk I/O error")

    monkeypatch.setattr(engine._store, "_read", fail)
    futures = engine.submit(make_request("a", 1)), engine.submit(make_request("b", 1, key="k"))
    run(engine)
    with pytest.raises(StoreFailed, match="disk I/O error"):
        engine.list_streams()
    for future in futures:
        error = future.exception(0)
        assert error is None or "disk I/O error" in str(error)
    monkeypatch.undo()
    assert [one.seq for one in ask(engine, make_request("a", 1), make_request("b", 1, key="k"))] == [2, 2]
    engine.close()


def test_store_that_cannot_be_read_either_refuses_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = make_engine(tmp_path / "s", clock=clock, durability="interval", interval_s=1.0)
    ask(engine, make_request("a", 0))
    break_store(engine)

    def fail(stream: str) -> str | None:
        raise StoreError("disk I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(engine._store, "read_record", fail)
        clock.now += 1
        run(engine)
        assert engine.read_overview().state == "degraded"
    break_store(engine, False)
    clock.now += RETRY + 1
    run(engine)
    assert engine.read_overview().state == "ready"
    engine.close()


def test_key_of_a_deleted_stream_is_free_before_the_interval_is_over(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s", durability="interval", interval_s=1000)
    ask(engine, make_request("a", 0, key="k", digest="d"))
    assert wait(engine, engine.act("a", "delete")).health == "deleted"
    (answer,) = ask(engine, make_request("a", 1, key="k", digest="other"))
    assert (answer.seq, answer.replayed) == (1, False)
    engine.close()
