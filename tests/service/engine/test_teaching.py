"""Labels in the engine: they correct the answers of their stream, once each, and are kept as the state is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
from engine_maker import (
    NAMES,
    SharedSqliteStore,
    ask,
    make_engine,
    make_images,
    make_method,
    make_request,
    read_logits,
    wait,
)
from lmr.core.labelled import RECENT
from lmr.core.state import decode_state
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.requests import BadInput, QueuedImage, Refused, StepRequest, StreamMoved, UnknownStream
from lmr.service.engine.status import StreamStatus


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = make_engine(tmp_path / "s", spec="zeroshot", resident=2)
    yield made
    made.close()


def teach(engine: Engine, stream: str, seq: int, labels: Sequence[int | None], **options: Any) -> StreamStatus:
    names = [None if label is None else NAMES[label] for label in labels]
    found = wait(engine, engine.add_labels(stream, seq, names, **options))
    assert isinstance(found, StreamStatus)
    return found


def answer(engine: Engine, stream: str, k: int, **options: Any) -> Tensor:
    return read_logits(ask(engine, make_request(stream, k, **options))[0])


def read_own(engine: Engine, stream: str) -> dict[str, Tensor]:
    tensors = decode_state(wait(engine, engine.read_state(stream)), "it")[0]
    return {key: value for key, value in tensors.items() if key.startswith("labels/")}


def refuse(engine: Engine, future: Future[Any], words: str, kind: type[Refused] = BadInput) -> None:
    with pytest.raises(kind, match=words):
        wait(engine, future)


def make_labelled() -> Any:
    return lmr.Labelled(make_method("zeroshot", 1))


def test_answers_are_those_of_the_library(engine: Engine) -> None:
    """With labels of one request and then of another, in a row that other streams use in between."""
    alone = make_labelled()
    for k in range(4):
        expected = alone.step(make_images("a", 0)).logits.log_softmax(1)
        torch.testing.assert_close(answer(engine, "a", 0), expected.double(), atol=1e-5, rtol=0)
        if k == 1:
            teach(engine, "a", 1, [1, None, 1])
            alone.learn_labels([0, 2], [1, 1])
        if k == 2:
            status = teach(engine, "a", 3, [None, 2, None])
            alone.learn_labels([7], [2])
            low, high = alone.estimate().interval
            assert (status.taught, status.estimated_labels) == (3, 3)
            assert status.estimated_accuracy == alone.estimate().accuracy
            assert status.estimated_interval == pytest.approx((low, high))
        ask(engine, make_request("b", k), make_request("c", k))
    offset = answer(engine, "a", 0, mode="answer") - answer(engine, "fresh", 0, mode="answer")
    assert offset.abs().max() > 0.1


def test_labels_change_no_other_stream(engine: Engine) -> None:
    expected = [answer(engine, "b", k) for k in range(3)]
    wait(engine, engine.act("b", "delete"))
    ask(engine, make_request("a", 0), make_request("b", 0))
    teach(engine, "a", 1, [1, 1, 1])
    both = [ask(engine, make_request("a", k), make_request("b", k))[1] for k in (1, 2)]
    for found, given in zip(both, expected[1:], strict=True):
        # A batch of two streams may round otherwise.
        torch.testing.assert_close(read_logits(found), given, atol=1e-5, rtol=1e-5)
    assert engine.find("b").status.taught == 0
    assert not read_own(engine, "b")


def test_a_corrected_label_replaces_the_first(engine: Engine) -> None:
    """All is as if the second had been the first."""
    for stream in "ab":
        ask(engine, StepRequest(stream, make_images("a", 0)))
    teach(engine, "a", 1, [1, None, 2])
    first, second = teach(engine, "a", 1, [3, None, None]), teach(engine, "b", 1, [3, None, 2])
    for key in ("taught", "labelled", "accuracy", "estimated_accuracy", "estimated_interval"):
        assert getattr(first, key) == getattr(second, key)
    other = read_own(engine, "b")
    assert all(torch.equal(value, other[key]) for key, value in read_own(engine, "a").items())


def test_replicas_share_labels_and_an_old_copy_is_refused(tmp_path: Path) -> None:
    store = SharedSqliteStore(tmp_path / "s", describe_identity(make_method("zeroshot")))
    one, two = (make_engine(spec="zeroshot", shared=store) for _ in range(2))
    answer(one, "a", 0)
    assert teach(two, "a", 1, [1, None, None]).taught == 1
    with pytest.raises(StreamMoved):
        teach(one, "a", 1, [None, 2, None])
    assert teach(one, "a", 1, [None, 2, None]).taught == 2
    with pytest.raises(StreamMoved):
        answer(two, "a", 1)
    alone = make_labelled()
    alone.step(make_images("a", 0))
    alone.learn_labels([0, 1], [1, 2])
    torch.testing.assert_close(answer(two, "a", 0), alone.step(make_images("a", 0)).logits.log_softmax(1).double())
    store.close()


def test_queue_has_the_last_images_without_a_label(engine: Engine) -> None:
    ask(engine, make_request("a", 0, 2, errors={1: "not an image"}))
    teach(engine, "a", 1, [None, None, 1], teach=False)  # for monitoring: it can be taught still
    ask(engine, make_request("a", 1, 2))
    queue = [(one.seq, one.image, one.images) for one in engine.list_unlabelled("a")]
    assert queue == [(1, 0, 3), (1, 2, 3), (2, 0, 2), (2, 1, 2)]
    teach(engine, "a", 1, [None, None, 1])
    teach(engine, "a", 2, [1, None])
    assert [(one.seq, one.image) for one in engine.list_unlabelled("a")] == [(1, 0), (2, 1)]
    for _ in range(RECENT // 30 + 1):
        ask(engine, make_request("a", 2, 30))
    queue = engine.list_unlabelled("a")
    assert len(queue) == RECENT
    assert (queue[-1].seq, queue[-1].image) == (2 + RECENT // 30 + 1, 29)
    wait(engine, engine.act("a", "reset"))
    assert engine.list_unlabelled("a") == []
    with pytest.raises(UnknownStream):
        engine.list_unlabelled("b")


def test_images_of_the_queue_can_be_labelled_much_later(tmp_path: Path) -> None:
    """Also after a crash; of a busy camera the last 128 images are those of a few seconds."""
    engine = make_engine(tmp_path / "s", spec="zeroshot")
    ask(engine, make_request("a", 0))
    asked = engine.list_unlabelled("a")[:2]
    assert wait(engine, engine.ask_labels("a", asked)) == asked
    engine._store.close()
    engine = make_engine(tmp_path / "s", spec="zeroshot")
    for _ in range(RECENT // 30 + 1):
        ask(engine, make_request("a", 0, 30))
    assert wait(engine, engine.ask_labels("a", [QueuedImage(1, 2, 3)])) == []  # it is forgotten
    assert wait(engine, engine.ask_labels("a", [*asked, QueuedImage(9, 0, 1)])) == asked
    status = teach(engine, "a", 1, [1, 1, 1])
    assert (status.labelled, status.taught) == (3, 2)
    refuse(engine, engine.ask_labels("b", asked), "no stream 'b'", UnknownStream)
    engine.close()


def test_answers_and_lists_have_the_estimate(engine: Engine) -> None:
    (first,) = ask(engine, make_request("a", 0))
    assert not any("estimated" in key for key in first.adaptation)
    status = teach(engine, "a", 1, [1, 1, None])
    (second,) = ask(engine, make_request("a", 0, mode="answer"))
    assert second.adaptation["estimated_accuracy"] == status.estimated_accuracy
    assert second.adaptation["estimated_labels"] == 2
    ask(engine, make_request("b", 0))
    assert [one.stream for one in engine.list_estimated(10)] == ["a"]
    assert engine.list_estimated(0) == []


def test_old_images_are_counted_and_teach_nothing(engine: Engine) -> None:
    requests = RECENT // 30 + 2
    for k in range(requests):
        ask(engine, make_request("a", k, 30))
    status = teach(engine, "a", 1, [1] * 30)
    assert (status.labelled, status.taught) == (30, 0)
    status = teach(engine, "a", requests, [1] * 30)
    assert (status.labelled, status.taught) == (60, 30)


@pytest.mark.parametrize("action", ["reset", "write"])
def test_images_of_another_state_teach_nothing(engine: Engine, action: str) -> None:
    """Their numbers are those of other images now."""
    answer(engine, "a", 0)
    answer(engine, "b", 0)
    teach(engine, "a", 1, [1, None, None])
    if action == "reset":
        wait(engine, engine.act("a", "reset"))
    else:
        wait(engine, engine.write_state("a", wait(engine, engine.read_state("b"))))
    found = engine.find("a").status
    assert (found.taught, found.estimated_labels, found.estimated_accuracy) == (0, 0, None)
    assert teach(engine, "a", 1, [None, 1, None]).taught == 0
    answer(engine, "a", 1)
    assert teach(engine, "a", 2, [1, 1, 1]).taught == 3


def test_a_rollback_leaves_the_labels(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "s")
    for k in range(6):
        answer(engine, "a", k)
    teach(engine, "a", 6, [1, 1, None])
    own = read_own(engine, "a")
    status = wait(engine, engine.act("a", "rollback"))
    assert status.taught == 2
    assert all(torch.equal(value, own[key]) for key, value in read_own(engine, "a").items())
    engine.close()


def test_labels_of_other_images_wait(engine: Engine) -> None:
    """The status says since when no label is of images like the present ones."""
    answer(engine, "a", 0)
    assert teach(engine, "a", 1, [1, 1, None]).outdated is None
    bright = StepRequest("a", make_images("a", 0, 30) + 5)
    for _ in range(3):
        ask(engine, bright)
    found = engine.find("a").status
    assert (found.taught, found.estimated_labels, found.estimated_accuracy) == (2, 0, None)
    assert found.outdated == pytest.approx(found.updated, abs=60)
    assert teach(engine, "a", 4, [1, *[None] * 29]).outdated is None


def test_wrong_labels_are_refused_and_change_nothing(engine: Engine) -> None:
    answer(engine, "a", 0)
    before = engine.find("a")
    refuse(engine, engine.add_labels("a", 2, [NAMES[0]]), "has no request 2")
    refuse(engine, engine.add_labels("a", 1, [NAMES[0]]), "Expected 3 labels")
    refuse(engine, engine.add_labels("a", 1, [NAMES[0], "cow", None]), "do not include 'cow'")
    refuse(engine, engine.add_labels("a", 1, ["cow" * 100_000, None, None]), r"do not include 'cow.{37}\.\.\.';")
    assert engine.find("a") == before
    answer(engine, "a", 1, mode="answer")  # it has no number, so it cannot be labelled
    refuse(engine, engine.add_labels("a", 2, [NAMES[0]] * 3), "has no request 2")
    refuse(engine, engine.add_labels("b", 1, [NAMES[0]] * 3), "no stream 'b'", UnknownStream)
