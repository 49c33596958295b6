"""The experiments by name, and how they are run one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.load.disk_full import measure_full_disk
from lab.load.draining import measure_drain
from lab.load.hostile_input import measure_hostile
from lab.load.kill_loop import measure_kills
from lab.load.load_bench import LoadBench
from lab.load.load_result import LoadResult
from lab.load.many_streams import measure_many_streams
from lab.load.overload import measure_overload
from lab.load.ray_replicas import measure_ray_latency, measure_replicas
from lab.load.throughput import measure_latency, measure_pocket_1, measure_pocket_8, measure_vit
from lmr.core.errors import LmrError

EXPERIMENTS: dict[str, Callable[[LoadBench], LoadResult]] = {
    "throughput-vit": measure_vit,
    "throughput-8": measure_pocket_8,
    "throughput-1": measure_pocket_1,
    "latency": measure_latency,
    "overload": measure_overload,
    "streams": measure_many_streams,
    "kill": measure_kills,
    "disk-full": measure_full_disk,
    "bad-input": measure_hostile,
    "sigterm": measure_drain,
}
ON_RAY: dict[str, Callable[[LoadBench], LoadResult]] = {  # these need Ray, and are run by name alone
    "ray": measure_replicas,
    "ray-latency": measure_ray_latency,
}


def run_load(
    names: Sequence[str] = (),
    *,
    short: bool = False,
    seed: int = 0,
    kills: int = 200,
    out: str | None = None,
    folder: str | None = None,
    say: Callable[[str], object] = lambda words: None,
) -> list[LoadResult]:
    """Run the named experiments, or all that need no Ray.

    Each result is added to ``out`` as a line of JSON as soon as it is there. ``folder`` keeps models, stores and logs;
    without it they are in a temporary folder and deleted.
    """
    if kills < 1:
        raise LmrError(f"Expected at least one kill, got {kills}.")
    known = EXPERIMENTS | ON_RAY
    for name in names:
        if name not in known:
            raise LmrError(f"There is no experiment {name!r}; choose from: {', '.join(known)}.")
    results = []
    with tempfile.TemporaryDirectory(prefix="lmr-load-") as temporary:
        place = Path(temporary if folder is None else folder)
        place.mkdir(parents=True, exist_ok=True)
        bench = LoadBench(place, short, seed, kills, say)
        for name in names or EXPERIMENTS:
            say(f"{name} ...")
            result = known[name](bench)
            say(f"{name}: {result.found} ({result.verdict})")
            results.append(result)
            if out is not None:
                with open(out, "a", encoding="utf-8") as file:
                    file.write(result.to_json() + "\n")
    return results
