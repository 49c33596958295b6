"""Streams as they are in life: which runs are about one, and how each compares with the frozen model along it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.metrics import window_gains
from lmr.bench.running.row import Row
from lmr.report.noted import Noted, join_notes
from lmr.report.row_traits import LineKind, StreamKind
from lmr.report.runs import Runs
from lmr.report.series import SHUFFLE, Series, Setting

Gains = NDArray[np.float64]
PLAIN_ORDERS = (SHUFFLE, "file")
HAUL = "haul"  # the order of the long haul
ORDER_WORDS = {SHUFFLE: "shuffled", "classes": "by class", "shift": "label shift", HAUL: "long haul"}


@dataclass(frozen=True)
class Scenario:
    """A kind of stream: the lines of one column of the table."""

    dataset: str
    order: str
    stream: StreamKind
    batch_size: int
    images: int
    severity: int  # 0 for clean images

    @property
    def plain(self) -> bool:
        """Whether it is as in published benchmarks: no order in the classes, a reset before every corruption."""
        return self.order in PLAIN_ORDERS and not self.stream.several

    @property
    def clean(self) -> Scenario:
        """The same on clean images, which belong to the column of any severity."""
        return replace(self, severity=0)

    def describe(self, severity: bool = False) -> str:
        """The head of a column, with its severity where another column differs in nothing else."""
        order = ORDER_WORDS.get(self.order, self.order)
        if self.stream.several:
            more = self.order.removeprefix(SHUFFLE).strip()
            order = f"{self.stream.value} {more}".strip()
        words = [order, *([f"severity {self.severity}"] if severity and self.severity else []), str(self.batch_size)]
        return ", ".join(words)


@dataclass(frozen=True)
class LifeGroup:
    """All series on one kind of data with one model, at any severity, in any order and batch size."""

    setting: Setting  # without what differs
    series: tuple[Series, ...]

    @cached_property
    def references(self) -> dict[tuple[Any, ...], Row]:
        """The rows of the frozen model, by the stream they are about: its batch size changes nothing."""
        rows = (row for one in self.series if one.kind is LineKind.BASELINE for row in one.rows)
        return {_identify_stream(row): row for row in rows}

    def find_reference(self, row: Row) -> Row | None:
        """The row of the frozen model on the same stream."""
        return self.references.get(_identify_stream(row))


def find_groups(settings: Mapping[Setting, Sequence[Series]]) -> list[LifeGroup]:
    """The groups that hold a stream which is not as in published benchmarks."""
    found: dict[Setting, list[Series]] = {}
    for setting, series in settings.items():
        name = re.sub(r"^(pocket(-c)?)-\d+$", r"\1", setting.dataset)  # any number of images is from one world
        shared = replace(setting, dataset=name, severity=0, order=SHUFFLE, stream=StreamKind.DOMAIN)
        found.setdefault(shared, []).extend(series)
    groups = [LifeGroup(setting, tuple(series)) for setting, series in found.items()]
    return [group for group in groups if any(not find_scenario(one).plain for one in group.series)]


def find_scenario(one: Series) -> Scenario:
    """The kind of stream that a series is about."""
    row, setting = one.first, one.setting
    return Scenario(setting.dataset, setting.order, setting.stream, row.batch_size, row.images, setting.severity)


def measure_gains(runs: Runs, group: LifeGroup, row: Row) -> Noted[Gains | None]:
    """Accuracy minus that of the frozen model in every window of a run, [W]; None without the answers of both."""
    reference = group.find_reference(row)
    if reference is None:
        return Noted(None)
    answers = [runs.samples(one) for one in (row, reference)]
    right = [one.value["true"] == one.value["predicted"] for one in answers if one.value is not None]
    if len(right) < 2 or len(right[0]) != len(right[1]):
        return Noted(None, join_notes(*(one.notes for one in answers)))
    return Noted(window_gains(*right))


def _identify_stream(row: Row) -> tuple[Any, ...]:
    return (
        row.backbone.get("weights"), row.backbone.get("dtype"), row.prompts.get("digest"), row.dataset, row.data_digest,
        row.domain, row.severity, row.seed, row.images, *row.order.values(), *row.domains,
    )  # fmt: skip
