"""From a task to its row: a method classifies a stream, resuming from a checkpoint if there is one."""

from __future__ import annotations

import datetime
import math
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lmr.bench.inputs import (
    FEATURES,
    AnyMethod,
    describe_backbone,
    find_clean_dataset,
    find_dataset,
    load_backbone,
    read_inputs,
    strip_watch,
)
from lmr.bench.machine import describe_device
from lmr.bench.plans.plan import MethodEntry
from lmr.bench.plans.task import Task
from lmr.bench.running import answers
from lmr.bench.running.checkpoint import Checkpoint
from lmr.bench.running.labels import choose_labelled, teach_after, teach_before
from lmr.bench.running.metrics import accuracy, running_accuracy, thin_curve
from lmr.bench.running.row import SAMPLES, Row, write_samples
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.labelled import Labelled
from lmr.core.passes import count_passes
from lmr.core.registry import create, load_method_file, split_address
from lmr.core.remembered import Remembered
from lmr.data.dataset import CLEAN
from lmr.data.streams import Stream, make_stream
from lmr.version import __version__
from lmr.watch.settings import read_watch
from lmr.watch.watched import Watched

SAVE_SECONDS = 15.0  # between checkpoints
SOURCE_BATCH = 64  # source images at a time; the result of a fit may depend on it


class Stop(Exception):
    """Raised by ``report`` to stop a run; its checkpoint is saved."""


def run_task(
    task: Task,
    folder: Path,
    report: Callable[[int], object] = lambda images: None,
    log: Callable[[str], object] = lambda message: None,
    save_seconds: float = SAVE_SECONDS,
) -> Row:
    """Run a task, or what is left of it, and return its row. Samples are written; the checkpoint is not deleted.

    ``report`` is called with the number of images so far, ``log`` with messages for the user. Image files are read
    while the step before runs, but not where its memory is measured. Other sets are read between the steps, so that
    the time of a step stays comparable.
    """
    dataset = find_dataset(task.dataset, task.root)
    check_own_code(task)
    classifier = Remembered(task.load_classifier(), FEATURES)
    method = create_method(task.entry, classifier)
    if task.labels:
        method = Labelled(method)
    stream, pace = task.open_stream(dataset), find_pace(task, method)
    if task.source_images:
        fit_source(task, method)  # a checkpoint, if there is one, holds the same
    labelled = choose_labelled(task, stream)
    with Checkpoint(folder, task.run, classifier.device.type) as kept:
        kept.restore(method, log)
        if task.labels and task.labels_when == "whole" and not kept.batches:
            teach_before(method, task, stream, labelled)
        report(kept.images)
        last = time.monotonic()
        with read_inputs(load_backbone(*task.model), stream, kept.batches, classifier.device) as ahead:
            for inputs in ahead:
                batch, images, _ = inputs
                measure = answers.is_measured(kept.batches, len(stream))
                if not strip_watch(method).towers:
                    classifier.expect(images, (task.weights, *task.model, inputs.digest), anew=measure)
                with ahead.hold() if measure or not dataset.reads_files else nullcontext():
                    step = answers.take_step(method, images, measure, learns=kept.batches % pace == 0)
                    step = replace(step, seconds=step.seconds + classifier.spared)
                    plain = answer_plainly(classifier, images) if task.recovery else None
                    records = answers.record(method, step, batch.labels, batch.index, plain)
                    records["domain"] = [stream.domains.index(domain) for domain in batch.domains]
                    if task.labels and task.labels_when == "causal":
                        teach_after(method, batch.labels, kept.images, labelled)
                    kept.add(records, step.peak)
                try:
                    report(kept.images)
                except Stop:
                    kept.save(method)
                    raise
                if time.monotonic() - last >= save_seconds:
                    kept.save(method)
                    last = time.monotonic()
        records, peak = kept.read(), kept.peak
    write_samples(folder, task.run, {name: records[name] for name in SAMPLES} | {"domain": records["domain"]})
    return _make_row(task, method, stream, records, peak, pace, labelled)


def create_method(entry: MethodEntry, classifier: ZeroShot) -> AnyMethod:
    """Create the method of an entry; one from a file is refused if the file was changed after the plan was read."""
    if entry.file is not None and load_method_file(entry.file) != entry.file_digest:
        raise LmrError(f"The method file {entry.file!r} was changed while the bench was running; start it again.")
    method = create(entry.address, classifier)
    settings = read_watch(entry.watch or "off")
    return method if settings is None else Watched(method, settings)


def check_own_code(task: Task) -> None:
    """Refuse a model or a dataset from a file that was changed after the plan was read."""
    names = {}
    if split_address(task.backbone)[0]:
        names[task.backbone] = (describe_backbone(*task.model), task.weights)
    if split_address(task.dataset)[0]:
        domains = (*task.domains, CLEAN) if task.onset else task.domains
        own = find_dataset(task.dataset, task.root)
        names[task.dataset] = (own.digest_part(domains, task.severity or 5), task.data_digest)
    for name, (here, planned) in names.items():
        if here != planned:
            raise LmrError(f"What {name!r} makes was changed while the bench was running; start it again.")


def find_pace(task: Task, method: AnyMethod) -> int:
    """Return k if the method adapts on every k-th batch: 1, but in live timing the counted forwards of its step.

    In live timing a batch arrives in the time that the frozen model takes for one. While a step lasts longer, batches
    are answered with the last state, as Alfarra et al. ("Evaluation of Test-Time Adaptation Under Computational Time
    Constraints", ICML 2024) have it; like them we round the cost up. Theirs is the measured time; ours is counted, for
    a batch whose samples all enter the loss, so that it is the same on every machine.
    """
    if task.timing == "wait":
        return 1
    forwards = count_forwards(method, task.batch_size)
    if forwards is None:
        raise LmrError(f"The forwards of {method.spec} cannot be counted, so it has no live timing; remove timing.")
    return max(1, math.ceil(forwards - 1e-6))


