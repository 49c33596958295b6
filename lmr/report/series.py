"""From rows to series: the rows of one method under one protocol, over its domains and seeds.

Rows that differ in anything that matters are never averaged: only the seed may differ inside a cell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import Row, read_rows, read_samples
from lmr.core.errors import LmrError
from lmr.core.registry import find_method, list_methods
from lmr.core.spec import parse_spec
from lmr.data.corruptions import CORRUPTIONS
from lmr.report.paper.published import SINGLE_PROMPT, expand_spec, name_backbone, name_prompts

PARTS = ("pmr", "am", "bc")
RENAMED = {"ZS", "Full", "0.03", "gap, 5"}  # what plans of ablations call zero-shot and LMR as it is
STREAMS = {"continual": "one stream through all domains", "mixed": "all domains mixed in one stream"}
SEVERAL = tuple(STREAMS)  # streams through more than one domain


@dataclass(frozen=True)
class Runs:
    """Rows of one or several folders, where their samples lie, and what was met on reading them."""

    rows: list[Row]
    folders: dict[str, Path]
    words: list[str] = field(default_factory=list)

    def samples(self, row: Row) -> dict[str, NDArray[Any]] | None:
        """The answers to every picture of a run, None where they are missing or damaged."""
        try:
            return read_samples(self.folders[row.run], row.run)
        except LmrError as error:
            if str(error) not in self.words:
                self.words.append(str(error))
            return None


def read_runs(folders: Iterable[str | os.PathLike[str]]) -> Runs:
    """Read folders of runs; a run that stands in several counts once."""
    rows: dict[str, Row] = {}
    places: dict[str, Path] = {}
    words: list[str] = []
    for folder in folders:
        found, dropped = read_rows(folder)
        words += dropped
        for row in found:
            try:
                parse_spec(row.spec)
            except LmrError as error:
                words.append(f"The run {row.run} in {str(folder)!r} was left out. {error}")
                continue
            rows[row.run] = row
            places[row.run] = Path(folder)
    if not rows:
        raise LmrError(f"There is no finished run in {', '.join(map(str, folders))}; 'lmr bench PLAN' makes some.")
    return Runs(list(rows.values()), places, words)


@dataclass(frozen=True, order=True)
class Setting:
    """What the lines of one table share."""

    dataset: str
    backbone: str
    prompts: str
    severity: int
    order: str
    reset: str  # "domain", or what kind of stream goes through all

    @property
    def family(self) -> tuple[str, str, str, str, str]:
        """All but the severity."""
        return self.dataset, self.backbone, self.prompts, self.order, self.reset

    @property
    def protocol(self) -> tuple[str, str, int, str, str]:
        """All but the dataset."""
        return self.backbone, self.prompts, self.severity, self.order, self.reset

    def describe(self, dataset: bool = True) -> str:
        """A phrase for the head of a table: what is not as in the paper's main tables is said."""
        parts = [*([self.dataset] if dataset else []), self.backbone]
        parts += [f"severity {self.severity}"] if self.severity else []
        parts += [f"prompts {self.prompts}"] if self.prompts != SINGLE_PROMPT else []
        parts += [STREAMS[self.reset]] if self.reset in STREAMS else []
        parts += [f"order {self.order}"] if self.order != "shuffle" else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Series:
    """All rows of one method in one setting with one batch size and number of images."""

    label: str
    setting: Setting
    rows: tuple[Row, ...]
    data: str = ""  # words for the pictures, where other runs of the setting have other ones

    @property
    def first(self) -> Row:
        """Any row: they share the protocol."""
        return self.rows[0]

    @cached_property
    def domains(self) -> list[str]:
        """The domains there are numbers for, in the order of the rows."""
        found: dict[str, None] = {}
        for row in self.rows:
            found.update(dict.fromkeys(row.domains if row.domain in SEVERAL else (row.domain,)))
        return list(found)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the order."""
        return sorted({row.seed for row in self.rows})

    def find(self, domain: str, seed: int | None = None) -> Row | None:
        """The last row about a domain."""
        for row in reversed(self.rows):
            about = row.domain == domain or (row.domain in SEVERAL and domain in row.domains)
            if about and (seed is None or row.seed == seed):
                return row
        return None

    def collect(self, domain: str, metric: str = "accuracy") -> dict[int, float]:
        """A metric on a domain by seed; accuracies in %."""
        found = {}
        for row in self.rows:
            whole = row.domain in SEVERAL and domain in row.domains  # what was measured over the stream holds for each
            value = row.metrics.get(metric) if row.domain == domain or whole else None
            if metric == "accuracy" and whole:
                value = row.domains[domain]
            if value is not None:
                found[row.seed] = 100 * value if metric in PERCENT else value
        return found

    def average(self, domains: Sequence[str], metric: str = "accuracy") -> dict[int, float]:
        """The mean over the domains by seed, for the seeds that have all of them."""
        columns = [self.collect(domain, metric) for domain in domains]
        seeds = set(columns[0]).intersection(*columns[1:]) if columns else set()
        return {seed: float(np.mean([column[seed] for column in columns])) for seed in sorted(seeds)}

    @property
    def ground(self) -> tuple[Any, ...]:
        """What two series must share to differ in spec, batch size and images alone."""
        row = self.first
        return row.backbone.get("weights"), row.backbone.get("dtype"), self.data, row.prompts.get("digest"), self.stream

    @property
    def stream(self) -> tuple[str, ...]:
        """The domains of a stream through several, in their order: another order is another stream."""
        return tuple(self.first.domains) if self.first.domain in SEVERAL else ()

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The arguments in which the spec differs from the nearest preset of its method."""
        return find_changes(self.first.spec)

    @property
    def is_part(self) -> bool:
        """Whether this is LMR with some parts switched off, and nothing else changed."""
        return bool(self.changes) and self.first.method == "lmr" and set(self.changes) <= set(PARTS)

    @property
    def sweep(self) -> str | None:
        """The figure this belongs to if it is LMR with only the figure's arguments changed."""
        keys = set(self.changes)
        if self.first.method != "lmr" or not keys:
            return None
        return "delta" if keys == {"delta"} else "negatives" if keys <= {"negatives", "positives"} else None


