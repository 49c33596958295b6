"""Seconds of each contender: all in one process, in alternation, after a warm-up."""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Never

from lmr.bench.cost.contenders import CostContender, PassWatch, StepOutcome
from lmr.bench.cost.gemm import MatrixRate
from lmr.core.errors import LmrError

if TYPE_CHECKING:
    from tqdm import tqdm

FEWEST, MOST = 3, 30  # rounds when a budget of minutes decides


def warm_up(contenders: Sequence[CostContender], bar: tqdm[Never]) -> dict[str, StepOutcome]:
    """One step of each, not measured: libraries load and memory is allocated. Returns what came out."""
    outcomes = {}
    for contender in contenders:
        bar.set_description(f"warm-up: {contender.entry.name}".ljust(34))
        outcomes[contender.entry.name] = _watch_step(contender)
        bar.update()
    return outcomes


def take_turns(
    contenders: Sequence[CostContender], matrices: MatrixRate | None, rounds: int, bar: tqdm[Never]
) -> dict[str, list[float]]:
    """Seconds of every step. Each round runs each contender once; the first of a round is the last of the next."""
    seconds: dict[str, list[float]] = {contender.entry.name: [] for contender in contenders}
    for turn in range(rounds):
        start = turn % len(contenders)
        if matrices is not None:
            matrices.measure()
        for contender in [*contenders[start:], *contenders[:start]]:
            bar.set_description(f"round {turn + 1} of {rounds}: {contender.entry.name}".ljust(34))
            seconds[contender.entry.name].append(_take_step(contender)[0])
            bar.update()
    return seconds


def choose_rounds(round_seconds: float, left_seconds: float) -> int:
    """How many rounds fit into the remaining time, between FEWEST and MOST."""
    return max(FEWEST, min(MOST, math.floor(left_seconds / max(round_seconds, 1e-3))))


def _watch_step(contender: CostContender) -> StepOutcome:
    """A step, and how many images took part in its passes."""
    if contender.encoder is None:
        return _take_step(contender)[1]
    watch = PassWatch(contender.images)
    with watch.observe(contender.encoder):
        outcome = _take_step(contender)[1]
    return dataclasses.replace(outcome, forwards=watch.forwards, backwards=watch.backwards, widest=watch.widest)


def _take_step(contender: CostContender) -> tuple[float, StepOutcome]:
    """Seconds and outcome of one step from the state it is measured in, checked to be the step that should be measured.

    Recent garbage is collected before, so that no contender pays for another's; a full collection would empty the
    processor's caches.
    """
    contender.reset()
    gc.collect(1)
    started = time.perf_counter()
    outcome = contender.run()
    seconds = time.perf_counter() - started
    contender.check(outcome)
    if not outcome.logits.isfinite().all():
        raise LmrError(f"{contender.entry.name} answered with NaN or infinite values; measure another model.")
    return seconds, outcome
