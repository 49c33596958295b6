"""Overload: at four times its capacity the service refuses with 429 and serves as much as before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.inputs import draw_image, find_photo, name_streams
from lab.load.senders import ClientStats, Send, run_senders
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError
from lmr.service.engine.requests import ServiceAnswer

EACH, STREAMS, TIMES = 8, 64, 4
SATURATING = 16  # threads that saturate the service
FLAT = 1.10  # memory at the end over memory after the first third


def measure_overload(bench: LoadBench) -> LoadResult:
    """Measure the capacity with enough clients, then send requests at four times that rate."""
    model = find_photo()
    images = [draw_image(number, model.side) for number in range(EACH)]
    names = name_streams(STREAMS)

    def send(client: Client, thread: int, number: int) -> ServiceAnswer:
        return client.step(names[(thread + SATURATING * number) % STREAMS], images, top=1)

    seconds = bench.choose(300, 0.6)
    with bench.make_service(model, "overload") as service:
        run_senders(service.url, SATURATING, send, bench.choose(5, 0.2), patience=60)
        cpu = service.read_cpu_seconds()
        before, wall = run_senders(service.url, SATURATING, send, bench.choose(60, 0.4), patience=60)
        capacity_cpu = before.images / (service.read_cpu_seconds() - cpu)
        capacity = before.images / wall
        cpu, memories = service.read_cpu_seconds(), list[float]()
        offered = TIMES * capacity / EACH
        stats, wall = _send_at(service.url, offered, send, seconds, lambda: memories.append(service.read_memory_mb()))
        goodput_cpu = stats.images / (service.read_cpu_seconds() - cpu)
    share, wall_share = goodput_cpu / capacity_cpu, stats.images / wall / capacity
    growth = memories[-1] / memories[len(memories) // 3]
    sent = sum(stats.codes.values())
    figures = {
        "capacity_images_per_second": capacity,
        "goodput_images_per_second": stats.images / wall,
        "share_per_cpu_second": share,
        "share_per_second": wall_share,
        "offered_times": sent * EACH / wall / capacity,
        "codes": dict(stats.codes),
        "memory_growth": growth,
        "memory_mb": memories[-1],
        "problems": stats.problems,
    }
    return LoadResult(
        "overload",
        f"photo, {figures['offered_times']:.1f}× the capacity for {wall:.0f} s",
        "only 200 and 429; goodput ≥ 0.9 of the capacity; memory flat",
        f"codes {dict(stats.codes)}; goodput {share:.2f} per CPU second ({wall_share:.2f} per second, with the "
        f"senders on the same cores); memory ×{growth:.2f}",
        judge(set(stats.codes) <= {200, 429}, share >= 0.9, growth <= FLAT),
        figures,
    )


def _send_at(
    url: str, rate: float, send: Send, seconds: float, look: Callable[[], object]
) -> tuple[ClientStats, float]:
    """Send requests at a rate from a bounded number of threads; ``look`` is called from time to time."""
    stats, began = ClientStats(), time.monotonic()
    numbers, lock = iter(range(10**9)), threading.Lock()

    def work(thread: int) -> None:
        with Client(url, patience=0) as client:
            while True:
                with lock:
                    number = next(numbers)
                due = began + number / rate
                if due > began + seconds:
                    return
                time.sleep(max(0.0, due - time.monotonic()))
                started = time.perf_counter()
                try:
                    stats.note(send(client, number, 0), time.perf_counter() - started)
                except ServiceError as error:
                    stats.note_problem(error)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2 * STREAMS)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        look()
        time.sleep(seconds / 20)
    return stats, time.monotonic() - began
