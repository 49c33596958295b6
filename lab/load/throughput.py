"""Throughput per processor second of a saturated service, against the bare loop in the same run; and added latency."""

from __future__ import annotations

import statistics
from collections import Counter

import torch

from lab.load.bare_loop import BareLoop, ImageCost, sum_costs
from lab.load.child_service import read_cpu_seconds
from lab.load.load_bench import LoadBench, read_spec
from lab.load.load_images import draw_image
from lab.load.load_models import LoadModel, find_pocket, name_streams, write_random_vit
from lab.load.load_result import LoadResult, judge
from lab.load.senders import find_percentile, run_senders
from lmr.service.client.client import Client, ServiceAnswer

STREAMS, MOST = 16, 64  # streams that saturate the service; images of its largest batch
VARIETY = 64  # different images
TURNS = 8  # of the bare loop and of the service


def measure_vit(bench: LoadBench) -> LoadResult:
    """ViT-B/16 with random weights, 16 streams, one image a request."""
    model = write_random_vit(bench.folder)
    options = ["--max-step-ms", "600000"]  # batches of all streams, as in the bare loop
    return _measure(bench, model, 1, bench.choose(180, 20), 0.95, options)


def measure_pocket_8(bench: LoadBench) -> LoadResult:
    """The pocket model, 8 images a request."""
    return _measure(bench, find_pocket(), 8, bench.choose(40, 1.5), 0.90)


def measure_pocket_1(bench: LoadBench) -> LoadResult:
    """The pocket model, one image a request."""
    return _measure(bench, find_pocket(), 1, bench.choose(40, 1.5), 0.5)


def _measure(
    bench: LoadBench, model: LoadModel, each: int, seconds: float, aim: float, options: list[str] | None = None
) -> LoadResult:
    """Bare loop and service by turns, and the median of their ratios: a machine that slows down slows both."""
    images = [draw_image(number, model.side) for number in range(VARIETY)]
    names = name_streams(STREAMS)

    def send(client: Client, thread: int, number: int) -> ServiceAnswer:
        chosen = [images[(thread + number * each + k) % VARIETY] for k in range(each)]
        return client.step(names[thread], chosen, top=1)

    with bench.make_service(model, "throughput", options or []) as service:
        spec, watched = read_spec(service)
        bare = BareLoop(model, model.load(), min(STREAMS, MOST // each), each, spec, watched)
        run_senders(service.url, STREAMS, send, bench.choose(5, 0.5), patience=60)  # warm
        alone, served, codes, batches = list[ImageCost](), list[ImageCost](), Counter[int](), list[float]()
        turns = bench.count(TURNS, 2)
        for _ in range(turns):
            alone.append(bare.run(seconds / turns))
            cpu = read_cpu_seconds(service)
            tolls, wall = run_senders(service.url, STREAMS, send, seconds / turns, patience=60)
            served.append(ImageCost(tolls.images, read_cpu_seconds(service) - cpu, wall))
            codes += tolls.codes
            batches += tolls.batch_images
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
        judge(share >= aim, set(codes) == {200}),
        figures,
    )


def measure_latency(bench: LoadBench) -> LoadResult:
    """One request in flight: the time of an answer beyond the service's own computation."""
    model = find_pocket()
    images = [draw_image(number, model.side) for number in range(VARIETY)]

    def send(client: Client, thread: int, number: int) -> ServiceAnswer:
        return client.step("load-00000", images[number % VARIETY], top=1)

    with bench.make_service(model, "latency") as service:
        run_senders(service.url, 1, send, 60, most=bench.count(100, 5))
        tolls, _ = run_senders(service.url, 1, send, 300, most=bench.count(2000, 60))
    middle, high = (1000 * find_percentile(tolls.added, share) for share in (0.5, 0.99))
    figures = {
        "requests": len(tolls.added),
        "added_p50_ms": middle,
        "added_p99_ms": high,
        "p50_ms": 1000 * find_percentile(tolls.seconds, 0.5),
        "p99_ms": 1000 * find_percentile(tolls.seconds, 0.99),
        "codes": dict(tolls.codes),
    }
    return LoadResult(
        "added latency",
        f"pocket, one request in flight, {len(tolls.added)} requests",
        "p50 ≤ 10 ms, p99 ≤ 25 ms",
        f"p50 {middle:.1f} ms, p99 {high:.1f} ms beyond the computation "
        f"(whole: {figures['p50_ms']:.1f} and {figures['p99_ms']:.1f} ms)",
        judge(middle <= 10, high <= 25, set(tolls.codes) == {200}),
        figures,
    )
