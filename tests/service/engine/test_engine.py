"""The engine: a stream's answers are its own, whatever else is served, refused, evicted or restarted."""

from __future__ import annotations

import dataclasses
import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
from engine_maker import (
    NAMES,
    Clock,
    SharedSqliteStore,
    ask,
    check_state,
    load_state,
    make_engine,
    make_images,
    make_method,
    make_request,
    read_logits,
    read_tensors,
    run,
    run_alone,
    wait,
    work_without_commit,
)
from lmr.core.errors import LmrError
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.requests import (
    BadInput,
    CannotDo,
    ComputeFailed,
    DeadlinePassed,
    KeyInFlight,
    KeyReused,
    NotReady,
    QueueFull,
    StepRequest,
    StoreFailed,
    StreamDamaged,
    StreamLimit,
    UnknownStream,
)
from lmr.service.settings import ServiceSettings
from lmr.service.store.sqlite_store import SqliteStore
from lmr.watch.settings import WatchSettings
from pocket import load_pocket
from tiny_models import draw_batches, load_tiny

STREAMS = [f"cam-{k}" for k in range(7)]


def close_enough(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def refuse(engine: Engine, future: Future[Any], kind: type[Exception], message: str) -> None:
    run(engine)
    with pytest.raises(kind, match=message):
        future.result(0)


# A stream's answers are a function of its own requests.


def test_streams_come_and_go_through_the_store(tmp_path: Path) -> None:
    """Seven streams share three rows; each is as it would be alone, and its state comes back bit for bit."""
    engine = make_engine(tmp_path / "s", resident=3)
    found: dict[str, list[Tensor]] = {stream: [] for stream in STREAMS}
    for k in range(5):
        for stream, answer in zip(STREAMS, ask(engine, *(make_request(s, k) for s in STREAMS)), strict=True):
            found[stream].append(read_logits(answer))
            assert (answer.seq, answer.saved) == (k + 1, True)
    for stream in STREAMS:
        method, expected = run_alone(stream, range(5))
        for own, logits in zip(found[stream], expected, strict=True):
            close_enough(own, logits)
        stored = load_state(wait(engine, engine.read_state(stream)))
        for key, value in read_tensors(method).items():
            close_enough(read_tensors(stored)[key], value)
    before = {stream: wait(engine, engine.read_state(stream)) for stream in STREAMS}
    assert {stream: wait(engine, engine.read_state(stream)) for stream in reversed(STREAMS)} == before
    assert engine.read_overview().resident == 3
    engine.close()
    again = make_engine(tmp_path / "s", resident=2)
    assert {stream: wait(again, again.read_state(stream)) for stream in STREAMS} == before
    assert ask(again, make_request(STREAMS[0], 5))[0].seq == 6
    again.close()


@pytest.mark.parametrize("spec", ["bitta", "lmr"])
def test_method_of_one_row_serves_many_streams(tmp_path: Path, spec: str) -> None:
    engine = make_engine(tmp_path / "s", spec=spec, resident=1)
    found = [ask(engine, *(make_request(s, k) for s in STREAMS[:3])) for k in range(3)]
    for place, stream in enumerate(STREAMS[:3]):
        for answers, expected in zip(found, run_alone(stream, range(3), spec)[1], strict=True):
            close_enough(read_logits(answers[place]), expected)
    engine.close()


def test_without_a_store_states_are_in_memory() -> None:
    engine = make_engine(resident=1)
    for k in range(2):
        for stream in "ab":
            (answer,) = ask(engine, make_request(stream, k))
            assert (answer.seq, answer.saved) == (k + 1, False)
    check_state(engine, "a", range(2))
    assert engine.read_overview().durable is False


# Answering without adapting.


def test_mode_answer_changes_nothing(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s")
    ask(engine, make_request("a", 0))
    before, change = wait(engine, engine.read_state("a")), engine.read_overview().change
    (answer,) = ask(engine, make_request("a", 1, mode="answer"))
    expected = run_alone("a", [0])[0].predict(make_images("a", 1)).logits.log_softmax(1)
    close_enough(read_logits(answer), expected)
    assert (answer.seq, answer.saved) == (1, True)
    assert answer.adaptation == {"mode": "answer", "stepped": False, "health": "ok"}
    assert wait(engine, engine.read_state("a")) == before
    assert ask(engine, make_request("nobody", 0, mode="answer"))[0].seq == 0
    assert engine.read_overview().streams == 1
    with pytest.raises(UnknownStream, match="no stream 'nobody'"):
        engine.find("nobody")
    assert engine.read_overview().change == change
    assert ask(engine, make_request("nobody", 0))[0].seq == 1
    engine.close()


def test_frozen_answers_come_with_a_request_that_asks_for_them(tmp_path: Path) -> None:
    engine, plain = (make_engine(tmp_path / name) for name in ("asking", "plain"))
    frozen = lmr.create("zeroshot", make_method().classifier).predict(make_images("a", 0))
    expected = [NAMES[kind] for kind in frozen.labels.tolist()]
    for mode in ("adapt", "answer"):
        request = make_request("a", 0, mode=mode)
        asked, beside = ask(engine, replace(request, compare=True), make_request("b", 0, mode=mode))
        assert [one.frozen for one in asked.answers] == expected
        assert [dict(one.frozen_top)[name] for one, name in zip(asked.answers, expected, strict=True)] == pytest.approx(
            frozen.probabilities.max(1).values.tolist()
        )
        assert not any(one.frozen_top for one in beside.answers)
        (alone,) = ask(plain, request)
        assert [one.probability for one in asked.answers] == pytest.approx([one.probability for one in alone.answers])
    status = engine.find("a").status
    assert status.frozen_label == expected[-1]
    assert status.changed == pytest.approx(
        sum(one["label"] != one["frozen"] for one in engine.find("a").answers) / 3, abs=0.02
    )
    assert wait(engine, engine.add_labels("a", 1, expected)).frozen_accuracy == 1.0
    assert [one["frozen"] for one in engine.find("a").answers] == expected


# Keys.


def test_retry_with_a_key_is_applied_once(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s", keys_per_stream=2)
    first = engine.submit(make_request("a", 0, key="k0", digest="d0"))
    twice = engine.submit(make_request("a", 0, key="k0", digest="d0"))
    other = engine.submit(make_request("a", 1, key="k0", digest="d1"))
    elsewhere = engine.submit(make_request("b", 0, key="k0", digest="d1"))
    run(engine)
    refuse(engine, twice, KeyInFlight, "key 'k0' is being served")
    refuse(engine, other, KeyReused, "another body; use a new key")
    assert elsewhere.result(0).seq == 1
    for _ in range(2):  # also after a restart
        again = ask(engine, make_request("a", 0, key="k0", digest="d0"))[0]
        assert again == dataclasses.replace(first.result(0), replayed=True)
        refuse(engine, engine.submit(make_request("a", 1, key="k0", digest="d1")), KeyReused, "another body")
        engine.close()
        engine = make_engine(tmp_path / "s", keys_per_stream=2)
    ask(engine, *(make_request("a", k, key=f"k{k}", digest=f"d{k}") for k in (1, 2)))
    assert ask(engine, make_request("a", 0, key="k0", digest="d0"))[0].seq == 4  # it was forgotten
    for _ in range(2):  # a request that does not adapt may be answered again
        (answer,) = ask(engine, make_request("a", 5, key="look", digest="d", mode="answer"))
        assert (answer.seq, answer.replayed) == (4, False)
    engine.close()


def test_key_is_free_after_a_refusal() -> None:
    engine = make_engine(queue_per_stream=1)
    waiting = engine.submit(make_request("a", 0))
    refuse_now = engine.submit(make_request("a", 1, key="k"))
    assert isinstance(refuse_now.exception(0), QueueFull)
    run(engine)
    assert waiting.result(0).seq == 1
    dropped = engine.submit(make_request("a", 1, key="k"))
    assert engine.drop(dropped)
    assert ask(engine, make_request("a", 1, key="k"))[0].seq == 2


# Requests that are not served.


def test_late_dropped_and_cancelled_requests_adapt_nothing() -> None:
    clock = Clock()
    engine = make_engine(clock=clock, timeout_ms=500)
    late = engine.submit(make_request("a", 0, deadline=clock.now + 1))
    usual = engine.submit(make_request("a", 0))
    dropped, cancelled = engine.submit(make_request("b", 0)), engine.submit(make_request("c", 0, key="k"))
    assert engine.drop(dropped)
    assert not engine.drop(dropped)
    assert dropped.cancelled()
    cancelled.cancel()
    clock.now += 2
    refuse(engine, late, DeadlinePassed, "deadline passed in the queue; nothing was adapted")
    refuse(engine, usual, DeadlinePassed, "deadline passed")
    assert engine.read_overview().streams == 0
    answered = engine.submit(make_request("c", 0, key="k"))
    assert wait(engine, answered).seq == 1
    assert not engine.drop(answered)


def test_bad_images_are_refused_and_spoil_nothing() -> None:
    engine = make_engine()
    good = engine.submit(make_request("a", 0))
    nan = make_images("b", 0)
    nan[1, 2, 3] = float("nan")
    wrong: list[tuple[StepRequest, str]] = [
        (StepRequest("b", nan), r"Images \[1\] of this batch hold NaN"),
        (StepRequest("b", make_images("b", 0).float()), "Expected torch.float64 images"),
        (StepRequest("b", make_images("b", 0)[:0]), "non-empty batch"),
    ]
    for request, message in wrong:
        refuse(engine, engine.submit(request), BadInput, message)
    assert good.result(0).seq == 1
    assert engine.read_overview().streams == 1


def test_request_on_which_the_method_fails_fails_alone() -> None:
    """The small world takes any width; only its weights do not."""
    engine = make_engine()
    ask(engine, make_request("bad", 0))
    before = wait(engine, engine.read_state("bad"))
    bad = engine.submit(StepRequest("bad", torch.ones(2, 4, 7, dtype=torch.float64)))
    good = [engine.submit(make_request(stream, 0)) for stream in ("a", "b")]
    refuse(engine, bad, ComputeFailed, "shape")
    for stream, future in zip("ab", good, strict=True):
        close_enough(read_logits(future.result(0)), run_alone(stream, [0])[1][0])
    assert wait(engine, engine.read_state("bad")) == before
    assert ask(engine, make_request("bad", 1))[0].seq == 2


def test_answers_that_are_not_finite_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    step = engine.method.step

    def spoil(*given: Any) -> lmr.Prediction:
        answer = step(*given)
        answer.logits[1] = float("nan")
        return answer

    monkeypatch.setattr(engine.method, "step", spoil)
    (answer,) = ask(engine, make_request("a", 0))
    assert [len(one.top) for one in answer.answers] == [6, 0, 6]
    assert answer.answers[1].error == "The model gave no finite answer to this image."
    json.loads(answer.to_json(), parse_constant=lambda word: pytest.fail(word))
    assert engine.find("a").answers[1]["label"] is None


def test_fault_of_the_engine_fails_the_batch_and_not_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tmp_path / "s", threads=True)
    assert engine.submit(make_request("a", 0)).result(30).seq == 1
    monkeypatch.setattr("lmr.service.engine.worker.describe_health", lambda event: 1 / 0)
    monkeypatch.setattr("lmr.service.engine.worker.StepNote", lambda *given, **named: 1 / 0)
    with pytest.raises(ComputeFailed, match="ZeroDivisionError"):
        engine.submit(make_request("a", 1)).result(30)
    monkeypatch.undo()
    answer = engine.submit(make_request("a", 1)).result(30)
    assert answer.seq == 2  # it was read from the store
    close_enough(read_logits(answer), run_alone("a", range(2))[1][1])
    engine.close()


# Operators.


def test_actions_take_their_turn_and_survive_a_restart(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s")
    futures: list[Future[Any]] = [engine.submit(make_request("a", 0)), engine.act("a", "pause")]
    futures += [engine.submit(make_request("a", 1)), engine.act("a", "resume"), engine.submit(make_request("a", 2))]
    run(engine)
    first, frozen, rested, resumed, last = [future.result(0) for future in futures]
    assert [answer.adaptation["stepped"] for answer in (first, rested, last)] == [True, False, True]
    assert (frozen.health, frozen.adapts, resumed.health, resumed.adapts) == ("paused", False, "ok", True)
    method = make_method(rows=1)
    assert isinstance(method, lmr.Watched)
    method.step(make_images("a", 0))
    method.pause()
    method.step(make_images("a", 1))
    method.resume()
    close_enough(read_logits(last), method.step(make_images("a", 2)).logits.log_softmax(1))
    wait(engine, engine.act("a", "pause"))
    engine.close()
    again = make_engine(tmp_path / "s")
    assert again.find("a").status.health == "paused"
    messages = [event.message for event in again.find("a").events]
    assert len(messages) == 3
    assert messages[1] == "An operator resumed adaptation."
    again.close()


def test_rollback_reset_and_delete() -> None:
    engine = make_engine()
    refuse(engine, engine.act("a", "reset"), UnknownStream, "no stream 'a'")
    ask(engine, make_request("a", 0))
    refuse(engine, engine.act("a", "rollback"), CannotDo, "no snapshot to roll back to; reset it instead")
    refuse(engine, engine.act("a", "resume"), CannotDo, "The stream adapts already")
    for k in range(1, 5):
        ask(engine, make_request("a", k))
    detail = engine.find("a")
    assert detail.snapshots == [2, 4]
    assert len(detail.history) == 5
    assert wait(engine, engine.act("a", "rollback")).health == "rolled back"
    assert wait(engine, engine.act("a", "reset")).seq == 5
    wait(engine, engine.act("a", "pause"))
    assert wait(engine, engine.act("a", "reset")).health == "paused"
    assert wait(engine, engine.act("a", "resume")).health == "ok"
    (answer,) = ask(engine, make_request("a", 0))
    assert answer.seq == 6
    close_enough(read_logits(answer), run_alone("a", [0])[1][0])
    deleted, recreated = engine.act("a", "delete"), engine.submit(make_request("a", 0))
    run(engine)
    assert (deleted.result(0).health, recreated.result(0).seq) == ("deleted", 1)
    assert engine.read_overview().by_health == {"ok": 1}


def test_state_is_given_and_taken_as_a_file(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s")
    ask(engine, make_request("a", 0), make_request("b", 7))
    content = wait(engine, engine.read_state("a"))
    (tmp_path / "file").write_bytes(content)
    make_method(rows=1).load(tmp_path / "file")
    assert wait(engine, engine.write_state("b", content)).seq == 1
    assert wait(engine, engine.write_state("new", content)).seq == 0
    for stream in ("b", "new"):
        assert wait(engine, engine.read_state(stream)) == content
    before = wait(engine, engine.read_state("b"))
    refuse(engine, engine.write_state("b", content[:-9]), BadInput, "not a complete state file")
    refuse(engine, engine.write_state("b", make_method("tent", 1).dump()), BadInput, "The state belongs to tent")
    refuse(engine, engine.write_state("other", b"x"), BadInput, "not a complete state file")
    assert wait(engine, engine.read_state("b")) == before
    assert engine.read_overview().streams == 3
    engine.close()


OF_ANOTHER = "(SELECT record FROM streams WHERE name = 'a')"


@pytest.mark.parametrize("damage", ["x'00'", OF_ANOTHER])
def test_stream_with_a_damaged_record_fails_alone_and_can_be_deleted(tmp_path: Path, damage: str) -> None:
    engine = make_engine(tmp_path / "s")
    ask(engine, make_request("a", 0), make_request("b", 0), make_request("c", 0))
    engine._store._writer.execute(f"UPDATE streams SET record = {damage} WHERE name = 'b'")
    engine.close()
    engine = make_engine(tmp_path / "s")
    futures = [engine.submit(make_request(stream, 1)) for stream in "abc"]
    refuse(engine, futures[1], StreamDamaged, "stream 'b' is damaged")
    assert [future.result(0).seq for future in (futures[0], futures[2])] == [2, 2]
    assert {one.stream: one.health for one in engine.list_streams()} == {"a": "ok", "b": "damaged", "c": "ok"}
    assert engine.find("b").status.health == "damaged"
    refuse(engine, engine.read_state("b"), StreamDamaged, "stream 'b' is damaged")
    assert wait(engine, engine.act("b", "delete")).health == "deleted"
    assert [one.stream for one in engine.list_streams()] == ["a", "c"]
    assert engine.read_overview().by_health == {"ok": 2}
    assert ask(engine, make_request("b", 0))[0].seq == 1
    engine.close()


@pytest.mark.parametrize(("durability", "shared"), [("answer", False), ("interval", True)])
def test_damaged_kept_answer_fails_its_retry_alone(tmp_path: Path, durability: str, shared: bool) -> None:
    path, clock = tmp_path / "s", Clock()
    kept = SharedSqliteStore(path, describe_identity(make_method())) if shared else None
    engine = make_engine(None if shared else path, shared=kept, clock=clock, durability=durability)
    ask(engine, make_request("a", 0, key="k", digest="d"))
    clock.now += 2.0  # after the interval
    run(engine)
    engine._store._writer.execute("UPDATE answers SET content = x'00'")
    again, other = engine.submit(make_request("a", 0, key="k", digest="d")), engine.submit(make_request("b", 0))
    refuse(engine, again, StreamDamaged, "the key 'k' of stream 'a' is damaged. The request was applied")
    assert other.result(0).seq == 1
    assert engine.read_overview().state == "ready"
    assert ask(engine, make_request("a", 1, key="l", digest="d"))[0].seq == 2
    engine.close()


def test_streams_can_be_deleted_on_a_full_disk(tmp_path: Path) -> None:
    clock = Clock()
    engine = make_engine(tmp_path / "s", clock=clock)
    ask(engine, *(make_request(stream, 0) for stream in "abc"))
    writer = engine._store._writer
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages}")
    for k in range(1, 50):
        full = engine.submit(make_request("a", k, 32))
        run(engine)
        if full.exception(0):
            break
    assert "disk is full" in engine.read_overview().reason
    refuse(engine, engine.act("b", "pause"), StoreFailed, "nothing was changed")
    for stream in "bc":
        assert wait(engine, engine.act(stream, "delete")).health == "deleted"
    assert [one.stream for one in engine.list_streams()] == ["a"]
    clock.now += 10.0  # the store is tried again
    run(engine)
    assert engine.read_overview().state == "ready"
    assert ask(engine, make_request("a", 1))[0].saved
    engine.close()


def test_every_request_of_a_batch_finishes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "s", None):
        engine = make_engine(path)
        ask(engine, *(make_request(stream, 0) for stream in "abc"))
        plain = engine._worker._make_note

        def fail(request: StepRequest, *values: Any, plain: Any = plain) -> Any:
            if request.stream == "b":
                raise TypeError("of this stream alone")
            return plain(request, *values)

        with monkeypatch.context() as broken:
            broken.setattr(engine._worker, "_make_note", fail)
            futures = [engine.submit(make_request(stream, 1)) for stream in "abc"]
            refuse(engine, futures[1], ComputeFailed, "of this stream alone")
        assert [future.result(0).seq for future in (futures[0], futures[2])] == [2, 2]
        check_state(engine, "b", range(1))
        assert ask(engine, make_request("b", 1))[0].seq == 2
        for stream in "abc":
            check_state(engine, stream, range(2))
        engine.close()


def test_new_streams_are_refused_beyond_the_limit() -> None:
    engine = make_engine(max_streams=2)
    futures = [engine.submit(make_request(stream, 0)) for stream in "abc"]
    refuse(engine, futures[2], StreamLimit, "new stream 'c' exceeds the limit of 2 streams; delete one")
    assert [future.result(0).seq for future in futures[:2]] == [1, 1]
    assert ask(engine, make_request("c", 0, mode="answer"))[0].seq == 0  # it leaves no trace
    content = wait(engine, engine.read_state("a"))
    refuse(engine, engine.write_state("c", content), StreamLimit, "new stream 'c'")
    assert [answer.seq for answer in ask(engine, make_request("a", 1), make_request("b", 1))] == [2, 2]
    wait(engine, engine.act("a", "delete"))
    assert ask(engine, make_request("c", 0))[0].seq == 1
    refuse(engine, engine.submit(make_request("a", 0)), StreamLimit, "new stream 'a'")
    engine.close()


def test_limit_counts_streams_whose_commit_is_under_way(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s", max_streams=2)
    first = engine.submit(make_request("a", 0))
    work_without_commit(engine)
    engine.submit(make_request("b", 0))
    late = engine.submit(make_request("c", 0))
    refuse(engine, late, StreamLimit, "new stream 'c'")
    assert first.result(0).seq == 1
    engine.close()


# Labels.


def test_labels_for_monitoring_give_accuracies_and_change_no_state(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s", resident=2)
    (answer,) = ask(engine, make_request("a", 0))
    ask(engine, make_request("b", 0), make_request("c", 0))  # "a" makes room: its note is read from the store
    stored, content = engine._store.claim("a").state, wait(engine, engine.read_state("a"))
    given = [one.label for one in answer.answers]
    wrong = next(name for name in NAMES if name != given[1])
    status = wait(engine, engine.add_labels("a", 1, [given[0], wrong, None], teach=False))
    assert status.labelled == 2
    assert status.accuracy == pytest.approx(0.5, abs=0.01)
    frozen = lmr.create("zeroshot", make_method().classifier).predict(make_images("a", 0)).labels.tolist()
    assert status.frozen_accuracy == float(NAMES[frozen[0]] == given[0])  # one image in three is compared
    assert status.compared_accuracy == 1.0
    assert wait(engine, engine.add_labels("a", 1, [None, wrong, given[2]], teach=False)).labelled == 3
    assert engine._store.claim("a").state == stored
    assert wait(engine, engine.read_state("a")) == content
    history = engine.find("a").history
    assert history[-1]["accuracy"] == pytest.approx(2 / 3, abs=0.01)
    ask(engine, make_request("a", 1, 2, errors={0: "not an image", 2: "broken"}))
    refuse(engine, engine.add_labels("a", 2, [None] * 3), BadInput, "Expected 4 labels for request 2, got 3")
    refuse(engine, engine.add_labels("a", 2, [NAMES[0]] * 4), BadInput, "Image 0 of request 2 has no answer")
    assert wait(engine, engine.add_labels("a", 2, [None, NAMES[0], None, NAMES[0]], teach=False)).labelled == 5
    engine.close()
    again = make_engine(tmp_path / "s")
    assert again.find("a").status.labelled == 5
    again.close()


def test_labels_enter_the_class_shares_that_a_method_counts(tmp_path: Path) -> None:
    """Each label once, in place of the frozen model's answer, and they survive a restart."""
    names = ["red ring", "blue star", "green heart"]
    clip = load_pocket().classifier(names)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1)) + torch.arange(3.0).view(3, 1, 1, 1)

    def begin() -> tuple[Engine, lmr.Method]:
        method = lmr.create("steady", clip, preset="auto", streams=2)
        store = SqliteStore(tmp_path / "s", describe_identity(method))
        engine = Engine(lmr.Watched(method), names, ServiceSettings(resident=2, max_wait_ms=0.0), store, threads=False)
        engine.start()
        return engine, method

    engine, method = begin()
    (answer,) = ask(engine, StepRequest("a", images))
    ask(engine, StepRequest("b", images))
    assert engine.find("a").status.adapting == "quiet"
    assert engine.read_overview().by_phase == {"quiet": 2}
    counts, given = method.state["history"].clone(), names.index(str(answer.answers[0].label))
    truth = (given + 1) % 3
    wait(engine, engine.add_labels("a", 1, [names[truth], None, None]))
    expected = counts.clone()
    expected[0, given] = (counts[0, given] - 1).clamp(min=0)
    expected[0, truth] += 1
    assert torch.equal(method.state["history"], expected)
    wait(engine, engine.add_labels("a", 1, [names[truth], None, None]))  # it has this label already
    assert torch.equal(method.state["history"], expected)
    other = ({0, 1, 2} - {given, truth}).pop()
    wait(engine, engine.add_labels("a", 1, [names[other], None, None]))
    expected[0, truth] -= 1
    expected[0, other] += 1
    assert torch.equal(method.state["history"], expected)
    engine.close()
    engine, method = begin()
    wait(engine, engine.read_state("a"))
    assert torch.equal(method.state["history"][:1], expected[:1])
    engine.close()


# What others see.


def test_detail_list_and_overview(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s", resident=2)
    (answer, *_) = ask(engine, *(make_request(stream, 0) for stream in "cab"))
    detail = engine.find("c")
    assert detail.status.seq == 1
    assert [(one["seq"], one["label"]) for one in detail.answers] == [(1, one.label) for one in answer.answers]
    assert sum(share for _, share in detail.shares) == pytest.approx(1)
    assert detail.history[0].keys() >= {"seq", "concentration", "entropy", "drift", "agreement", "frozen_accuracy"}
    assert detail.signals["compared"] == 1
    assert [one.stream for one in engine.list_streams(limit=2)] == ["a", "b"]
    assert [one.stream for one in engine.list_streams(after="a")] == ["b", "c"]
    waiting = engine.submit(make_request("b", 1))
    status = wait_for_status(engine, "b")
    assert status.waiting == 1
    run(engine)
    assert waiting.result(0).timing.keys() == {"queue_ms", "step_ms", "batch_images", "batch_streams"}
    overview = engine.read_overview()
    assert (overview.state, overview.streams, overview.resident, overview.in_flight) == ("ready", 3, 2, 0)
    assert overview.by_health == {"ok": 3}
    assert overview.store_bytes > 0
    json.dumps([dataclasses.asdict(overview), dataclasses.asdict(detail)])
    engine.close()
    again = make_engine(tmp_path / "s")
    assert again.read_overview().by_health == {"ok": 3}
    assert again.read_overview().change > overview.change
    assert again.read_changes(overview.change, 10).lost
    again.close()


def wait_for_status(engine: Engine, stream: str) -> Any:
    return next(one for one in engine.list_streams() if one.stream == stream)


def test_changes_are_followed() -> None:
    engine = make_engine()
    start = engine.read_overview().change
    ask(engine, make_request("a", 0), make_request("b", 0))
    wait(engine, engine.act("a", "pause"))
    changes = engine.read_changes(start, 10)
    assert [(one.stream, one.health) for one in changes.streams] == [("b", "ok"), ("a", "paused")]
    assert [(one.stream, one.kind, one.before, one.after) for one in changes.events] == [
        ("a", "operator", "ok", "paused")
    ]
    assert (changes.upto, changes.lost) == (engine.read_overview().change, False)
    assert engine.read_changes(changes.upto, 10).streams == []


def test_change_of_health_is_an_event(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s")
    ask(engine, make_request("a", 0))
    method = engine.method.method
    assert isinstance(method, lmr.Watched)
    loud = dataclasses.replace(
        method.settings.thresholds, entropy=1e6, spread=1e6, entropy_ratio=0.0, least=1, confirm=1
    )
    method.settings = dataclasses.replace(method.settings, thresholds=loud)
    for k in range(1, 4):
        ask(engine, make_request("a", k))
    events = engine.find("a").events
    assert [(event.before, event.after) for event in events][:2] == [("ok", "suspected"), ("suspected", "reset")]
    assert "entropy" in events[0].message
    assert events[0].signals["compared"] > 0
    assert engine.find("a").status.health == "reset"
    engine.close()
    again = make_engine(tmp_path / "s")
    assert again.find("a").events == events
    again.close()


# Threads, and the end.


def list_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("lmr-")}


def test_threads_serve_streams_as_alone_and_end(tmp_path: Path) -> None:
    before = list_threads()  # of a service that other tests share
    engine = make_engine(tmp_path / "s", threads=True, resident=4, max_wait_ms=2.0)
    futures = {(stream, k): engine.submit(make_request(stream, k)) for k in range(6) for stream in STREAMS}
    for stream in STREAMS:
        for k, expected in enumerate(run_alone(stream, range(6))[1]):
            answer = futures[stream, k].result(60)
            assert (answer.seq, answer.saved) == (k + 1, True)
            close_enough(read_logits(answer), expected)
    assert list_threads() > before
    engine.close()
    engine.close()
    assert isinstance(engine.submit(make_request("a", 0)).exception(0), NotReady)
    assert isinstance(engine.act("a", "reset").exception(0), NotReady)
    with pytest.raises(NotReady):
        engine.check_room("a", None)
    assert list_threads() <= before
    assert engine.read_overview().state == "closed"
    with pytest.raises(NotReady):
        engine.find("a")


def test_what_was_begun_is_finished_at_the_end_and_the_rest_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list_threads()
    engine = make_engine(threads=True, max_batch=1, max_images=1)
    step = engine.method.step
    begun, released = threading.Event(), threading.Event()

    def work_slowly(*given: Any) -> lmr.Prediction:
        begun.set()
        released.wait(30)
        return step(*given)

    monkeypatch.setattr(engine.method, "step", work_slowly)
    first, second = engine.submit(make_request("a", 0, 1)), engine.submit(make_request("a", 1, 1))
    begun.wait(30)
    closing = threading.Thread(target=engine.close)
    closing.start()
    with pytest.raises(NotReady, match="has been stopped"):
        second.result(30)
    released.set()
    closing.join(30)
    assert first.result(0).seq == 1  # it was begun, so it was finished
    assert list_threads() <= before


# Other classes.

OLD = ["red ring", "blue star", "green heart"]
NEW = ["green heart", "purple square", "red ring", "striped red star"]


@pytest.mark.parametrize("watched", [True, False])
def test_streams_follow_other_classes_over_a_restart(watched: bool, tmp_path: Path) -> None:
    batches = {stream: draw_batches([4, 4], seed=k) for k, stream in enumerate("abc")}

    def make_named(names: list[str], rows: int) -> lmr.Method | lmr.Watched:
        method = lmr.create("lmr", load_tiny().classifier(names), streams=rows)
        return lmr.Watched(method, WatchSettings(every=2)) if watched else method

    def start(names: list[str], adopt: bool) -> Engine:
        method = make_named(names, 2)
        store = SqliteStore(tmp_path / "s", describe_identity(method), adopt=adopt)
        engine = Engine(method, names, ServiceSettings(resident=2, max_wait_ms=0.0), store, threads=False)
        engine.start()
        return engine

    def check(k: int) -> None:
        for stream, method in alone.items():
            (answer,) = ask(engine, StepRequest(stream, batches[stream][k], top=9))
            expected = method.step(batches[stream][k]).probabilities[-1].tolist()
            names = method.classifier.names
            assert dict(answer.answers[-1].top) == pytest.approx(dict(zip(names, expected, strict=True)), abs=1e-5)

    alone = {stream: lmr.Labelled(make_named(OLD, 1)) for stream in batches}
    engine = start(OLD, False)
    check(0)
    assert wait(engine, engine.add_labels("a", 1, ["red ring"] * 4)).taught == 4
    alone["a"].learn_labels(range(4), [OLD.index("red ring")] * 4)
    engine.close()
    with pytest.raises(LmrError, match="another classes"):
        start(NEW, False)
    engine = start(NEW, True)
    alone = {stream: method.with_classes(load_tiny().classifier(NEW)) for stream, method in alone.items()}
    assert [one["label"] in OLD for one in engine.find("a").answers] == [True] * 4
    check(1)
    with pytest.raises(BadInput, match="do not include 'blue star'"):
        wait(engine, engine.add_labels("a", 2, ["blue star"] * 4))
    engine.close()
    start(NEW, False).close()


def test_unwatched_method_can_be_reset_alone() -> None:
    engine = make_engine(watch=None)
    ask(engine, make_request("a", 0))
    refuse(engine, engine.act("a", "rollback"), CannotDo, "needs a watch; start the service with --watch")
    status = wait(engine, engine.act("a", "reset"))
    assert (status.health, status.adapts) == ("unwatched", True)


def test_listener_that_fails_does_no_harm() -> None:
    engine, reports = make_engine(), []
    engine.listen(lambda report: 1 / 0)  # type: ignore[arg-type,return-value]
    engine.listen(reports.append)
    ask(engine, make_request("a", 0), make_request("b", 0, mode="answer"))
    assert [(one.images, one.streams, one.steps) for one in reports] == [(6, 2, 1)]
    assert reports[0].commit_seconds is not None
