"""A figure: the latency of one replica at different loads, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lab.scale.capacity import Capacity
from lab.scale.simulated_replica import SimulatedReplica
from lab.scale.simulation import SimulationPlan, draw_arrivals, make_times
from lmr.report.figures.drawing import DASHES, OURS, PALETTE, Drawing, label_ends, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SECONDS = 30.0
_LINES = ((50, "p50"), (95, "p95"), (99, "p99"))


def measure_loads(
    capacity: Capacity, plan: SimulationPlan, loads: Sequence[float] = LOADS, seconds: float = SECONDS
) -> dict[float, list[float]]:
    """Milliseconds of p50, p95 and p99 at each load: the share of what a replica can serve at most.

    That is given by the slower of its accelerator in full batches and its share of the disk.
    """
    options = capacity.options
    per_request = options.images_per_request / capacity.images_per_accelerator
    if options.durability == "answer":
        per_request = max(per_request, make_times(capacity).commit(1) - options.commit_ms / 1000)
    rate = options.fps / options.images_per_request
    found = {}
    for load in loads:
        streams = [f"camera-{k}" for k in range(max(1, round(load / per_request / rate)))]
        chance = np.random.default_rng([plan.seed, round(1000 * load)])
        arrivals = draw_arrivals(streams, rate, replace(plan, seconds=seconds), chance)
        log = SimulatedReplica(options.make_settings(len(streams)), make_times(capacity), streams).run(
            arrivals, options.images_per_request
        )
        found[load] = [1000 * float(value) for value in np.percentile(log.latencies, [p for p, _ in _LINES])]
    return found


def draw_loads(found: dict[float, list[float]], title: str) -> Drawing:
    """The figure."""

    def draw(axes: Axes) -> str:
        styles = [OURS, *({"color": PALETTE[k], "linestyle": DASHES[k + 1], "marker": "^sD"[k]} for k in range(2))]
        ends = []
        for k, (_, name) in enumerate(_LINES):
            values = [found[load][k] for load in found]
            axes.plot([100 * load for load in found], values, **styles[k])
            ends.append((name, 100 * max(found), values[-1], str(styles[k]["color"])))
        axes.set_xlabel("load of a replica (% of the most it can serve)")
        axes.set_ylabel("latency (ms)")
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        label_ends(axes, ends)
        return "Simulated latency of one replica over its load."

    return render("scale-latency", "", draw, (4.2, 2.6))
