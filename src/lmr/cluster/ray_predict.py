"""``lmr predict --ray``: shards of streams as tasks on the nodes of a cluster; the output is that of one machine.

A task writes the answers and the states of its streams to the work folder beside ``--out``, which all machines share.
A task that Ray repeats, and a command that is given again, go on from what they find there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.parts import StreamParts
from lmr.apps.predict.results import PredictSummary, RunTally
from lmr.apps.predict.run import Labeller, PredictRun
from lmr.apps.predict.streams import ImageStream, StreamPlan, label_stream, predict_streams
from lmr.cluster.nodes import (
    check_nodes,
    choose_threads,
    count_places,
    describe_mismatch,
    describe_nodes,
    digest_method,
    find_nodes,
    list_versions,
)
from lmr.cluster.tasks import TaskPool
from lmr.core.errors import LmrError
from lmr.core.foreign_text import make_printable
from lmr.core.state import read_state
from lmr.images.lists import ListedImage, RowImage
from lmr.images.remote import RemoteImage, is_url, open_remote

SAVE_SECONDS = 10.0  # between saves of the streams that are not finished


@dataclass(frozen=True)
class Shard:
    """Streams that one task labels, one after the other."""

    number: int
    streams: tuple[ImageStream, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)  # of its files on the driver's machine

    @property
    def images(self) -> int:
        """The number of images and videos in its streams."""
        return sum(len(stream.images) for stream in self.streams)


@dataclass(frozen=True)
class LabelSetup:
    """What all tasks of a run have in common."""

    key: str  # of this run: a process keeps the model from one task to the next
    plan: StreamPlan  # without its streams, and with the whole path of the output
    fingerprint: Mapping[str, str]  # of the driver's model and classes
    method: Mapping[str, str]  # the digest of the method's file, if it is in one
    save_seconds: float


def run_ray_predict(
    ray: Any, plan: StreamPlan, *, save_seconds: float = SAVE_SECONDS, screen: TextIO | None = None
) -> PredictSummary:
    """Label streams on the nodes of a cluster; the driver merges what they have written.

    All nodes must have the same versions and, under the same paths, the same images and the folder of the output.
    Every task has one thread for a small model, otherwise as many as the smallest node has cores.
    """
    shown = screen or sys.stderr

    def run(plan: StreamPlan, parts: StreamParts, left: Sequence[ImageStream], tally: RunTally) -> None:
        nodes = find_nodes(ray)
        for message in [*check_nodes(nodes, list_versions()), *(f"node {node.description}" for node in nodes)]:
            print(f"lmr: {message}", file=shown)
        labeller = _load_here(plan.options)
        threads = choose_threads(labeller.backbone.is_small, nodes)
        shards = [
            replace(shard, sizes=measure_files(shard.streams))
            for shard in make_shards(left, plan.options.shards or count_places(nodes, threads))
        ]
        for stream in left:
            state = plan.find_state(stream)
            if state is not None and state.exists():
                parts.write(parts.earlier(stream.number), state.read_bytes())
        work = functools.partial(label_shard, _describe(plan, labeller, save_seconds))
        del labeller
        failures, done = list[str](), 0
        with TaskPool[Shard, RunTally](ray, work, threads) as pool:
            for report in pool.run(shards):
                name = f"shard {report.job.number + 1}"
                if report.error:
                    failures.append(f"{name}: {report.error}")
                elif report.value is not None:
                    done += 1
                    tally.add(report.value)
                    size = f"{len(report.job.streams)} streams, {report.job.images} images"
                    print(f"lmr: [{done}/{len(shards)}] {report.node}  {name}: {size}", file=shown)
        if failures:
            raise LmrError(f"{len(failures)} of {len(shards)} shards failed, {failures[0]}")

    return predict_streams(plan, run)


def describe_shards(ray: Any, plan: StreamPlan) -> str:
    """Describe the nodes, and the streams of each shard."""
    nodes = find_nodes(ray)
    odd = check_nodes(nodes, list_versions())
    threads = choose_threads(_load_here(plan.options).backbone.is_small, nodes)
    shards = make_shards(plan.streams, plan.options.shards or count_places(nodes, threads))
    lines = [*odd, *describe_nodes(nodes, threads)]
    for shard in shards:
        lines.append(f"Shard {shard.number + 1} of {len(shards)}: {shard.images} images")
        lines += [f"  {len(stream.images):6}  {make_printable(stream.name)}" for stream in shard.streams]
    return "\n".join([*lines, f"Streams: {len(plan.streams)}, images: {plan.images:,}."])


def make_shards(streams: Iterable[ImageStream], count: int) -> list[Shard]:
    """Share streams out over at most ``count`` shards of about as many images each; always in the same way.

    The longest stream comes first and goes to the shard that has the fewest images so far.
    """
    ordered = sorted(streams, key=lambda stream: (-len(stream.images), stream.number))
    taken: list[list[ImageStream]] = [[] for _ in range(min(count, len(ordered)))]
    loads = [0] * len(taken)
    for stream in ordered:
        place = loads.index(min(loads))
        taken[place].append(stream)
        loads[place] += len(stream.images)
    by_number = [tuple(sorted(own, key=lambda stream: stream.number)) for own in taken]
    return [Shard(number, own) for number, own in enumerate(by_number)]


def _load_here(options: PredictOptions) -> Labeller:
    """Load model and method on the driver's machine, to find their errors before work."""
    labeller = Labeller(options)
    labeller.prepare(None, None)
    return labeller


