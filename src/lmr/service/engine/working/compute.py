"""Compute: all that the engine asks of its method. Rows are the method's streams; names are not known here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.service.engine.step_types import CannotDo
from lmr.service.engine.stream_types import UNWATCHED, StreamAction
from lmr.watch.watched import Watched

MOST_SHARES = 20  # predicted classes that are listed
FACTS = ("gate_share", "loss", "drift")  # of a step, that answers tell

Ask = tuple[int, Tensor]  # a row and its images


@dataclass(frozen=True)
class RowAnswer:
    """What the method gave for the images of one row."""

    logits: Tensor
    stepped: bool = False
    facts: dict[str, float | None] = field(default_factory=dict)
    frozen: dict[int, int] = field(default_factory=dict)  # image -> class, where the frozen model was asked
    events: list[dict[str, Any]] = field(default_factory=list)

    def list_top(self, count: int) -> list[list[tuple[int, float]]]:
        """The best classes of each image and their probabilities; none where the answer is not finite."""
        best = self.logits.softmax(1).topk(min(max(1, count), self.logits.shape[1]), 1)
        sound = self.logits.isfinite().all(1).tolist()
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [list(zip(*pair, strict=True)) if good else [] for good, pair in zip(sound, pairs, strict=True)]


@dataclass(frozen=True)
class Condition:
    """What a row is like now."""

    health: str
    adapts: bool
    signals: dict[str, Any]
    snapshots: tuple[int, ...]
    predicted: tuple[tuple[int, int], ...]  # class and count, the most frequent first; the rest under -1


class Compute:
    """The method, watched or not."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self._watched = method if isinstance(method, Watched) else None
        self._inner = self._watched.method if self._watched else method

    def answer(self, asked: Sequence[Ask]) -> list[RowAnswer]:
        """Answer with the present states."""
        if not asked:
            return []
        logits = self.method.predict(*_join(asked)).logits.cpu()
        return [RowAnswer(own) for own in _split(logits, asked)]

    def step(self, asked: Sequence[Ask]) -> list[RowAnswer]:
        """Adapt and answer; every row once."""
        if not asked:
            return []
        rests = {row for row, _ in asked if self._watched and not self._watched.watches[row].ladder.rung.adapts}
        answer = self.method.step(*_join(asked))
        info = answer.info
        outcomes = []
        for (row, _), logits in zip(asked, _split(answer.logits.cpu(), asked), strict=True):
            facts = info.get("streams", {}).get(row, {}) if self.method.streams > 1 else info
            outcomes.append(
                RowAnswer(
                    logits,
                    row not in rests and bool(facts.get("stepped", True)),
                    {key: _make_finite(facts[key]) for key in FACTS if key in facts},
                    dict(info.get("compared", {}).get(row, [])),
                    [event for event in info.get("events", []) if event["stream"] == row],
                )
            )
        return outcomes

    @contextmanager
    def keep(self, rows: Sequence[int]) -> Iterator[None]:
        """Give these rows the states they have now if anything fails within this context."""
        before = self._inner.state_dict(rows) if rows else {}
        watches = [self._watched.watches[row] for row in rows] if self._watched else []
        try:
            yield
        except BaseException:
            if rows:
                self._inner.load_state_dict(before, rows)
            if self._watched:
                for row, watch in zip(rows, watches, strict=True):
                    self._watched.watches[row] = watch
            raise

    def clear(self, row: int) -> None:
        """Make a row new, for another stream: nothing of the one before is left in it, not even an undo."""
        if self._watched:
            self._watched.forget([row])
        else:
            self.method.reset([row])

    def act(self, row: int, action: StreamAction) -> None:
        """Do what an operator asks for; CannotDo if it is not possible now."""
        if action == "delete":
            self.clear(row)
            return
        if action == "reset":
            self.method.reset([row])
            return
        if self._watched is None:
            raise CannotDo(f"There is no {action} without a watch; start the service with --watch on.")
        actions: dict[StreamAction, Callable[[int], None]] = {
            "rollback": self._watched.rollback,
            "pause": self._watched.pause,
            "resume": self._watched.resume,
            "undo": self._watched.undo,
        }
        try:
            actions[action](row)
        except LmrError as error:
            words = str(error).replace(f" of stream {row}", "").replace(f" in stream {row}", "")
            raise CannotDo(words.replace(f"Stream {row} ", "The stream ")) from error

    def describe(self, rows: Sequence[int]) -> list[Condition]:
        """What these rows are like now."""
        if not rows:
            return []
        counts = self._inner.state["predicted"][torch.tensor(rows, device=self._inner.classifier.device)].cpu()
        best = counts.topk(min(MOST_SHARES, counts.shape[1]), 1)
        rest = (counts.sum(1) - best.values.sum(1)).tolist()
        predicted = [
            (*zip(*pair, strict=True), *([(-1, others)] if others else []))
            for *pair, others in zip(best.indices.tolist(), best.values.tolist(), rest, strict=True)
        ]
        return [self._describe_one(row, own) for row, own in zip(rows, predicted, strict=True)]

    def _describe_one(self, row: int, predicted: tuple[tuple[int, int], ...]) -> Condition:
        if self._watched is None:
            return Condition(UNWATCHED, True, {}, (), predicted)
        watch = self._watched.watches[row]
        rung = watch.ladder.rung
        snapshots = tuple(one.step for one in watch.snapshots)
        return Condition(str(rung), rung.adapts, dict(vars(self._watched.signals(row))), snapshots, predicted)


def _join(asked: Sequence[Ask]) -> tuple[Tensor, list[int]]:
    """The images of all rows as one batch, and the row of each."""
    rows = [row for row, images in asked for _ in range(len(images))]
    return torch.cat([images for _, images in asked]), rows


def _split(logits: Tensor, asked: Sequence[Ask]) -> list[Tensor]:
    """The logits of each row's images."""
    return list(torch.split(logits, [len(images) for _, images in asked]))


def _make_finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
