"""Capacity: the machines that a number of streams needs, calculated from counts and assumptions about machines."""

from __future__ import annotations

import functools
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.scale.hash_ring import HashRing
from lab.scale.options import ScaleOptions
from lab.scale.sized_method import SizedMethod, size_method
from lmr.service.engine.scheduler import Scheduler
from lmr.service.store.sqlite_store import SqliteStore
from lmr.service.store.stored_types import StoredRecord, StoredState, StreamChange, Transaction

SPARSE = 10  # with sparse snapshots, every n-th step is written
COMMITS, COMMIT_STREAMS = 12, 8  # that are measured, and the streams in each
RECORD, NOTE = 600, 300  # characters of the record of a stream and of the note of a request
_PAGE, _FRAME, _HEADER = 4096, 4096 + 24, 32  # bytes of a page of SQLite, and of its write-ahead log


@dataclass(frozen=True)
class Resource:
    """The need of all streams for one resource, the limit of a machine, and the machines at the planned load."""

    name: str
    needed: float
    limit: float
    unit: str
    machines: int


@dataclass(frozen=True)
class SteadyState:
    """The predicted steady state of one replica."""

    requests_per_second: float
    batch_images: float
    step_seconds: float
    commit_seconds: float
    busy: float  # share of the time that its accelerator computes
    median_seconds: float  # from arrival to answer


@dataclass(frozen=True)
class Capacity:
    """The whole calculation."""

    options: ScaleOptions
    sized: SizedMethod
    seconds_per_image: float
    batch_limit: int
    images_per_accelerator: float  # per second, in full batches
    accelerators: int  # at the planned load
    resources: tuple[Resource, ...]  # the binding one first
    commit_bytes: float  # on the disk for one state
    imbalance: float
    steady: SteadyState

    @property
    def machines(self) -> int:
        """Return the number that the binding resource needs."""
        return self.resources[0].machines

    @property
    def replicas(self) -> int:
        """Return one per accelerator of all machines, but not more than there are streams."""
        return min(self.options.streams, self.machines * self.options.gpus_per_machine)

    @property
    def streams_per_replica(self) -> float:
        """Return the average number of streams of a replica."""
        return self.options.streams / self.replicas

    @property
    def flops_per_second(self) -> float:
        """Return the operations of all streams."""
        return self.options.streams * self.options.fps * self.sized.flops

    @property
    def busiest_load(self) -> float:
        """Return the load of the binding resource at the replica with the most streams."""
        first = self.resources[0]
        return self.imbalance * first.needed / (first.limit * self.machines)

    @property
    def moved_share(self) -> float:
        """Return the expected share of the streams that one more replica takes over."""
        return 1 / (self.replicas + 1)

    @property
    def states_per_second(self) -> float:
        """Return the bytes that replicas send to stores on other machines."""
        return count_commits(self.options, self.options.durability) * self.sized.stored_bytes

    def find_written(self, durability: str, interval: float | None = None) -> float:
        """Return the bytes written per second; in an interval the last state of a stream is written once."""
        return count_commits(self.options, durability, interval) * self.commit_bytes


def work_out(options: ScaleOptions) -> Capacity:
    """Return the whole calculation for these streams and machines."""
    sized = size_method(options.model, options.method, options.classes, options.learning, options.images_per_request)
    seconds = sized.flops / (options.gpu_tflops * 1e12 * options.utilisation)
    limit = find_batch_limit(options, seconds)
    rate = limit / options.find_step_seconds(limit, seconds)
    accelerators = math.ceil(options.streams * options.fps / (options.load * rate))
    commit_bytes = measure_commit_bytes(sized.stored_bytes)
    resources = _list_resources(options, sized, rate, commit_bytes)
    replicas = min(options.streams, resources[0].machines * options.gpus_per_machine)
    return Capacity(
        options=options,
        sized=sized,
        seconds_per_image=seconds,
        batch_limit=limit,
        images_per_accelerator=rate,
        accelerators=accelerators,
        resources=resources,
        commit_bytes=commit_bytes,
        imbalance=HashRing(replicas, options.virtual_nodes).imbalance,
        steady=predict_steady_state(options, seconds, limit, commit_bytes, options.requests_per_second / replicas),
    )


def count_commits(options: ScaleOptions, durability: str, interval: float | None = None) -> float:
    """Return the states that are written in a second."""
    if durability == "answer":
        return options.requests_per_second
    every = options.interval if interval is None else interval
    return min(options.requests_per_second, options.streams / every if every else math.inf)


