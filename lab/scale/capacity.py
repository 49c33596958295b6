"""Capacity: what a number of streams needs, worked out from counts and from what the machines are said to reach."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lab.scale.commit_bytes import measure_commit_bytes
from lab.scale.hash_ring import HashRing
from lab.scale.scale_options import ScaleOptions
from lab.scale.sized_method import SizedMethod, shrink_spec, size_method
from lmr.service.engine.scheduler import Scheduler

SPARSE = 10  # one step in so many is written, where snapshots are sparse


@dataclass(frozen=True)
class Resource:
    """What all streams need of one resource, what a machine has of it, and the machines at the planned load."""

    name: str
    needed: float
    limit: float
    unit: str
    machines: int


@dataclass(frozen=True)
class Rhythm:
    """How one replica works in a steady state, as a calculation predicts it."""

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
    images_per_accelerator: float  # in a second, in full batches
    accelerators: int  # that compute at the planned load
    resources: tuple[Resource, ...]  # the binding one first
    commit_bytes: float  # on the disk for one state
    imbalance: float
    rhythm: Rhythm
    lean_spec: str | None  # the method with half of its blocks adapting
    lean_bytes: float | None  # and its state

    @property
    def machines(self) -> int:
        """As many as the binding resource needs."""
        return self.resources[0].machines

    @property
    def replicas(self) -> int:
        """One on each accelerator of all machines, as far as there are streams."""
        return min(self.options.streams, self.machines * self.options.gpus_per_machine)

    @property
    def streams_per_replica(self) -> float:
        """On average."""
        return self.options.streams / self.replicas

    @property
    def flops_per_second(self) -> float:
        """Of all streams."""
        return self.options.streams * self.options.fps * self.sized.flops

    @property
    def busiest_load(self) -> float:
        """The share of the binding resource that the replica with the most streams needs of what it has."""
        first = self.resources[0]
        return self.imbalance * first.needed / (first.limit * self.machines)

    @property
    def moved_share(self) -> float:
        """The expected share of the streams that one more replica takes over."""
        return 1 / (self.replicas + 1)

    @property
    def states_per_second(self) -> float:
        """Bytes that replicas send to stores, where these are on other machines."""
        return count_commits(self.options, self.options.durability) * self.sized.stored_bytes

    def find_written(self, durability: str, interval: float | None = None) -> float:
        """Bytes per second of all streams. In an interval the last state of a stream is written, once."""
        return count_commits(self.options, durability, interval) * self.commit_bytes


def work_out(options: ScaleOptions) -> Capacity:
    """The whole calculation for these streams and machines."""
    counted = options.classes, options.learning, options.images_per_request
    sized = size_method(options.model, options.method, *counted)
    lean = shrink_spec(options.method, sized.depth)
    lean_sized = None if lean is None else size_method(options.model, lean, *counted)
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
        rhythm=predict_rhythm(options, seconds, limit, commit_bytes, options.requests_per_second / replicas),
        lean_spec=lean,
        lean_bytes=None if lean_sized is None else lean_sized.stored_bytes,
    )


def count_commits(options: ScaleOptions, durability: str, interval: float | None = None) -> float:
    """States that are written in a second."""
    if durability == "answer":
        return options.requests_per_second
    every = options.interval if interval is None else interval
    return min(options.requests_per_second, options.streams / every if every else math.inf)


def find_batch_limit(options: ScaleOptions, seconds_per_image: float) -> int:
    """The images of a full batch, as the service's scheduler chooses it when it knows the time of full batches."""
    scheduler = Scheduler(options.make_settings(1))
    for images in (options.max_batch, scheduler.limit):
        scheduler.note_batch(images, options.find_step_seconds(images, seconds_per_image))
    return max(scheduler.limit, options.images_per_request)


def predict_rhythm(
    options: ScaleOptions, seconds_per_image: float, limit: int, commit_bytes: float, requests_per_second: float
) -> Rhythm:
    """The steady state of a replica: a batch is what has arrived while the one before it was served.

    The commit of a batch overlaps the step of the next, so that the slower of the two sets the pace; where there is
    little to do, the first request of a batch waits for others as long as it may.
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
    return Rhythm(
        requests_per_second=requests_per_second,
        batch_images=images,
        step_seconds=step,
        commit_seconds=commit,
        busy=min(1.0, images_per_second * step / images),
        median_seconds=queue + max(step + commit, 2 * commit),
    )


def find_commit_seconds(options: ScaleOptions, states: float, commit_bytes: float) -> float:
    """A commit of so many states on one replica's share of the disk."""
    rate = options.disk_mb_s * 1e6 / options.gpus_per_machine
    return options.commit_ms / 1000 + states * commit_bytes / rate


def _list_resources(
    options: ScaleOptions, sized: SizedMethod, rate: float, commit_bytes: float
) -> tuple[Resource, ...]:
    """The binding one first. ``rate``: images per second of an accelerator."""
    images = options.streams * options.fps
    commits = count_commits(options, options.durability)
    # In each direction: images come and answers go, and states do both, to the machines of their stores.
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
