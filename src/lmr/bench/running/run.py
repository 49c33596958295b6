"""From a task to its row: a method classifies a stream, resuming from a checkpoint if there is one."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from lmr.bench.cost.flops import count_forwards
from lmr.bench.plans.plan import Contender
from lmr.bench.plans.task import Task
from lmr.bench.running import answers
from lmr.bench.running.checkpoint import Checkpoint
from lmr.bench.running.inputs import (
    find_clean_dataset,
    find_dataset,
    load_backbone,
    load_classifier,
    make_task_stream,
    preprocess,
    read_inputs,
)
from lmr.bench.running.metrics import accuracy, running_accuracy, thin_curve
from lmr.bench.running.row import SAMPLES, Row, write_samples
from lmr.bench.running.studied import describe_studied, study_clean
from lmr.bench.running.tokens import StepInputs, keep_tokens
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.registry import create, load_method_file
from lmr.data.streams import Batch, Stream, make_stream
from lmr.version import __version__
from lmr.watch.settings import read_watch
from lmr.watch.watched import Watched

SAVE_SECONDS = 15.0  # between checkpoints


class Stop(Exception):
    """Raised by ``report`` to stop a run; its checkpoint is saved."""


def run_task(
    task: Task,
    folder: Path,
    report: Callable[[int], object] = lambda images: None,
    say: Callable[[str], object] = lambda words: None,
    save_seconds: float = SAVE_SECONDS,
    saved: Callable[[], object] = lambda: None,
) -> Row:
    """Run a task, or what is left of it, and return its row. Samples are written; the checkpoint is not deleted.

    ``report`` is called after every batch with the number of images so far, ``say`` with messages for the user,
    ``saved`` after every checkpoint. Image
    files are read while the step before runs, but not where its memory is measured. Other sets are read between the
    steps, so that the time of a step stays comparable.
    """
    dataset = find_dataset(task.dataset, task.root)
    classifier = load_classifier(task.backbone, task.dtype, task.device, dataset.classes, task.prompts)
    method = create_method(task.contender, classifier)
    stream = make_task_stream(task, dataset)
    inputs = StepInputs(method, keep_tokens(task.backbone, task.dtype, task.device))
    if task.studied:
        study_clean(task, method)  # a checkpoint, if there is one, holds the same
    with Checkpoint(folder, task.run) as kept:
        kept.restore(method, say)
        report(kept.images)
        last = time.monotonic()
        with read_inputs(
            load_backbone(task.backbone, task.dtype, task.device), stream, kept.batches, classifier.device
        ) as ahead:
            for batch, images in ahead:
                measure = answers.is_measured(kept.batches, len(stream))
                with ahead.hold() if measure or not dataset.reads_files else nullcontext():
                    given, embedding = inputs.begin(batch.images, images, kept.batches, measure)
                    kept.add(*_answer(task, method, batch, given, embedding, measure))
                try:
                    report(kept.images)
                except Stop:
                    kept.save(method)
                    raise
                if time.monotonic() - last >= save_seconds:
                    kept.save(method)
                    saved()
                    last = time.monotonic()
        records, peak = kept.read(), kept.peak
    write_samples(folder, task.run, {name: records[name] for name in SAMPLES} | {"domain": records["domain"]})
    return _make_row(task, method, inputs, stream, records, peak)


def create_method(contender: Contender, classifier: ZeroShot) -> Method:
    """The method of a contender; one from a file is refused if the file was changed after the plan was read."""
    if contender.file is not None and load_method_file(contender.file) != contender.file_digest:
        raise LmrError(f"The method file {contender.file!r} was changed while the bench was running; start it again.")
    method = create(contender.address, classifier)
    settings = read_watch(contender.watch or "off")
    return method if settings is None else Watched(method, settings)


def _answer(
    task: Task, method: Method, batch: Batch, images: torch.Tensor, embedding: float, measure: bool
) -> tuple[answers.Records, int]:
    """The records of a batch and the peak memory of its step."""
    step = answers.take_step(method, images, measure, embedding)
    plain = answer_plainly(method.classifier, images) if task.recovery else None
    records = answers.record(method, step, batch.labels, batch.index, plain)
    records["domain"] = [task.domains.index(domain) for domain in batch.domains]
    return records, step.peak


@torch.no_grad()
def answer_plainly(classifier: ZeroShot, images: torch.Tensor) -> torch.Tensor:
    """The labels [B] that the frozen model predicts."""
    return classifier.cosines(classifier.features(images)).argmax(1)


def measure_forgetting(task: Task, method: Method, inputs: StepInputs) -> float:
    """Accuracy on clean images with the state after the stream; nothing is adapted."""
    classifier = method.classifier
    backbone = load_backbone(task.backbone, task.dtype, task.device)
    clean = find_clean_dataset(task.dataset, task.root)
    stream = make_stream(clean, "clean", seed=task.seed, limit=task.forgetting)
    right = []
    for batch in stream:
        images = inputs.find(batch.images, preprocess(backbone, batch.images, classifier.device))
        right.append(method.predict(images).labels.cpu().numpy() == batch.labels)
    return float(np.concatenate(right).mean())


def _make_row(
    task: Task, method: Method, inputs: StepInputs, stream: Stream, records: answers.Records, peak: int
) -> Row:
    numbers = answers.compute_metrics(records, method.classifier.classes)
    past = numbers["gate_share"]
    numbers["forwards"] = count_forwards(method, task.batch_size, 1.0 if past is None else past)
    numbers["peak_mb"] = peak / 1e6
    numbers["trainable"] = method.trainable
    numbers["clean_accuracy"] = measure_forgetting(task, method, inputs) if task.forgetting else None
    several: dict[str, float] = {}
    if len(task.domains) > 1:
        for place, domain in enumerate(task.domains):
            part = records[records["domain"] == place]
            several |= {domain: accuracy(part["predicted"], part["true"])} if len(part) else {}
    return Row(
        run=task.run,
        method=task.method,
        spec=method.spec,
        label=task.contender.label,
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
        | {"python": platform.python_version(), "machine": platform.machine(), "threads": str(torch.get_num_threads())},
        command=task.command,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        protocol=stream.dataset.describe_part(task.domains)
        | {"classes": str(method.classifier.classes)}
        | describe_studied(task),
        domains=several,
        method_file=_describe_file(task.contender),
        watch=_describe_watch(method),
    )


def _describe_watch(method: Method) -> dict[str, str | int]:
    """The spec of the watch, the step of its first event, and how often it put the stream on each level, in all."""
    if not isinstance(method, Watched):
        return {}
    first: dict[str, str | int] = {} if method.first_event is None else {"first event": method.first_event}
    levels = {f"to {level}": count for level, count in method.count_events().items()}
    return {"spec": method.settings.spec} | first | levels


def _describe_file(contender: Contender) -> dict[str, str]:
    if contender.file is None or contender.file_digest is None:
        return {}
    return {"path": contender.file, "digest": contender.file_digest}
