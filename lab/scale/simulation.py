"""Simulation of a router and its replicas under the streams of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lab.scale.capacity import Capacity, find_commit_seconds, work_out
from lab.scale.hash_ring import HashRing, hash_names
from lab.scale.replica import ReplicaLog, ReplicaTimes, SimulatedReplica
from lmr.core.errors import LmrError
from lmr.core.progress import ProgressBar

Arrivals = Literal["regular", "poisson"]
MOST_REQUESTS = 50_000_000


@dataclass(frozen=True)
class SimulationPlan:
    """The streams at most, the simulated seconds, and how requests arrive."""

    streams: int = 100_000
    seconds: float = 60.0  # simulated time
    seed: int = 1  # the same seed gives the same numbers
    arrivals: Arrivals = "regular"  # each stream sends at equal distances, or at random
    starved_seconds: float = 1.0  # a longer wait for a batch counts as starvation
    rows: int | None = None
    """states that a replica keeps in memory, to see the cost of fewer (default: what --memory-gb holds)"""

    def __post_init__(self) -> None:
        for name in ("streams", "seconds", "starved_seconds", "rows"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise LmrError(f"Expected {name.replace('_', ' ')} of the simulation to be positive, got {value:g}.")
        if self.seed < 0:
            raise LmrError(f"Expected a seed that is not negative, got {self.seed}.")


@dataclass(frozen=True)
class SimulationResult:
    """The counts of a simulation; times are in seconds."""

    streams: int
    replicas: int
    seconds: float
    sent: int
    answered: int
    refused: int
    expired: int
    median: float
    p95: float
    p99: float
    longest: float
    longest_wait: float
    starved: int  # streams that waited longer than ``starved_seconds``
    batch_images: float
    batch_fill: float  # of the limit
    busy: float
    busiest: float
    states_per_second: float
    written_per_second: float
    most_streams: int  # of one replica
    resident: int  # streams in memory at the end, of all replicas
    loads: int
    evictions: int
    moved: int  # streams that one more replica would take over


def simulate(capacity: Capacity, plan: SimulationPlan, bar: ProgressBar | None = None) -> SimulationResult:
    """Simulate the replicas of a plan, one after the other: a router by hash sends each stream to one of them."""
    options = capacity.options
    if options.requests_per_second * plan.seconds > MOST_REQUESTS:
        raise LmrError(
            f"{options.requests_per_second * plan.seconds:.0e} requests would take hours to simulate; lower --seconds "
            "or --simulate-streams."
        )
    names = [f"camera-{number}" for number in range(options.streams)]
    hashes = hash_names(names)
    owners = HashRing(capacity.replicas, options.virtual_nodes).assign(hashes)
    grown = HashRing(capacity.replicas + 1, options.virtual_nodes).assign(hashes)
    rows = plan.rows or max(1, int(options.memory_gb * 1e9 / max(1, capacity.sized.memory_bytes)))
    times = make_times(capacity)
    logs: list[ReplicaLog] = []
    for number in range(capacity.replicas):
        own = [names[k] for k in np.flatnonzero(owners == number)]
        rate = options.fps / options.images_per_request
        arrivals = draw_arrivals(own, rate, plan, np.random.default_rng([plan.seed, number]))
        replica = SimulatedReplica(options.make_settings(max(1, min(rows, len(own)))), times, own)
        logs.append(replica.run(arrivals, options.images_per_request))
        if bar is not None:
            bar.advance(len(arrivals))
    return sum_up(logs, capacity, plan, int(np.bincount(owners).max()), int((owners != grown).sum()))


def rescale(capacity: Capacity, streams: int) -> Capacity:
    """Return the same plan for fewer streams."""
    if streams >= capacity.options.streams:
        return capacity
    return work_out(replace(capacity.options, streams=streams))


def make_times(capacity: Capacity) -> ReplicaTimes:
    """Return the times of a replica by the formulas of the plan."""
    options = capacity.options
    rate = options.disk_mb_s * 1e6 / options.gpus_per_machine
    return ReplicaTimes(
        step=lambda images: options.find_step_seconds(images, capacity.seconds_per_image),
        commit=lambda states: find_commit_seconds(options, states, capacity.commit_bytes),
        read=capacity.sized.stored_bytes / rate,
    )


def draw_arrivals(
    streams: Sequence[str], rate: float, plan: SimulationPlan, chance: np.random.Generator
) -> list[tuple[float, str]]:
    """Return times and streams of requests, in order; ``rate`` is that of a stream.

    "regular": each stream sends at equal distances, from a random moment on. "poisson": at random moments.
    """
    if not streams:
        return []
    if plan.arrivals == "poisson":
        count = int(chance.poisson(len(streams) * rate * plan.seconds))
        times = chance.uniform(0.0, plan.seconds, count)
        which = chance.integers(len(streams), size=count)
    else:
        times, which = _draw_regular(len(streams), rate, plan.seconds, chance)
    order = np.argsort(times, kind="stable")
    return [(time, streams[k]) for time, k in zip(times[order].tolist(), which[order].tolist(), strict=True)]


def _draw_regular(
    streams: int, rate: float, seconds: float, chance: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    phases = chance.uniform(0.0, 1 / rate, streams)
    rounds = np.arange(int(seconds * rate) + 1)
    times = (phases[:, None] + rounds[None, :] / rate).ravel()
    which = np.repeat(np.arange(streams), len(rounds))
    inside = times < seconds
    return times[inside], which[inside]


def sum_up(
    logs: Sequence[ReplicaLog], capacity: Capacity, plan: SimulationPlan, most_streams: int, moved: int
) -> SimulationResult:
    """Return the numbers of all replicas together; shares of time refer to the simulated seconds."""
    latencies = np.concatenate([np.array(log.latencies) for log in logs])
    batches = np.concatenate([np.array(log.batches) for log in logs])
    if not len(latencies):
        raise LmrError("No request came in the simulated time; raise --seconds or --fps.")
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99])
    busy = [log.busy / max(plan.seconds, log.ended) for log in logs]
    states = sum(log.states_written for log in logs) / plan.seconds
    summed = ("sent", "answered", "refused", "expired", "resident", "loads", "evictions")
    return SimulationResult(
        **{key: sum(getattr(log, key) for log in logs) for key in summed},
        streams=capacity.options.streams,
        replicas=len(logs),
        seconds=plan.seconds,
        median=float(p50),
        p95=float(p95),
        p99=float(p99),
        longest=float(latencies.max()),
        longest_wait=max(max(log.waits, default=0.0) for log in logs),
        starved=sum(wait > plan.starved_seconds for log in logs for wait in log.waited.values()),
        batch_images=float(batches.mean()),
        batch_fill=float(batches.mean() / capacity.batch_limit),
        busy=float(np.mean(busy)),
        busiest=max(busy),
        states_per_second=states,
        written_per_second=states * capacity.commit_bytes,
        most_streams=most_streams,
        moved=moved,
    )
