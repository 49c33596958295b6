"""``lmr scale`` as a function: the calculation, the simulation and the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.scale.capacity import work_out
from lab.scale.latency_figure import draw_loads, measure_loads
from lab.scale.scale_options import ScaleOptions
from lab.scale.scale_table import compare, describe_capacity, to_values
from lab.scale.simulation import Arrivals, SimulationPlan, rescale, simulate
from lmr.core.errors import LmrError


def run_scale(
    *,
    simulate_streams: int = 100_000,
    seconds: float = 60.0,
    seed: int = 1,
    arrivals: Arrivals = "regular",
    starved_s: float = 1.0,
    rows: int | None = None,
    figure: str | None = None,
    json: bool = False,
    **options: Any,
) -> str:
    """What ``lmr scale`` prints. ``options`` are those of ``ScaleOptions``, and ``simulate``."""
    simulated = options.pop("simulate", False)
    plan = SimulationPlan(simulate_streams, seconds, seed, arrivals, starved_s, rows)
    if figure is not None and Path(figure).suffix not in (".png", ".svg"):
        raise LmrError(f"Expected a figure that ends in .png or .svg, got {figure!r}.")
    capacity = work_out(ScaleOptions(**options))
    parts, result, small = [describe_capacity(capacity)], None, None
    if simulated:
        from tqdm import tqdm

        small = rescale(capacity, plan.streams)
        requests = round(small.options.requests_per_second * seconds)
        with tqdm(total=requests, unit="request", unit_scale=True, desc="simulated") as bar:
            result = simulate(small, plan, bar)
        parts.append(compare(small, plan, result))
    if figure is not None:
        found = measure_loads(capacity, plan)
        drawing = draw_loads(found, f"{capacity.options.model}, durability {capacity.options.durability}")
        target = Path(figure)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(drawing.png if target.suffix == ".png" else drawing.svg.encode())
        parts.append(f"Figure: {figure}")
    if json:
        return _write_json(to_values(capacity, plan if simulated else None, result))
    return "\n\n".join(parts)


def _write_json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=1)
