"""``python -m lab.ray_cost``: the speed of a bench on Ray nodes and with worker processes, alternating in one run."""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.command import build_parser, run_command
from lmr.bench.plans.plan import Plan, choose_plans
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.bench import StartWorkers, run_bench
from lmr.bench.running.row import Row
from lmr.bench.running.workers import Event, WorkerPool, Workers
from lmr.bench.table import format_table
from lmr.cluster.nodes import find_nodes
from lmr.cluster.ray_bench import RayWorkers
from lmr.cluster.ray_connection import import_ray
from lmr.core.errors import LmrError

NODES = 2  # with one core each; as many workers on this machine
AIM = 0.9  # of the images per second of the workers

DESCRIPTION = """\
Run a plan in turns with two worker processes of this machine and on a Ray cluster of two nodes with one core each,
which is started for this measurement. Images per second are counted from when every worker has finished a run, while
all are busy; the time until then is reported separately. The rows of both must be the same. Run nothing else meanwhile.
Needs pip install 'lmr[ray]'."""

EXAMPLES = """\
examples:
  python -m lab.ray_cost --images 256 --turns 1                       a short form
  python -m lab.ray_cost photo --root ~/data --images 500 --seeds 1   a part of the plan photo"""


@dataclass(frozen=True)
class Turn:
    """One bench: seconds until every worker had finished a run, and the images and seconds from then on."""

    start: float
    images: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return the images per second."""
        return self.images / self.seconds


@dataclass(frozen=True)
class Overhead:
    """Benches on this machine and on Ray in pairs, and the seconds that the nodes took to start."""

    workers: list[Turn]
    nodes: list[Turn]
    cluster_seconds: float
    rows: int  # of each bench; all are the same

    @property
    def shares(self) -> list[float]:
        """Return the images per second on Ray divided by those of the workers, turn by turn."""
        return [there.rate / here.rate for here, there in zip(self.workers, self.nodes, strict=True)]

    def describe(self) -> str:
        """Return the table and the verdict as text."""
        lines = [["", "images/s", "in the turns", "start-up s"]]
        kinds = {f"{NODES} workers": self.workers, f"{NODES} nodes on Ray": self.nodes}
        for name, turns in kinds.items():
            rates, start = [turn.rate for turn in turns], statistics.median(turn.start for turn in turns)
            spread = f"{min(rates):.1f} - {max(rates):.1f}"
            lines.append([name, f"{statistics.median(rates):.1f}", spread, f"{start:.1f}"])
        share = statistics.median(self.shares)
        verdict = "met" if share >= AIM else "missed"
        spread = f"{min(self.shares):.2f} to {max(self.shares):.2f} in the turns"
        return "\n".join(
            [
                format_table(lines),
                "",
                f"Share: {share:.2f} ({spread}); aim: >= {AIM:g}, {verdict}.",
                f"The nodes themselves took {self.cluster_seconds:.1f} s to start, once. "
                f"All {self.rows} rows are the same on both sides.",
            ]
        )


class TimedWorkers:
    """Workers whose time is measured from when each has finished a run until the first has no task left."""

    def __init__(self, pool: Workers) -> None:
        self.pool, self.count = pool, pool.count
        self.turn: Turn | None = None
        self._started = time.monotonic()

    def __enter__(self) -> TimedWorkers:
        self.pool.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self.pool.__exit__(*problem)

    def describe(self, worker: int) -> str:
        """Return where a worker is."""
        return self.pool.describe(worker)

    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Yield the events of the workers."""
        done, images, warm = 0, 0, dict[int, float]()
        images_before = 0
        for event in self.pool.run(tasks):
            now = time.monotonic()
            if event.kind in ("done", "failed"):
                done, images = done + 1, images + event.task.images
                if event.worker not in warm and len(warm) < self.count:
                    warm[event.worker], images_before = now, images
                if done == len(tasks) - self.count + 1 and len(warm) == self.count:
                    first = max(warm.values())
                    self.turn = Turn(first - self._started, images - images_before, now - first)
            yield event


def measure_overhead(plans: Sequence[Plan], turns: int, root: str | None, log: Callable[[str], None]) -> Overhead:
    """Run the plans ``turns`` times with workers of this machine and as often on the nodes of a cluster."""
    if turns < 1:
        raise LmrError(f"Expected at least one turn, got {turns}.")
    if len(list_tasks(list(plans), root, log)) <= 2 * NODES:
        raise LmrError(f"Expected a plan with more than {2 * NODES} runs, so that all workers are busy for a time.")
    began = time.monotonic()
    with _start_nodes() as ray:
        find_nodes(ray)  # starts a process on each
        cluster_seconds = time.monotonic() - began

        def start_here(tasks: Sequence[Task], folder: Path, seconds: float) -> WorkerPool:
            return WorkerPool(NODES, 1, folder, seconds)

        def start_there(tasks: Sequence[Task], folder: Path, seconds: float) -> RayWorkers:
            return RayWorkers(ray, folder, 1, None, NODES)

        found: dict[StartWorkers, list[Turn]] = {start_here: [], start_there: []}
        kept: dict[str, Any] = {}
        for number in range(turns):
            for start, side in found.items():
                turn, rows = _run(plans, root, start)
                side.append(turn)
                own = {row.run: row.compare() for row in rows}
                if own != (kept or own):
                    raise LmrError("The rows of the workers and of the nodes differ; please report this.")
                kept = own
            here, there = (side[-1].rate for side in found.values())
            log(f"turn {number + 1} of {turns}: {here:.1f} images/s with workers, {there:.1f} on Ray.")
    return Overhead(found[start_here], found[start_there], cluster_seconds, len(kept))


def _run(plans: Sequence[Plan], root: str | None, start: StartWorkers) -> tuple[Turn, list[Row]]:
    timed: list[TimedWorkers] = []

    def start_timed(tasks: Sequence[Task], folder: Path, seconds: float) -> TimedWorkers:
        timed.append(TimedWorkers(start(tasks, folder, seconds)))
        return timed[0]

    with TemporaryDirectory(prefix="lmr-cost-ray-") as folder:
        result = run_bench(plans, folder, root=root, screen=io.StringIO(), start_workers=start_timed)
    if result.failures:
        raise LmrError(f"A run failed: {result.failures[0].message}")
    turn = timed[0].turn
    if turn is None or not turn.images:
        raise LmrError(f"The plan ended soon after {NODES} workers had begun; give one with more or longer runs.")
    return turn, result.rows


@contextlib.contextmanager
def _start_nodes() -> Iterator[Any]:
    """Start nodes with one core each on this machine and connect Ray to them."""
    ray = import_ray()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; return the exit code."""
    parser = build_parser("ray_cost", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("plan", nargs="?", default="photo-quick", metavar="PLAN", help="as for lmr bench (default: %(default)s)")
    add("--turns", type=int, default=3, metavar="N", help="benches of each kind (default: %(default)s)")
    add("--images", type=int, metavar="N", help="use the first N images of each stream (default: all)")
    add("--methods", nargs="+", metavar="SPEC", help="in place of the plan's methods")
    add("--seeds", nargs="+", type=int, metavar="N", help="in place of the plan's seeds")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Measure the plan and print the table."""
    given = {key: getattr(options, key) for key in ("images", "methods", "seeds")}
    plans = choose_plans([options.plan], {key: value for key, value in given.items() if value is not None})
    print(measure_overhead(plans, options.turns, options.root, lambda text: print(text, file=sys.stderr)).describe())


if __name__ == "__main__":
    sys.exit(main())
