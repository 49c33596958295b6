"""From rows to series: the rows of one method under one protocol, over its domains and seeds.

Rows that differ in anything that matters are never averaged: only the seed may differ inside a cell.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lmr.bench.running.row import Row
from lmr.data.corruptions import CORRUPTIONS
from lmr.report.noted import Noted
from lmr.report.paper.paper_tables import SINGLE_PROMPT, is_printed_name, name_backbone, name_prompts
from lmr.report.row_traits import (
    LineKind,
    StreamKind,
    expand_spec,
    find_changes,
    find_known,
    find_sweep,
    kind_of,
    label_of,
    stream_of,
)

SHUFFLE = "shuffle"  # the order of the paper's streams
STREAM_WORDS = {
    StreamKind.CONTINUAL: "one stream through all domains",
    StreamKind.MIXED: "all domains mixed in one stream",
}
PERCENT = {
    "accuracy", "clean_accuracy", "ece", "top_share", "late_top_share", "gate_share", "classes_predicted",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What the lines of one table share."""

    dataset: str
    backbone: str
    prompts: str
    severity: int
    order: str
    stream: StreamKind

    @property
    def family(self) -> Setting:
        """The setting without its severity."""
        return replace(self, severity=0)

    @property
    def protocol(self) -> Setting:
        """The setting without its dataset."""
        return replace(self, dataset="")

    def describe(self, dataset: bool = True) -> str:
        """A phrase for the title of a table; it names what is not as in the paper's main tables."""
        parts = [*([self.dataset] if dataset else []), self.backbone]
        parts += [f"severity {self.severity}"] if self.severity else []
        parts += [f"prompts {self.prompts}"] if self.prompts != SINGLE_PROMPT else []
        parts += [STREAM_WORDS[self.stream]] if self.stream in STREAM_WORDS else []
        parts += [f"order {self.order}"] if self.order != SHUFFLE else []
        return ", ".join(parts)


@dataclass(frozen=True)
class DataGroup:
    """Which images a series saw, where other runs of its setting saw others; empty where all saw the same."""

    facts: tuple[str, ...] = ()  # what its protocol says and that of others does not
    digest: str = ""  # where the protocols do not tell them apart

    def describe(self) -> str:
        """A phrase for a label."""
        return f"data {self.digest[:8]}" if self.digest else "; ".join(self.facts)


class Aspect(enum.Enum):
    """What series of one setting and spec may differ in; the values are words for notes."""

    BATCH_SIZE = "batch size"
    IMAGES = "images"
    EMISSION = "emit"
    WEIGHTS = "weights"
    DTYPE = "dtype"
    DATA = "data"
    PROMPTS = "prompts"
    DOMAIN_ORDER = "order of domains"


@dataclass(frozen=True)
class Series:
    """All rows of one method in one setting with one batch size and number of images."""

    label: str
    setting: Setting
    rows: tuple[Row, ...]
    data: DataGroup = DataGroup()
    named: frozenset[Aspect] = frozenset()  # what the label says about the protocol

    @property
    def first(self) -> Row:
        """Any row: they share the protocol."""
        return self.rows[0]

    @cached_property
    def kind(self) -> LineKind:
        """What this is in a table."""
        return kind_of(self.first)

    @cached_property
    def sweep(self) -> str | None:
        """The sweep of its method that this is a step of."""
        return find_sweep(self.first)

    @property
    def watch(self) -> str | None:
        """The spec of the watch around the method; None for a plain run."""
        return self.first.watch.get("spec")

    @property
    def configuration(self) -> tuple[str, str | None]:
        """What was run, whatever it was run on: the method with its arguments, and its watch."""
        return self.first.spec, self.watch

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The arguments in which the spec differs from the nearest preset of its method."""
        return find_changes(self.first.spec)

    @cached_property
    def domains(self) -> list[str]:
        """The domains there are numbers for, in the order of the rows."""
        found: dict[str, None] = {}
        for row in self.rows:
            found.update(dict.fromkeys(row.domains if stream_of(row).several else (row.domain,)))
        return list(found)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the order."""
        return sorted({row.seed for row in self.rows})

    def find(self, domain: str, seed: int | None = None) -> Row | None:
        """The last row about a domain."""
        for row in reversed(self.rows):
            about = row.domain == domain or (stream_of(row).several and domain in row.domains)
            if about and (seed is None or row.seed == seed):
                return row
        return None

    def collect(self, domain: str, metric: str = "accuracy") -> dict[int, float]:
        """A metric on a domain by seed; accuracies in %."""
        found = {}
        for row in self.rows:
            whole = stream_of(row).several and domain in row.domains  # measured over the stream: holds for each domain
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
        """What two series must share to differ only in spec, batch size and images."""
        row = self.first
        return row.backbone.get("weights"), row.backbone.get("dtype"), self.data, row.prompts.get("digest"), self.stream

    @property
    def stream(self) -> tuple[str, ...]:
        """The domains of a stream through several, in their order: another order is another stream."""
        return tuple(self.first.domains) if stream_of(self.first).several else ()


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
            stream_of(row),
        )
        found.setdefault(setting, []).append(row)
    return {setting: _join_rows(setting, members) for setting, members in found.items()}