PERCENT = {
    "accuracy", "clean_accuracy", "ece", "top_share", "late_top_share", "gate_share", "classes_predicted",
}  # fmt: skip


def find_changes(spec: str) -> dict[str, Any]:
    """Where a spec differs from the nearest preset of its method (or its defaults); nothing for an unknown method."""
    name, _ = parse_spec(spec)
    if name not in list_methods():
        return {}
    values = expand_spec(spec)
    bases = [expand_spec(name), *(expand_spec(name, preset) for preset in find_method(name).presets)]
    changes = [{key: value for key, value in values.items() if base.get(key) != value} for base in bases]
    return min(changes, key=len)


def gather(rows: Iterable[Row]) -> dict[Setting, list[Series]]:
    """Rows as series, by setting."""
    found: dict[Setting, list[Row]] = {}
    for row in rows:
        setting = Setting(
            row.dataset,
            name_backbone(str(row.backbone.get("name", "?"))),
            name_prompts(str(row.prompts.get("name", ""))),
            row.severity if row.domain != "clean" else 0,
            row.order_words,
            row.domain if row.domain in SEVERAL else row.reset,
        )
        found.setdefault(setting, []).append(row)
    return {setting: _join_rows(setting, members) for setting, members in found.items()}


def _join_rows(setting: Setting, rows: Sequence[Row]) -> list[Series]:
    """The rows of a setting as series: only domain and seed differ inside one."""
    data = _describe_data(rows)
    groups: dict[tuple[Any, ...], Series] = {}
    for row in rows:
        one = Series("", setting, (row,), data[row.run])
        key = (row.spec, row.batch_size, row.images, row.emit, *one.ground)
        groups[key] = replace(one, rows=(*groups[key].rows, row)) if key in groups else one
    return [replace(one, label=_find_label(one.rows)) for one in groups.values()]


def _describe_data(rows: Sequence[Row]) -> dict[str, str]:
    """Run -> words for its pictures, empty unless runs on one domain have other pictures.

    Digests of two domains say nothing about each other: each may be of its own files alone.
    """
    if not _find_clashes(rows):
        return {row.run: "" for row in rows}
    keys = [key for key in rows[0].protocol if all(key in row.protocol for row in rows)]
    keys = [key for key in keys if len({row.protocol[key] for row in rows}) > 1]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault("; ".join(row.protocol[key] for key in keys), []).append(row)
    found = {}
    for words, members in groups.items():
        clashes = _find_clashes(members)
        for row in members:
            found[row.run] = f"data {row.data_digest[:8]}" if row.data_digest in clashes else words
    return found


def _find_clashes(rows: Sequence[Row]) -> set[str]:
    """Digests of pictures of which one domain has several."""
    by_domain: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        by_domain.setdefault((row.domain, *row.domains), set()).add(row.data_digest)
    return {digest for digests in by_domain.values() if len(digests) > 1 for digest in digests}


def _find_label(rows: Sequence[Row]) -> str:
    """What tables call a series: its rows' label, unless a plan about a part of the paper gave them another."""
    labels = {row.label for row in rows}
    if len(labels) == 1 and not labels & RENAMED:
        return rows[0].label
    name, changes = rows[0].method, find_changes(rows[0].spec)
    known = "zero-shot" if name == "zeroshot" else name.upper()
    return f"{known} ({', '.join(f'{key}={value}' for key, value in changes.items())})" if changes else known


def sort_domains(domains: Iterable[str]) -> list[str]:
    """Every domain once: the benchmark's in its order, then others as they came."""
    found = dict.fromkeys(domains)
    known = [domain for domain in CORRUPTIONS if domain in found]
    return known + [domain for domain in found if domain not in known]


def share_seeds(series: Sequence[Series], domains: Sequence[str] | None = None) -> tuple[list[Series], list[str]]:
    """The series with the seeds they all have, and a note about others: means over other seeds are not comparable.

    A seed counts for a series that has it on all of its domains (or all of the given ones). Another seed is another
    order and, in short streams, other pictures.
    """
    whole = [_find_whole_seeds(one, one.domains if domains is None else domains) for one in series]
    common = set.intersection(*whole) if whole else set()
    if not common:
        return list(series), ["No seed is complete in all lines; they are not strictly comparable."] if whole else []
    dropped = sorted({seed for one in series for seed in one.seeds} - common)
    kept = [replace(one, rows=tuple(row for row in one.rows if row.seed in common)) for one in series]
    words = ", ".join(map(str, dropped))
    return kept, [f"Left out, since not every line is complete for it: seed {words}."] if dropped else []


def _find_whole_seeds(one: Series, domains: Sequence[str]) -> set[int]:
    return {seed for seed in one.seeds if all(one.find(domain, seed) is not None for domain in domains)}
