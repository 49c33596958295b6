"""The simulation of a whole plan: the same for the same seed, and near the table where chance matters little."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from lab.scale.capacity import Capacity, work_out
from lab.scale.options import ScaleOptions
from lab.scale.simulation import SimulationPlan, draw_arrivals, rescale, simulate
from lmr.core.errors import LmrError


def plan_small(**values: Any) -> Capacity:
    small: dict[str, Any] = {"streams": 2000, "fps": 1.0, "model": "pocket", "gpu_tflops": 0.5, "classes": 10}
    return work_out(ScaleOptions(**small | {"gpus_per_machine": 1, "disk_mb_s": 400.0} | values))


def test_a_seed_decides_everything() -> None:
    capacity = plan_small()
    first = simulate(capacity, SimulationPlan(seconds=3.0, seed=1))
    assert simulate(capacity, SimulationPlan(seconds=3.0, seed=1)) == first
    assert simulate(capacity, SimulationPlan(seconds=3.0, seed=2)) != first


def test_the_table_and_the_simulation_agree() -> None:
    capacity = plan_small(durability="interval", interval=2.0)
    result = simulate(capacity, SimulationPlan(seconds=10.0))
    assert result.sent == result.answered == 20_000
    assert result.refused == result.expired == result.starved == result.evictions == 0
    assert result.median == pytest.approx(capacity.steady.median_seconds, rel=0.25)
    assert result.batch_images == pytest.approx(capacity.steady.batch_images, rel=0.25)
    assert result.written_per_second == pytest.approx(capacity.find_written("interval"), rel=0.25)
    assert result.median <= result.p95 <= result.p99 <= result.longest
    assert result.resident == 2000


def test_few_rows_cost_reads() -> None:
    capacity = plan_small()
    result = simulate(capacity, SimulationPlan(seconds=3.0, rows=20))
    assert result.answered + result.refused + result.expired == result.sent
    assert result.evictions > 0.5 * result.answered
    assert result.resident <= 20 * result.replicas


def test_a_replica_that_is_too_slow_refuses() -> None:
    capacity = plan_small()
    slow = dataclasses.replace(capacity, seconds_per_image=10 * capacity.seconds_per_image)
    result = simulate(slow, SimulationPlan(seconds=3.0))
    assert result.refused > 0
    assert result.sent == result.answered + result.refused + result.expired


def test_fewer_streams_have_a_plan_of_their_own() -> None:
    capacity = plan_small()
    small = rescale(capacity, 500)
    assert small.options.streams == 500
    assert small.replicas < capacity.replicas
    assert rescale(capacity, 10_000) is capacity


@pytest.mark.parametrize("kind", ["regular", "poisson"])
def test_arrivals_have_their_rate_and_are_in_order(kind: Any) -> None:
    streams = [f"s{k}" for k in range(50)]
    plan = SimulationPlan(seconds=40.0, arrivals=kind)
    arrivals = draw_arrivals(streams, 2.0, plan, np.random.default_rng(0))
    times = [time for time, _ in arrivals]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 40
    assert len(arrivals) == pytest.approx(4000, rel=0.05)
    own = np.diff([time for time, stream in arrivals if stream == "s7"])
    assert (own.std() < 1e-9) == (kind == "regular")
    assert draw_arrivals([], 2.0, plan, np.random.default_rng(0)) == []


def test_bad_plans_are_refused() -> None:
    with pytest.raises(LmrError, match="seconds of the simulation to be positive, got 0"):
        SimulationPlan(seconds=0)
    with pytest.raises(LmrError, match="rows of the simulation"):
        SimulationPlan(rows=-1)
    with pytest.raises(LmrError, match="seed that is not negative"):
        SimulationPlan(seed=-1)
    with pytest.raises(LmrError, match="lower --seconds"):
        simulate(plan_small(), SimulationPlan(seconds=1e6))
    with pytest.raises(LmrError, match="No request came"):
        simulate(plan_small(streams=1, fps=1e-6), SimulationPlan(seconds=0.001))