def _join_rows(setting: Setting, rows: Sequence[Row]) -> list[Series]:
    """The rows of a setting as series: only domain and seed differ inside one."""
    data = _group_data(rows)
    groups: dict[tuple[Any, ...], Series] = {}
    for row in rows:
        one = Series("", setting, (row,), data[row.run])
        key = (*one.configuration, row.batch_size, row.images, row.emit, *one.ground)
        groups[key] = replace(one, rows=(*groups[key].rows, row)) if key in groups else one
    return [replace(one, label=_find_label(one.rows)) for one in groups.values()]


def _group_data(rows: Sequence[Row]) -> dict[str, DataGroup]:
    """Run -> which images it saw; all the same unless runs on one domain saw different ones.

    Digests of two domains say nothing about each other: each may cover only the files of its domain.
    """
    if not _find_clashes(rows):
        return {row.run: DataGroup() for row in rows}
    keys = [key for key in rows[0].protocol if all(key in row.protocol for row in rows)]
    keys = [key for key in keys if len({row.protocol[key] for row in rows}) > 1]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.protocol[key] for key in keys), []).append(row)
    found = {}
    for facts, members in groups.items():
        clashes = _find_clashes(members)
        for row in members:
            clash = row.data_digest in clashes
            found[row.run] = DataGroup(digest=row.data_digest) if clash else DataGroup(facts)
    return found


def _find_clashes(rows: Sequence[Row]) -> set[str]:
    """Digests of images where one domain has several."""
    by_domain: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        by_domain.setdefault((row.domain, *row.domains), set()).add(row.data_digest)
    return {digest for digests in by_domain.values() if len(digests) > 1 for digest in digests}


class LabelOrigin(enum.Enum):
    """How the label of a series came about."""

    GIVEN = enum.auto()  # its plan, or the name of its method
    STEP = enum.auto()  # an ablation named the step, which changes nothing: it is the method itself
    SEVERAL = enum.auto()  # its rows come from several plans, which call it differently


def find_label_origin(rows: Sequence[Row]) -> LabelOrigin:
    """How the label of these rows of one series came about."""
    if len({row.label for row in rows}) > 1:
        return LabelOrigin.SEVERAL
    row = rows[0]
    label = row.label.removesuffix(row.watch_words)
    step = not find_changes(row.spec) and (is_printed_name(label, row.spec) or _is_values(row, label))
    return LabelOrigin.STEP if step else LabelOrigin.GIVEN


def _is_values(row: Row, label: str) -> bool:
    """Whether a label only gives the values of a sweep's arguments, such as ``gap, 5``."""
    method = find_known(row.method)
    values = expand_spec(row.spec) if method and method.card.swept else {}
    sweeps = method.card.swept.values() if method else ()
    return any(sorted(label.split(", ")) == sorted(str(values[key]) for key in keys) for keys in sweeps)


def _find_label(rows: Sequence[Row]) -> str:
    """What tables call a series: the label its plan gave it, else the method's with its changed arguments."""
    if find_label_origin(rows) is LabelOrigin.GIVEN:
        return rows[0].label
    label, changes = label_of(rows[0]), find_changes(rows[0].spec)
    label += f" ({', '.join(f'{key}={value}' for key, value in changes.items())})" if changes else ""
    return label + rows[0].watch_words


def sort_domains(domains: Iterable[str]) -> list[str]:
    """Every domain once: the benchmark's in its order, then others as they came."""
    found = dict.fromkeys(domains)
    known = [domain for domain in CORRUPTIONS if domain in found]
    return known + [domain for domain in found if domain not in known]


def order_domains(series: Sequence[Series]) -> list[str]:
    """The domains of the series, in the benchmark's order."""
    return sort_domains(domain for one in series for domain in one.domains)


def find_common(series: Sequence[Series]) -> list[str]:
    """The domains that all series have: means over others are not comparable."""
    return [domain for domain in order_domains(series) if all(domain in one.domains for one in series)]


def share_seeds(series: Sequence[Series], domains: Sequence[str] | None = None) -> Noted[list[Series]]:
    """The series with the seeds they all have, and a note about others: means over other seeds are not comparable.

    A seed counts for a series that has it on all of its domains (or all of the given ones). Another seed is another
    order and, in short streams, other images.
    """
    whole = [_find_whole_seeds(one, one.domains if domains is None else domains) for one in series]
    common = set.intersection(*whole) if whole else set()
    if not common:
        note = "No seed is complete in all lines; the lines are not strictly comparable."
        return Noted(list(series), (note,) if whole else ())
    dropped = sorted({seed for one in series for seed in one.seeds} - common)
    kept = [replace(one, rows=tuple(row for row in one.rows if row.seed in common)) for one in series]
    seeds = f"{'seed' if len(dropped) == 1 else 'seeds'} {', '.join(map(str, dropped))}"
    note = f"Left out because some lines have no complete results for it: {seeds}."
    return Noted(kept, (note,) if dropped else ())


def _find_whole_seeds(one: Series, domains: Sequence[str]) -> set[int]:
    return {seed for seed in one.seeds if all(one.find(domain, seed) is not None for domain in domains)}
