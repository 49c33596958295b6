"""When a client tries again, and how long it waits before: exponential backoff with jitter, bounded in time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST, LONGEST = 0.2, 10.0  # seconds before the second attempt; seconds at most
# Refused for now. 409: an earlier attempt whose connection broke is still computed; its answer is kept under the key.
PASSING = frozenset({409, 429, 502, 503, 504})


@dataclass(frozen=True)
class RetryRule:
    """Waiting times of attempts over ``patience`` seconds; the rest is replaced in tests."""

    patience: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    draw: Callable[[], float] = random.random
    on_wait: Callable[[str], object] = lambda words: None

    def wait(self, attempt: int, began: float, reason: str, asked: float | None = None) -> bool:
        """Wait after the failed attempt of this number (from 0); False, without waiting, if patience would end.

        ``on_wait`` gets the ``reason`` from the second time on: a single refusal is usual. ``asked`` are the seconds
        that the service asked for. Half of a waiting time is random, so that many clients that were refused
        together do not come back together.
        """
        delay = min(LONGEST, FIRST * 2.0 ** min(attempt, 16)) * (0.5 + 0.5 * self.draw())
        if asked is not None:
            delay = asked + FIRST * self.draw() if asked > delay else delay
        if self.clock() - began + delay > self.patience:
            return False
        if attempt:
            self.on_wait(f"{reason} Trying again in {delay:.1f} s.")
        self.sleep(delay)
        return True


def read_retry_after(value: str | None) -> float | None:
    """Seconds in a Retry-After header; None where it is missing or is a date, which this service never sends."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