def find_batch_limit(options: ScaleOptions, seconds_per_image: float) -> int:
    """Return the images of a full batch, as the scheduler of the service chooses it."""
    scheduler = Scheduler(options.make_settings(1))
    for images in (options.max_batch, scheduler.limit):
        scheduler.note_batch(images, options.find_step_seconds(images, seconds_per_image))
    return max(scheduler.limit, options.images_per_request)


def predict_steady_state(
    options: ScaleOptions, seconds_per_image: float, limit: int, commit_bytes: float, requests_per_second: float
) -> SteadyState:
    """Return the steady state of a replica: a batch holds the requests that arrived while the last one was served.

    The commit of a batch overlaps the step of the next, so the slower of the two sets the pace. At low load, the first
    request of a batch waits ``max_wait_ms`` for others.
    """
    images_per_second = requests_per_second * options.images_per_request
    wait = options.max_wait_ms / 1000
    images = float(options.images_per_request)
    for _ in range(1000):  # converges geometrically below full load
        step = options.find_step_seconds(images, seconds_per_image)
        commit = find_commit_seconds(options, images / options.images_per_request, commit_bytes)
        pace = max(step, commit if options.durability == "answer" else 0.0)
        cycle = max(pace, wait + 1 / requests_per_second)
        images = min(limit, max(options.images_per_request, images_per_second * cycle))
    commit = commit if options.durability == "answer" else 0.0
    queue = cycle / 2 if cycle <= pace else min(cycle / 2, wait)
    return SteadyState(
        requests_per_second=requests_per_second,
        batch_images=images,
        step_seconds=step,
        commit_seconds=commit,
        busy=min(1.0, images_per_second * step / images),
        median_seconds=queue + max(step + commit, 2 * commit),
    )


@functools.cache
def measure_commit_bytes(state_bytes: int) -> float:
    """Return the bytes that a small store writes for one state of a commit: to the log, and later to its place.

    Most commits also write the pages of one state more, however many streams they have. The smallest of a few commits
    is without it.
    """
    logs = []
    with tempfile.TemporaryDirectory(prefix="lmr-scale-") as folder:
        path = Path(folder) / "streams.sqlite"
        for seq in range(COMMITS):  # each but the first replaces the states of the one before
            store = SqliteStore(path, {})
            try:
                store.commit(make_commit(state_bytes, seq))
                logs.append(path.with_name(path.name + "-wal").stat().st_size)
            finally:
                store.close()  # empties the log
    pages = (min(logs[1:]) - _HEADER) / _FRAME
    return pages * (_FRAME + _PAGE) / COMMIT_STREAMS


def make_commit(state_bytes: int, seq: int) -> Transaction:
    """Return a transaction with a state of this size, a record and a note for each of a few streams."""
    commit = Transaction()
    for number in range(COMMIT_STREAMS):
        state = StoredState(bytes([seq]) * state_bytes)
        record = StoredRecord("ok", seq, "r" * RECORD)
        commit.add(f"camera-{number}", StreamChange(record, state, {seq: "n" * NOTE}))
    return commit


def find_commit_seconds(options: ScaleOptions, states: float, commit_bytes: float) -> float:
    """Return the seconds of a commit on one replica's share of the disk."""
    rate = options.disk_mb_s * 1e6 / options.gpus_per_machine
    return options.commit_ms / 1000 + states * commit_bytes / rate


def _list_resources(
    options: ScaleOptions, sized: SizedMethod, rate: float, commit_bytes: float
) -> tuple[Resource, ...]:
    """Return the resources, the binding one first. ``rate``: images per second of an accelerator."""
    images = options.streams * options.fps
    commits = count_commits(options, options.durability)
    # Each direction carries images or answers, and the states that go to the machines of their stores.
    network = 8e-6 * (images * max(options.image_kb, options.answer_kb) + commits * sized.stored_bytes / 1e3)
    resident = options.streams * (sized.memory_bytes + (sized.watch_bytes if options.watch == "on" else 0)) / 1e9
    gpus = options.gpus_per_machine
    found = [
        ("accelerators", images, gpus * rate, "images/s"),
        ("disk", commits * commit_bytes / 1e6, options.disk_mb_s, "MB/s"),
        ("network", network, options.network_gbit, "Gbit/s"),
        ("memory", resident, gpus * options.memory_gb, "GB"),
    ]
    found.sort(key=lambda one: -one[1] / one[2])
    return tuple(Resource(*one, math.ceil(one[1] / (options.load * one[2]))) for one in found)
