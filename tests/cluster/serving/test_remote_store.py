"""Engines on stores of several partitions, with actors that are objects of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_maker import ask, make_engine, make_method, make_request, read_logits, run, run_alone
from lmr.cluster.serving.remote_store import RemoteStore
from lmr.cluster.serving.store_actor import StoreActor, name_files
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.requests import StoreFailed, StreamMoved
from lmr.service.store.stored_types import StoredEvent, Transaction

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
STREAMS = "abcdefgh"


class LocalActor:
    """An actor that is asked when its answer is fetched, and that can be away."""

    def __init__(self, actor: StoreActor) -> None:
        self.actor, self.away = actor, False
        self.call = SimpleNamespace(remote=self._send)

    def _send(self, name: str, *values: Any) -> Callable[[], Any]:
        def answer() -> Any:
            if self.away:
                raise ray.exceptions.GetTimeoutError("Get timed out: some object(s) not ready.")
            return self.actor.call(name, *values)

        return answer


@pytest.fixture
def actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LocalActor]]:
    def fetch(sent: Sequence[Callable[[], Any]], timeout: float) -> list[Any]:
        assert timeout > 0
        return [answer() for answer in sent]

    monkeypatch.setattr(ray, "get", fetch)
    identity = describe_identity(make_method())
    made = [LocalActor(StoreActor(str(path), identity)) for path in name_files(tmp_path, 3)]
    yield made
    for one in made:
        one.actor.close()


@pytest.fixture
def pair(actors: list[LocalActor], tmp_path: Path) -> tuple[Engine, Engine]:
    one, two = (make_engine(shared=RemoteStore(actors, tmp_path), resident=8) for _ in range(2))
    return one, two


def test_streams_of_all_partitions_are_served_by_turns(pair: tuple[Engine, Engine], actors: list[LocalActor]) -> None:
    for k in range(3):
        engine = pair[k % 2]
        requests = [make_request(stream, k, key=str(k), digest="d") for stream in STREAMS]
        if k == 2:  # it served the first request of each, and does not know that the other one served the second
            moved = [engine.submit(request) for request in requests]
            run(engine)
            assert all(isinstance(future.exception(0), StreamMoved) for future in moved)
        for stream, answer in zip(STREAMS, ask(engine, *requests), strict=True):
            assert answer.seq == k + 1
            expected = run_alone(stream, range(k + 1))[1][k]
            torch.testing.assert_close(read_logits(answer), expected, atol=1e-6, rtol=0)
    again = ask(pair[0], *(make_request(stream, 2, key="2", digest="d") for stream in STREAMS[:1]))
    assert [(one.seq, one.replayed) for one in again] == [(3, True)]
    counts = [sum(actor.actor.call("summarise")[0].by_health.values()) for actor in actors]
    assert sum(counts) == len(STREAMS)
    assert all(counts)


def test_lists_and_counts_are_of_all_partitions(pair: tuple[Engine, Engine]) -> None:
    one, two = pair
    ask(one, *(make_request(stream, 0) for stream in STREAMS))
    assert [status.stream for status in two.list_streams("b", 4)] == list("cdef")
    two.recount()
    assert two.read_overview().streams == len(STREAMS)
    assert two.read_overview().store_bytes > 0
    assert two.find("h").status.seq == 1


def test_events_of_the_service_are_in_the_first_partition(actors: list[LocalActor], tmp_path: Path) -> None:
    store = RemoteStore(actors, tmp_path)
    store.commit(Transaction(events=[StoredEvent("", "e")]))
    assert [actor.actor.call("read_events", "")[0] for actor in actors] == [["e"], [], []]


def test_store_that_is_away_is_a_store_that_fails(pair: tuple[Engine, Engine], actors: list[LocalActor]) -> None:
    one, _ = pair
    ask(one, *(make_request(stream, 0) for stream in STREAMS))
    for actor in actors:
        actor.away = True
    known, new = one.submit(make_request("a", 1)), one.submit(make_request("new", 0))
    run(one)
    for future in (known, new):
        with pytest.raises(StoreFailed, match="cannot be reached"):
            future.result(0)
    with pytest.raises(StoreFailed, match="cannot be read"):
        one.list_streams()
    assert one.read_overview().state == "degraded"
    for actor in actors:
        actor.away = False
    one.clock.now += 10  # type: ignore[attr-defined]
    run(one)
    assert one.read_overview().state == "ready"
    (answer,) = ask(one, make_request("a", 1))
    assert answer.seq == 2
    torch.testing.assert_close(read_logits(answer), run_alone("a", range(2))[1][1], atol=1e-6, rtol=0)