def count_forwards(method: AnyMethod, batch_size: int, selected: float = 1.0) -> float | None:
    """Return the forward and backward passes of an image in a step, a backward as a forward; None if not known.

    ``selected`` is the share of the samples past the gate of a method that has one: only these have a backward. Prompts
    are not counted.
    """
    passes = count_passes(strip_watch(method), batch_size)
    return None if passes is None else passes.forwards + selected * passes.backwards


def fit_source(task: Task, method: AnyMethod) -> None:
    """Fit the method on unlabelled clean images: those that follow, in the task's order, the ones for forgetting."""
    clean, backbone = find_clean_dataset(task.dataset, task.root), load_backbone(*task.model)
    last = task.forgetting + task.source_images
    chosen = make_stream(clean, CLEAN, seed=task.seed, limit=last).index[task.forgetting :]
    parts = (chosen[first : first + SOURCE_BATCH] for first in range(0, len(chosen), SOURCE_BATCH))
    device = method.classifier.device
    method.fit_source(backbone.preprocess(clean.read(CLEAN, 0, part.tolist())).to(device) for part in parts)


def _describe_source(task: Task) -> dict[str, str]:
    """Return what the protocol of the row says about source images."""
    if not task.source_images:
        return {}
    name = find_clean_dataset(task.dataset, task.root).name
    return {
        "source": f"{task.source_images} clean images of {name} before the stream, {SOURCE_BATCH} at a time, unlabelled"
    }


@torch.no_grad()
def answer_plainly(classifier: ZeroShot, images: torch.Tensor) -> torch.Tensor:
    """Return the labels [B] that the frozen model predicts."""
    return classifier.cosines(classifier.features(images)).argmax(1)


def measure_forgetting(task: Task, method: AnyMethod) -> float:
    """Return the accuracy on clean images with the state after the stream; nothing is adapted."""
    clean, backbone = find_clean_dataset(task.dataset, task.root), load_backbone(*task.model)
    right = []
    for batch in make_stream(clean, CLEAN, seed=task.seed, limit=task.forgetting):
        images = backbone.preprocess(batch.images).to(method.classifier.device)
        right.append(method.predict(images).labels.cpu().numpy() == batch.labels)
    return float(np.concatenate(right).mean())


def _make_row(
    task: Task,
    method: AnyMethod,
    stream: Stream,
    records: answers.Records,
    peak: int,
    pace: int,
    labelled: NDArray[np.int64],
) -> Row:
    judged = np.arange(len(records)) >= task.onset  # clean ones prepare
    if task.labels_when == "whole":
        judged[labelled] = False
    numbers = answers.compute_metrics(records[judged], method.classifier.classes)
    selected = numbers["gate_share"]
    numbers["forwards"] = count_forwards(method, task.batch_size, 1.0 if selected is None else selected)
    numbers["peak_mb"] = peak / 1e6
    numbers["trainable"] = method.trainable
    numbers["state_kb"] = answers.measure_state(method) / 1000
    numbers["clean_accuracy"] = measure_forgetting(task, method) if task.forgetting else None
    several: dict[str, float] = {}
    if len(stream.domains) > 1:
        for place, domain in enumerate(stream.domains):
            part = records[records["domain"] == place]
            several |= {domain: accuracy(part["predicted"], part["true"])} if len(part) else {}
    return Row(
        run=task.run,
        method=task.method,
        spec=method.spec,
        label=task.entry.label,
        backbone={"name": task.backbone, "weights": task.weights, "dtype": task.dtype},
        dataset=task.dataset,
        data_digest=task.data_digest,
        domain=task.domain,
        severity=task.severity,
        prompts=task.prompt_facts,
        batch_size=task.batch_size,
        seed=task.seed,
        order=task.order_facts,
        reset=task.reset,
        images=len(records),
        emit=method.emits,
        metrics=numbers,
        curve=thin_curve(running_accuracy(records["predicted"], records["true"])),
        versions={"lmr": __version__, "torch": torch.__version__, "numpy": np.__version__}
        | {"python": platform.python_version(), "machine": platform.machine(), "threads": str(torch.get_num_threads())}
        | {"device": describe_device(method.classifier.device)},
        command=task.command,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        protocol=stream.dataset.describe_part(stream.domains)
        | {"classes": str(method.classifier.classes)}
        | _describe_source(task)
        | ({"timing": f"adapts on one batch in {pace}"} if task.timing == "live" else {}),
        domains=several,
        method_file=_describe_file(task.entry),
        watch=_describe_watch(method),
        selected=dict(task.entry.selected),
    )


def _describe_watch(method: AnyMethod) -> dict[str, str | int]:
    """Return the spec of the watch, the step of its first event, and the number of times it chose each rung."""
    method = method.method if isinstance(method, Labelled) else method
    if not isinstance(method, Watched):
        return {}
    first: dict[str, str | int] = {} if method.first_event is None else {"first event": method.first_event}
    rungs = {f"to {rung}": count for rung, count in method.count_events().items()}
    return {"spec": method.settings.spec} | first | rungs


def _describe_file(entry: MethodEntry) -> dict[str, str]:
    if entry.file is None or entry.file_digest is None:
        return {}
    return {"path": entry.file, "digest": entry.file_digest}
