"""The simulated replica: nothing is lost, no stream is twice in a step, and theory agrees where it is exact."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.scale.replica import ReplicaLog, ReplicaTimes, SimulatedReplica
from lab.scale.simulation import SimulationPlan, draw_arrivals
from lmr.service.engine.batch import Job
from lmr.service.settings import ServiceSettings


def serve(
    arrivals: Sequence[tuple[float, str]], streams: Sequence[str], times: ReplicaTimes, **values: object
) -> tuple[ReplicaLog, list[tuple[float, list[Job]]]]:
    batches: list[tuple[float, list[Job]]] = []
    given_settings = ServiceSettings(**{"resident": max(1, len(streams)), **values})  # type: ignore[arg-type]
    replica = SimulatedReplica(given_settings, times, streams)
    log = replica.run(arrivals, 1, lambda now, batch: batches.append((now, list(batch))))
    return log, batches


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(st.tuples(st.floats(0, 3), st.sampled_from("abcdefgh")), max_size=60),
    step=st.floats(0.001, 0.5),
    commit=st.floats(0, 0.5),
    rows=st.integers(1, 8),
    durability=st.sampled_from(["answer", "interval"]),
    queue=st.integers(1, 20),
    timeout=st.sampled_from([50.0, 30_000.0]),
)
def test_every_request_has_one_end(
    events: list[tuple[float, str]], step: float, commit: float, rows: int, durability: str, queue: int, timeout: float
) -> None:
    times = ReplicaTimes(lambda images: step + 0.01 * images, lambda states: commit + 0.001 * states, 0.002)
    log, batches = serve(
        sorted(events), "abcdefgh", times, resident=rows, max_batch=4, durability=durability, interval_s=0.3,
        queue_images=queue, max_images=1, queue_per_stream=3, timeout_ms=timeout,
    )  # fmt: skip
    assert log.sent == len(events) == log.answered + log.refused + log.expired
    assert log.answered == sum(len(batch) for _, batch in batches) == sum(log.batches)
    order: dict[str, float] = {}
    for now, batch in batches:
        names = [job.stream for job in batch]
        assert len(set(names)) == len(names) <= min(4, rows)
        for job in batch:
            assert job.arrived <= now
            assert order.get(job.stream, -1.0) <= job.arrived  # in the order of arrival
            order[job.stream] = job.arrived
    assert all(later >= step + 0.01 - 1e-9 for later in log.latencies)
    assert all(b - a >= step + 0.01 - 1e-9 for (a, _), (b, _) in itertools.pairwise(batches))
    assert log.resident <= rows
    assert log.evictions <= log.loads


def test_single_images_and_chance_give_the_wait_of_an_md1_queue() -> None:
    """Pollaczek and Khinchine: the mean wait is load x service / (2 (1 - load)), for a fixed time of service."""
    service, load = 0.01, 0.7
    streams = [f"s{k}" for k in range(2000)]
    plan = SimulationPlan(seconds=250.0, arrivals="poisson")
    arrivals = draw_arrivals(streams, load / service / len(streams), plan, np.random.default_rng(3))
    log, batches = serve(
        arrivals, streams, ReplicaTimes(lambda images: service, lambda states: 0.0),
        max_batch=1, max_wait_ms=0.0, queue_images=100_000, queue_per_stream=1000,
    )  # fmt: skip
    assert {len(batch) for _, batch in batches} == {1}
    assert log.refused == log.expired == 0
    assert log.busy / 250 == pytest.approx(load, rel=0.02)
    assert np.mean(log.waits) == pytest.approx(load * service / (2 * (1 - load)), rel=0.08)


def test_commits_overlap_steps_and_set_the_pace_where_they_are_slower() -> None:
    streams = [f"s{k}" for k in range(64)]
    arrivals = [(0.0, stream) for stream in streams]
    fast, _ = serve(arrivals, streams, ReplicaTimes(lambda images: 1.0, lambda states: 0.1), max_batch=8)
    slow, _ = serve(arrivals, streams, ReplicaTimes(lambda images: 0.1, lambda states: 1.0), max_batch=8)
    assert len(fast.batches) == len(slow.batches) == 8
    assert max(fast.latencies) == pytest.approx(8 * 1.0 + 0.1)
    assert max(slow.latencies) == pytest.approx(0.1 + 8 * 1.0)
    assert slow.busy == pytest.approx(0.8)


def test_interval_writes_the_last_state_once() -> None:
    arrivals = [(0.1 * k, "a") for k in range(100)]
    times = ReplicaTimes(lambda images: 0.01, lambda states: 0.001)
    every, _ = serve(arrivals, "a", times)
    seldom, _ = serve(arrivals, "a", times, durability="interval", interval_s=2.0)
    assert every.states_written == 100
    assert seldom.states_written == 5
    assert max(seldom.latencies) < min(every.latencies)


def test_least_recently_used_rows_are_of_no_use_to_cameras_in_turn() -> None:
    """Where cameras take turns and one has no row, the one that comes next is always the one that has just left."""
    streams = [f"s{k}" for k in range(10)]
    arrivals = [(0.1 * k, streams[k % 10]) for k in range(100)]
    times = ReplicaTimes(lambda images: 0.01, lambda states: 0.001, 0.02)
    log, _ = serve(arrivals, streams, times, resident=9)
    assert log.loads == log.evictions == 91
    whole, _ = serve(arrivals, streams, times)
    assert whole.loads == whole.evictions == 0
