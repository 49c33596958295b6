"""``lmr predict --ray``: streams as tasks on the nodes of a cluster; the outputs are those of one machine.

The folders of ``--out`` and ``--state`` are shared by all machines. A task that Ray repeats, and a command that is
given again with ``--resume``, go on from what they find there.
"""

from __future__ import annotations

import functools
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TextIO

from lmr.apps.predict.results import PredictSummary, RunTally
from lmr.apps.predict.run import Labeller
from lmr.apps.predict.streams import ImageStream, StreamPlan, check_begun, label_stream, predict_streams
from lmr.cluster.nodes import check_nodes, choose_threads, describe_mismatch, digest_method, find_nodes, list_versions
from lmr.cluster.tasks import TaskPool
from lmr.core.errors import LmrError
from lmr.core.foreign_text import make_printable


@dataclass(frozen=True)
class StreamJob:
    """A stream, and the number of its files that the driver's machine has."""

    stream: ImageStream
    files: int


@dataclass(frozen=True)
class LabelSetup:
    """What all tasks of a run have in common."""

    key: str  # of this run: a process keeps the model from one task to the next
    plan: StreamPlan  # without its streams, and with whole paths of the outputs
    fingerprint: Mapping[str, str]  # of the driver's model and classes
    method: Mapping[str, str]  # the digest of the method's file, if it is in one


def run_ray_predict(ray: Any, plan: StreamPlan, screen: TextIO | None = None) -> PredictSummary:
    """Label streams on the nodes of a cluster, the longest first.

    All nodes must have the same versions and, under the same paths, the same images and the folders of the outputs.
    Every task has one thread for a small model, otherwise as many as the smallest node has cores.
    """
    shown = screen or sys.stderr

    def run(plan: StreamPlan) -> RunTally:
        nodes = find_nodes(ray)
        check_nodes(nodes, list_versions())
        for node in nodes:
            print(f"lmr: node {node.description}", file=shown)
        labeller = Labeller(plan.options)
        labeller.prepare(None, None)  # to find its errors before work
        check_begun(labeller, plan)
        threads = choose_threads(labeller.backbone.is_small, nodes)
        work = functools.partial(label_job, make_setup(plan, labeller))
        del labeller
        streams = sorted(plan.streams, key=lambda stream: -len(stream.images))
        jobs = [StreamJob(stream, _count_files(stream)) for stream in streams]
        tally, failures, done = RunTally(), list[str](), 0
        with TaskPool[StreamJob, RunTally](ray, work, threads) as pool:
            for report in pool.run(jobs):
                name = make_printable(report.job.stream.name)
                if report.error:
                    failures.append(f"{name}: {report.error}")
                elif report.value is not None:
                    done += 1
                    tally.add(report.value)
                    print(f"lmr: [{done}/{len(jobs)}] {report.node}  {name}: {report.value.images} images", file=shown)
        if failures:
            raise LmrError(f"{len(failures)} of {len(jobs)} streams failed, {failures[0]} To continue, add --resume.")
        return tally

    return predict_streams(plan, run)


def make_setup(plan: StreamPlan, labeller: Labeller) -> LabelSetup:
    """Return what the tasks of a plan need beside their streams."""
    state = None if plan.options.state is None else os.path.abspath(plan.options.state)
    options = replace(labeller.options, out=os.path.abspath(plan.out), state=state)  # in the type of the driver's model
    fingerprint = labeller.classifier.fingerprint
    return LabelSetup(uuid.uuid4().hex, StreamPlan(options, ()), fingerprint, digest_method(options.method))


def _count_files(stream: ImageStream) -> int:
    return sum(map(os.path.exists, stream.images))


# In the processes of the cluster.


def label_job(setup: LabelSetup, job: StreamJob) -> RunTally:
    """Label a stream; LmrError if this node cannot do it as the driver would."""
    if not os.path.isdir(setup.plan.out):
        raise LmrError(f"it has no {str(setup.plan.out)!r}, where the answers go; give an --out that all nodes share.")
    if (here := _count_files(job.stream)) != job.files:
        raise LmrError(f"it has {here} images of {job.stream.name!r}, the driver's machine {job.files}.")
    return label_stream(_load(setup), setup.plan, job.stream)


_loaded: dict[str, Labeller] = {}


def _load(setup: LabelSetup) -> Labeller:
    """Return the model of a run, which a process loads once, if it is the driver's."""
    options = setup.plan.options
    if wrong := describe_mismatch(digest_method(options.method), setup.method):
        raise LmrError(f"it has another {wrong}.")
    if setup.key not in _loaded:
        _loaded.clear()
        labeller = Labeller(options)
        if labeller.classifier.fingerprint != setup.fingerprint:
            raise LmrError(
                f"its weights or texts of the model {options.model!r} are not those of the driver's machine."
            )
        _loaded[setup.key] = labeller
    return _loaded[setup.key]
