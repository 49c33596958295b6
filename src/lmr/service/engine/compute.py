"""Compute: the calls of the engine to its method. Rows are the streams of the method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.labelled import Labelled
from lmr.core.prediction import Prediction, State
from lmr.service.engine.records import StreamRecord
from lmr.service.engine.requests import CannotDo, StreamAction
from lmr.watch.stream_watch import StreamWatch
from lmr.watch.watched import Watched

MOST_SHARES = 20  # predicted classes that are listed
FACTS = ("gate_share", "loss", "drift")  # values of a step that answers include

Inputs = Sequence[tuple[int, Tensor]]  # rows and their images

_REASONS: dict[StreamAction, str] = {  # why an action is not possible: the watch says it with the number of a row
    "rollback": "The stream has no snapshot to roll back to; reset it instead.",
    "resume": "The stream adapts already.",
}


@dataclass(frozen=True)
class RowAnswer:
    """The answer of the method to the images of one row."""

    logits: Tensor
    known: Tensor  # scores [n] that the images belong to one of the classes
    unknown: Tensor  # bool [n]: those that belong to none
    stepped: bool = False
    facts: dict[str, float | None] = field(default_factory=dict)
    frozen: dict[int, int] = field(default_factory=dict)  # place of an image -> class of the frozen model
    events: list[dict[str, Any]] = field(default_factory=list)
    frozen_logits: Tensor | None = None  # where the request asked for them
    reused: list[bool] = field(default_factory=list)


class Compute:
    """The method, watched or not, with its labels."""

    def __init__(self, method: Labelled, names: Sequence[str]) -> None:
        self.method, self._names = method, names
        self._watched = method.method if isinstance(method.method, Watched) else None
        self._inner = self._watched.method if self._watched else method.method

    def answer(self, inputs: Inputs) -> list[RowAnswer]:
        """Return answers with the present states."""
        if not inputs:
            return []
        return [RowAnswer(*own) for own in _split_answer(self.method.predict(*_join(inputs)), inputs)]

    def step(self, inputs: Inputs) -> list[RowAnswer]:
        """Adapt, and return answers; every row occurs once."""
        if not inputs:
            return []
        resting = {row for row, _ in inputs if self._watched and not self._watched.watches[row].health.level.adapts}
        result = self.method.step(*_join(inputs))
        info = result.info
        answers = []
        reused = torch.zeros(len(result.logits), dtype=torch.bool) if result.reused is None else result.reused
        columns = zip(inputs, _split_answer(result, inputs), _split(reused, inputs), strict=True)
        for (row, _), own, taken in columns:
            facts = info.get("streams", {}).get(row, {}) if self.method.streams > 1 else info
            answers.append(
                RowAnswer(
                    *own,
                    row not in resting and bool(facts.get("stepped", True)),
                    {key: float(facts[key]) if math.isfinite(facts[key]) else None for key in FACTS if key in facts},
                    dict(info.get("compared", {}).get(row, [])),
                    [event for event in info.get("events", []) if event["stream"] == row],
                    reused=taken.tolist(),
                )
            )
        return answers

    def compare(self, inputs: Inputs) -> list[Tensor]:
        """Return the logits of the frozen model."""
        classifier = self._inner.classifier
        with torch.no_grad():
            return _split(classifier(_join(inputs)[0].to(classifier.device)).cpu(), inputs)

    def count_labels(self, row: int, labels: Sequence[int], counted: Sequence[int]) -> None:
        """Count true labels of images of a row that are too old to teach more."""
        self._inner.count_labels(labels, [row] * len(labels), counted)

    def copy(self, rows: Sequence[int]) -> list[Callable[[], None]]:
        """Return for each row a function that restores its present state."""
        if not rows:
            return []
        state = self._inner.state_dict(rows)
        labels = {key: value[list(rows)].clone() for key, value in self.method.own.items()}
        return [
            partial(self._restore, row, place, state, labels, self._watched.watches[row] if self._watched else None)
            for place, row in enumerate(rows)
        ]

    def _restore(
        self, row: int, place: int, state: Mapping[str, Any], labels: State, watch: StreamWatch | None
    ) -> None:
        own = {key: value[place : place + 1] for key, value in state["tensors"].items()}
        self._inner.load_state_dict({**state, "tensors": own}, [row])
        with self.method.session():
            taught = {key: value[place : place + 1] for key, value in labels.items()}
            self.method.put(taught, self.method.find_rows(row))
        if self._watched and watch is not None:
            self._watched.watches[row] = watch

    def clear(self, row: int) -> None:
        """Clear a row for another stream; nothing of the former one is left."""
        self.method.reset([row])
        if self._watched:
            self._watched.forget([row])

    def act(self, row: int, action: StreamAction) -> None:
        """Carry out an action of an operator other than "delete"; CannotDo if it is not possible now."""
        if action == "reset":
            self.method.reset([row])
            return
        if self._watched is None:
            raise CannotDo(f"The action {action!r} needs a watch; start the service with --watch on.")
        try:
            getattr(self._watched, action)(row)  # rollback, pause or resume
        except LmrError as error:
            raise CannotDo(_REASONS.get(action, str(error))) from error

    def describe(self, records: Sequence[tuple[int, StreamRecord]], *, estimate: bool = False) -> list[StreamRecord]:
        """Return the records of rows with their present health, signals, snapshots and predicted classes.

        The accuracy is estimated again if labels begin or cease to hold, or with ``estimate``.
        """
        if not records:
            return []
        rows = torch.tensor([row for row, _ in records], device=self._inner.classifier.device)
        counts = self._inner.state["predicted"][rows].cpu()
        best = counts.topk(min(MOST_SHARES, counts.shape[1]), 1)
        rest = (counts.sum(1) - best.values.sum(1)).tolist()
        phases, used = self._inner.phases(), self.method.count_used()
        columns = zip(records, best.indices.tolist(), best.values.tolist(), rest, strict=True)
        return [
            replace(
                record,
                adapting=None if phases is None else phases[row],
                predicted=(*zip(map(self._names.__getitem__, kinds), numbers, strict=True), (None, others)),
                **self._describe_watch(row),
                **(self._describe_labels(row) if estimate or used[row] != record.estimated_labels else {}),
            )
            for (row, record), kinds, numbers, others in columns
        ]

    def _describe_labels(self, row: int) -> dict[str, Any]:
        found, taught = self.method.estimate(row), int(self.method.own["taught"][row])
        if found is None:
            return {"estimated_accuracy": None, "estimated_interval": None, "estimated_labels": 0, "taught": taught}
        facts = {"estimated_accuracy": found.accuracy, "estimated_interval": found.interval}
        return facts | {"estimated_labels": found.labels, "taught": taught}

    def _describe_watch(self, row: int) -> dict[str, Any]:
        if self._watched is None:
            return {}
        watch = self._watched.watches[row]
        level, signals = watch.health.level, dict(vars(watch.signals))
        snapshots = tuple(one.step for one in watch.snapshots)
        return {"health": str(level), "adapts": level.adapts, "signals": signals, "snapshots": snapshots}


def _join(inputs: Inputs) -> tuple[Tensor, list[int]]:
    rows = [row for row, images in inputs for _ in range(len(images))]
    return torch.cat([images for _, images in inputs]), rows


def _split(logits: Tensor, inputs: Inputs) -> list[Tensor]:
    return list(torch.split(logits, [len(images) for _, images in inputs]))


def _split_answer(answer: Prediction, inputs: Inputs) -> list[tuple[Tensor, Tensor, Tensor]]:
    unknown = torch.zeros(len(answer.logits), dtype=torch.bool) if answer.unknown is None else answer.unknown
    logits, known, none = (_split(values.cpu(), inputs) for values in (answer.logits, answer.known, unknown))
    return list(zip(logits, known, none, strict=True))
