"""``lmr predict --ray``: the streams of one machine, labelled on the nodes of a cluster; the output is the same."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from lmr.apps.predict.results import PredictSummary, RunTally
from lmr.apps.predict.run import Labeller
from lmr.apps.predict.streams import ImageStream, StreamParts, StreamPlan, predict_streams
from lmr.cluster.nodes import (
    Node,
    check_nodes,
    choose_threads,
    count_places,
    describe_workers,
    digest_method,
    find_nodes,
    list_versions,
)
from lmr.cluster.predicting.predict_actor import LabelSetup
from lmr.cluster.predicting.shard_pool import ShardJob, ShardPool, make_shards
from lmr.cluster.predicting.shard_view import ShardView
from lmr.core.errors import LmrError
from lmr.core.foreign_text import make_printable

SAVE_SECONDS = 5.0  # between reports of answers to the driver


def run_ray_predict(
    ray: Any,
    plan: StreamPlan,
    *,
    save_seconds: float = SAVE_SECONDS,
    screen: TextIO | None = None,
) -> PredictSummary:
    """Label streams on the nodes of a cluster; this process alone writes the output.

    All nodes must have the same versions and, under the same paths, the same files. Every worker has one thread for a
    small model, otherwise as many as the smallest node has cores.
    """
    shown = screen or sys.stderr

    def run(plan: StreamPlan, parts: StreamParts, left: Sequence[ImageStream], tally: RunTally) -> None:
        nodes, versions = find_nodes(ray), list_versions()
        for message in [*check_nodes(nodes, versions), *(f"node {node.description}" for node in nodes)]:
            print(f"lmr: {message}", file=shown)
        setup, threads = _prepare(plan, nodes, save_seconds)
        places = count_places(nodes, threads)
        jobs = [ShardJob(shard) for shard in make_shards(left, plan.options.shards or places)]
        pool = ShardPool(ray, min(len(jobs), places), threads, versions, setup, plan, parts, tally, len(jobs))
        failures: list[str] = []
        with pool, contextlib.closing(ShardView(left, shown, pool.describe)) as view:
            for event in pool.run(jobs):
                view.show(event)
                if event.kind == "failed":
                    failures.append(f"{event.job.run}: {event.message}")
        if failures:
            raise LmrError(f"{len(failures)} of {len(jobs)} shards failed, {failures[0]}")

    return predict_streams(plan, run)


def describe_shards(ray: Any, plan: StreamPlan) -> str:
    """Describe the nodes, the workers, and the streams of each shard."""
    nodes = find_nodes(ray)
    odd = check_nodes(nodes, list_versions())
    _, threads = _prepare(plan, nodes, SAVE_SECONDS)
    places = count_places(nodes, threads)
    shards = make_shards(plan.streams, plan.options.shards or places)
    workers = min(len(shards), places)
    lines = [*odd, *describe_workers(nodes, workers, threads)]
    for shard in shards:
        lines.append(f"Shard {shard.number + 1} of {len(shards)}: {shard.images} images")
        lines += [f"  {len(stream.images):6}  {make_printable(stream.name)}" for stream in shard.streams]
    lines.append(f"Streams: {len(plan.streams)}, images: {plan.images:,}.")
    if len(shards) > workers:
        lines.append(f"The first {workers} shards start at once, each of the others when a worker is free.")
    return "\n".join(lines)


def _prepare(plan: StreamPlan, nodes: Sequence[Node], save_seconds: float) -> tuple[LabelSetup, int]:
    """Return the setup of the workers and their threads; the model is loaded to find its errors before work."""
    labeller = Labeller(plan.options)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in labeller.classifier.encoder.parameters())
    threads = choose_threads(labeller.backbone.is_small, nodes)
    labeller.prepare(None, None)  # the method
    fingerprint = labeller.classifier.fingerprint
    setup = LabelSetup(
        plan.options,
        fingerprint,
        digest_method(plan.options.method),
        weights,
        os.getcwd(),
        plan.out.suffix,
        plan.videos,
        save_seconds,
    )
    return setup, threads