def _describe(plan: StreamPlan, labeller: Labeller, save_seconds: float) -> LabelSetup:
    out = plan.out if is_url(plan.out) else os.path.abspath(plan.out)
    return LabelSetup(
        uuid.uuid4().hex,
        replace(plan, options=replace(plan.options, out=out), streams=()),
        labeller.classifier.fingerprint,
        digest_method(plan.options.method),
        save_seconds,
    )


# In the processes of the cluster.


def label_shard(setup: LabelSetup, shard: Shard) -> RunTally:
    """Label the streams of a shard that are not finished; LmrError if this node cannot do it as the driver would."""
    parts, tally = StreamParts(setup.plan.out), RunTally()
    if not parts.exists:
        raise LmrError(
            f"it has no {parts.folder!r}, where the answers go; give an --out in a folder that all nodes share, or at "
            "an address such as s3://bucket/answers.jsonl."
        )
    _check_files(shard)
    finished = parts.list_finished()
    left = [stream for stream in shard.streams if stream.number not in finished]
    labeller = _load(setup)
    with TemporaryDirectory(prefix="lmr-shard-") as folder:
        for stream in left:
            tally.add(_label(setup, parts, labeller, stream, Path(folder)))
    return tally


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


def _label(setup: LabelSetup, parts: StreamParts, labeller: Labeller, stream: ImageStream, folder: Path) -> RunTally:
    """Label one stream from its last state, in a folder of this node; save it from time to time and at the end."""
    number, last = stream.number, time.monotonic()
    part, progress, earlier = (folder / name(number) for name in (parts.part, parts.progress, parts.earlier))
    answers, state, begun = (parts.read(path.name) for path in (part, progress, earlier))
    if begun is not None:
        earlier.write_bytes(begun)
    if state is not None and answers is not None:
        part.write_bytes(answers)
        progress.write_bytes(state)
        if int(read_state(progress)[1].get("note.offset", 0)) > len(answers):  # those of two processes
            progress.unlink()

    def save(run: PredictRun) -> None:
        nonlocal last
        if not run.finished and time.monotonic() - last >= setup.save_seconds:
            parts.write(part.name, part.read_bytes())  # first, as the state counts its answers
            parts.write(progress.name, progress.read_bytes())
            last = time.monotonic()

    run = label_stream(labeller, setup.plan, stream, folder, earlier, save)
    if setup.plan.state is not None:
        parts.write(progress.name, progress.read_bytes())
    parts.write(parts.answers(number), part.read_bytes())
    return run.read_tally()


def measure_files(streams: Iterable[ImageStream]) -> dict[str, int]:
    """Return the sizes of the files that this machine can read, by their names.

    Of those at addresses only the first of a stream is tried, as this takes a request: 0 if it can be read.
    """
    sizes: dict[str, int] = {}
    for stream in streams:
        remote = next((image.url for image in stream.images if isinstance(image, RemoteImage)), None)
        with contextlib.suppress(OSError, LmrError):
            if remote is not None:
                with open_remote(remote) as file:
                    file.read(1)
                sizes[remote] = 0
        for name in {_name_file(image) for image in stream.images} - {None}:
            with contextlib.suppress(OSError):
                sizes[str(name)] = os.path.getsize(str(name))
    return sizes


def _name_file(image: ListedImage) -> str | None:
    """Return the file on this machine that an image is in, None for one at an address."""
    if isinstance(image, RemoteImage) or (isinstance(image, RowImage) and is_url(image.source)):
        return None
    return image.source if isinstance(image, RowImage) else str(image)


def _check_files(shard: Shard) -> None:
    """Refuse a shard whose files are not those of the driver's machine. Files that it has not are not missed."""
    here = measure_files(shard.streams)
    for name, size in shard.sizes.items():
        if name not in here:
            raise LmrError(f"it cannot read {name!r}, which the driver's machine can.")
        if here[name] != size:
            raise LmrError(f"its {name!r} has {here[name]} bytes, that of the driver's machine {size}.")
