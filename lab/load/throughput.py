"""Throughput of a saturated service per processor second, compared with a loop of ``method.step``."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lab.load.bench import LoadBench, LoadResult, Verdict, judge
from lab.load.inputs import (
    LoadModel,
    draw_image,
    draw_tensor,
    find_photo,
    name_streams,
    write_random_vit,
)
from lab.load.senders import run_senders
from lmr.apps.serve import ServingPlan
from lmr.core.errors import LmrError
from lmr.service.client.client import Client
from lmr.service.engine.requests import ServiceAnswer
from lmr.service.settings import ServiceSettings

STREAMS, MOST = 16, 64  # streams that saturate the service; images of its largest batch
VARIETY = 64  # different images
TURNS = 8  # of the bare loop and of the service
MOST_SHARE = 1.2  # a service that seems to be faster than its own method computes in another way


@dataclass(frozen=True)
class ImageCost:
    """A number of images, and the processor and wall seconds that they took."""

    images: int
    cpu_seconds: float
    seconds: float

    @property
    def per_cpu_second(self) -> float:
        """Return the images per processor second."""
        return self.images / self.cpu_seconds if self.cpu_seconds else math.nan


def sum_costs(costs: Sequence[ImageCost]) -> ImageCost:
    """Return the sum of all costs."""
    return ImageCost(
        sum(cost.images for cost in costs),
        sum(cost.cpu_seconds for cost in costs),
        sum(cost.seconds for cost in costs),
    )


class BareLoop:
    """A loop of ``step`` without a service, with ``each`` images of ``streams`` streams: the service's own method."""

    def __init__(self, model: LoadModel, streams: int, each: int) -> None:
        plan = ServingPlan(model.method_options.resolve(), ServiceSettings(resident=streams))
        loaded, method = plan.load()  # with the number of threads and the type of the service, too
        self.spec, self._method = method.spec, plan.wrap(method)
        self._images = loaded.backbone.preprocess(draw_tensor(range(VARIETY), model.side)).to(loaded.backbone.dtype)
        self._ids = torch.arange(streams).repeat_interleave(each)
        self._places, self._each = [choose(thread, 0, each) for thread in range(streams)], each
        self._steps = 0
        self._step()  # one-time costs are not measured

    def run(self, seconds: float) -> ImageCost:
        """Run steps for at least ``seconds``."""
        began, cpu, images = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < seconds:
            self._step()
            images += len(self._ids)
        return ImageCost(images, time.process_time() - cpu, time.perf_counter() - began)

    def _step(self) -> None:
        places = torch.tensor(self._places).flatten() + self._steps * self._each
        self._method.step(self._images[places % VARIETY], streams=self._ids)
        self._steps += 1


def choose(thread: int, number: int, each: int) -> list[int]:
    """Return the numbers of the images of a request: no frame of a stream repeats the one before it."""
    return [(thread + number * each + k) % VARIETY for k in range(each)]


def measure_vit(bench: LoadBench) -> LoadResult:
    """Measure ViT-B/16 with random weights, 16 streams and one image per request."""
    model = write_random_vit(bench.folder)
    return _measure(bench, model, 1, bench.choose(180, 20), 0.95)


def measure_photo(bench: LoadBench) -> LoadResult:
    """Measure the embedded model with 8 images per request."""
    return _measure(bench, find_photo(), 8, bench.choose(40, 0.4), 0.90)


def measure_single(bench: LoadBench) -> LoadResult:
    """Measure the embedded model with one image per request."""
    return _measure(bench, find_photo(), 1, bench.choose(40, 0.4), 0.60)


def _measure(bench: LoadBench, model: LoadModel, each: int, seconds: float, aim: float) -> LoadResult:
    """Alternate between bare loop and service and take the median of their ratios: a slower machine slows both."""
    images = [draw_image(number, model.side) for number in range(VARIETY)]
    names = name_streams(STREAMS)

    def send(client: Client, thread: int, number: int) -> ServiceAnswer:
        return client.step(names[thread], [images[place] for place in choose(thread, number, each)], top=1)

    with bench.make_service(model, "throughput") as service:
        spec, bare = service.read_spec()[0], BareLoop(model, min(STREAMS, MOST // each), each)
        if spec != bare.spec:
            raise LmrError(
                f"The service runs {spec}, and the bare loop {bare.spec}; start the service with its method."
            )
        run_senders(service.url, STREAMS, send, bench.choose(5, 0.2), patience=60)  # warm
        alone, served, codes, batches = list[ImageCost](), list[ImageCost](), Counter[int](), list[float]()
        turns = bench.count(TURNS, 2)
        for _ in range(turns):
            alone.append(bare.run(seconds / turns))
            cpu = service.read_cpu_seconds()
            stats, wall = run_senders(service.url, STREAMS, send, seconds / turns, patience=60)
            served.append(ImageCost(stats.images, service.read_cpu_seconds() - cpu, wall))
            codes += stats.codes
            batches += stats.batch_images
    shares = [one.per_cpu_second / other.per_cpu_second for one, other in zip(served, alone, strict=True)]
    share, total, bare_total = statistics.median(shares), sum_costs(served), sum_costs(alone)
    figures = {
        "images": total.images,
        "service_images_per_cpu_second": total.per_cpu_second,
        "bare_images_per_cpu_second": bare_total.per_cpu_second,
        "share": share,
        "shares": shares,
        "service_images_per_second": total.images / total.seconds,
        "bare_images_per_second": bare_total.images / bare_total.seconds,
        "mean_batch_images": sum(batches) / max(len(batches), 1),
        "codes": dict(codes),
        "spec": spec,
        "threads": torch.get_num_threads(),
    }
    found = (
        f"{share:.2f} ({total.per_cpu_second:.1f} against {bare_total.per_cpu_second:.1f} images per CPU second; "
        f"turns from {min(shares):.2f} to {max(shares):.2f}; {figures['service_images_per_second']:.1f} and "
        f"{figures['bare_images_per_second']:.1f} per second)"
    )
    setting = f"{model.name}, {STREAMS} streams, {each} image{'s' if each > 1 else ''} a request"
    return LoadResult(
        "throughput",
        setting,
        f"≥ {aim:.2f} of the bare loop",
        found,
        judge_share(share, aim, codes),
        figures,
    )


def judge_share(share: float, aim: float, codes: Counter[int]) -> Verdict:
    """Return whether the aim is met; a share that is too good to be true was not measured."""
    return judge(share >= aim, set(codes) == {200}) if share <= MOST_SHARE else "not measured"
