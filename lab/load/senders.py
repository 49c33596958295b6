"""Concurrent clients in threads, each with streams of its own and one request in flight."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError
from lmr.service.engine.requests import ServiceAnswer


@dataclass
class ClientStats:
    """Responses of all clients: status codes (0 for no response), answered images and batch sizes."""

    codes: Counter[int] = field(default_factory=Counter)
    images: int = 0
    batch_images: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, answer: ServiceAnswer) -> None:
        """Add an answer."""
        with self.lock:
            self.codes[200] += 1
            self.images += len(answer.answers)
            self.batch_images.append(answer.timing.get("batch_images", 0.0))

    def note_problem(self, error: ServiceError) -> None:
        """Add a refusal, or a missing response."""
        with self.lock:
            self.codes[error.status or 0] += 1


Send = Callable[[Client, int, int], ServiceAnswer]  # a client, the number of the thread, and of the request


def run_senders(
    url: str, threads: int, send: Send, seconds: float, *, patience: float = 0.0, most: int | None = None
) -> tuple[ClientStats, float]:
    """Send from every thread, one request after the other, for ``seconds``; return the responses and the wall time.

    Every thread sends at least one request: on a busy machine a short time may pass before the threads start.
    """
    stats, end, began = ClientStats(), time.monotonic() + seconds, time.monotonic()
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        number = 0
        try:
            with Client(url, patience=patience) as client:
                while (number == 0 or time.monotonic() < end) and (most is None or number < most):
                    try:
                        stats.note(send(client, thread, number))
                    except ServiceError as error:
                        stats.note_problem(error)
                    number += 1
        except BaseException as error:  # raised where the threads are joined
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return stats, time.monotonic() - began
