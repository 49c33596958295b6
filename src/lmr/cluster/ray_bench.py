"""``lmr bench --ray``: the bench of one machine with a pool on the nodes of a cluster."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from lmr.bench.plans.choices import FOLDER
from lmr.bench.plans.plan import Plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.bench import BenchResult, are_small, check_workers, run_bench
from lmr.bench.running.run import SAVE_SECONDS
from lmr.cluster.nodes import (
    Node,
    check_nodes,
    choose_threads,
    count_places,
    describe_workers,
    find_nodes,
    list_versions,
)
from lmr.cluster.ray_pool import RayPool


def run_ray_bench(
    ray: Any,
    plans: Sequence[Plan],
    folder: str | os.PathLike[str] = FOLDER,
    workers: int | None = None,
    root: str | None = None,
    sources: Sequence[str | os.PathLike[str]] = (),
    *,
    save_seconds: float = SAVE_SECONDS,
    screen: TextIO | None = None,
) -> BenchResult:
    """Run a bench on the nodes of a cluster: the same rows and samples in ``folder``, written by this process.

    All nodes must have the same versions and, under ``root``, the same datasets. Every worker has one thread for small
    models, otherwise as many as the smallest node has cores; so has a bench that is resumed, whatever is left of it.
    """
    check_workers(workers)
    nodes, versions, shown = find_nodes(ray), list_versions(), screen or sys.stderr
    for message in check_nodes(nodes, versions):
        print(f"lmr: {message}", file=shown)
    for node in nodes:
        print(f"lmr: node {node.description}", file=shown)

    def start(tasks: Sequence[Task], target: Path, seconds: float) -> RayPool:
        count, threads = plan_workers(tasks, nodes, workers)
        return RayPool(ray, count, threads, target, seconds, versions, workers or len(tasks))

    return run_bench(
        plans, folder, root=root, sources=sources, save_seconds=save_seconds, screen=screen, start_workers=start
    )


def plan_workers(tasks: Sequence[Task], nodes: Sequence[Node], workers: int | None) -> tuple[int, int]:
    """Return the number of workers, and of the threads of each."""
    threads = choose_threads(are_small(tasks), nodes)
    places = count_places(nodes, threads)
    return min(workers or places, places), threads


def describe_placement(ray: Any, plans: Sequence[Plan], root: str | None, workers: int | None) -> str:
    """Describe the nodes, the workers, and the groups of runs that share a model and images."""
    nodes = find_nodes(ray)
    odd = check_nodes(nodes, list_versions())
    tasks = list_tasks(list(plans), root, lambda message: print(f"lmr: {message}", file=sys.stderr))
    count, threads = plan_workers(tasks, nodes, workers)
    lines = [*odd, *describe_workers(nodes, min(count, len(tasks)), threads)]
    groups = Counter((task.backbone, task.dataset, task.domain, task.severity) for task in tasks)
    for (backbone, dataset, domain, severity), runs in groups.items():
        lines.append(f"  {runs:4} runs on one worker: {backbone}, {dataset} {domain} {severity or ''}".rstrip())
    lines.append(f"Runs: {len(tasks)}, images: {sum(task.images for task in tasks):,}.")
    lines.append("A worker that has finished its group helps with another.")
    return "\n".join(lines)
