"""Rows as one DataFrame, and groups of runs in it: one method under one protocol, over domains and seeds.

Runs that differ in anything that matters are never averaged: only domain and seed differ inside a group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lmr.bench.running.row import METRICS, Row
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.dataset import CLEAN
from lmr.report.protocol import SINGLE_PROMPT, find_differences, is_printed_name, name_backbone, name_prompts
from lmr.report.published import PublishedRow, PublishedTable
from lmr.report.table import Cell, Column, Line, Table, TableKind, make_cell
from lmr.report.traits import (
    LineKind,
    StreamKind,
    expand_spec,
    find_card,
    find_changes,
    find_sweep,
    kind_of,
    label_of,
    stream_of,
)

T = TypeVar("T")
SHUFFLE = "shuffle"  # the order of the paper's streams
STREAM_PHRASES = {
    StreamKind.CONTINUAL: "one stream through all domains",
    StreamKind.MIXED: "all domains mixed in one stream",
}
PERCENT = {
    "accuracy", "macro_recall", "accuracy_second_half", "macro_recall_second_half", "clean_accuracy", "ece",
    "top_share", "late_top_share", "gate_share", "classes_predicted",
}  # fmt: skip
GROUND = ["weights", "dtype", "data", "prompts", "stream"]  # what comparable runs share besides the setting
KEYS = ["spec", "watch", "batch_size", "length", "emit", *GROUND]  # what the runs of a group share


@dataclass(frozen=True)
class Setting:
    """The setting that the lines of one table share."""

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
    def skewed(self) -> bool:
        """True if classes are skewed, or if the corruption begins within the stream: these have tables of their own."""
        words = self.order.split()
        return words[:1] == ["skew"] or "onset" in words

    def describe(self, dataset: bool = True) -> str:
        """Return a phrase for the title of a table; it names what is not as in the paper's main tables."""
        parts = [*([self.dataset] if dataset and self.dataset else []), self.backbone]
        parts += [f"severity {self.severity}"] if self.severity else []
        parts += [f"prompts {self.prompts}"] if self.prompts != SINGLE_PROMPT else []
        parts += [STREAM_PHRASES[self.stream]] if self.stream in STREAM_PHRASES else []
        parts += [f"order {self.order}"] if self.order != SHUFFLE else []
        return ", ".join(parts)

    def make_table(
        self,
        kind: TableKind,
        title: str,
        columns: Iterable[Column],
        lines: Iterable[Line],
        detail: str = "",
        **more: Any,
    ) -> Table:
        """Return a table about this setting; ``more`` are its corner, published table and notes.

        The name of its files is in characters that every file system accepts.
        """
        parts = [kind.value, detail, self.dataset, self.backbone]
        parts += ["" if "{" in self.prompts else self.prompts, f"s{self.severity}"]
        parts += ["" if self.stream is StreamKind.DOMAIN else self.stream.value]
        parts += ["" if self.order == SHUFFLE else self.order]
        name = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(filter(None, parts))).strip("-").lower()
        return Table(kind, name, f"{title}: {self.describe()}", tuple(columns), tuple(lines), **more)


@dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one method in one setting under one protocol; only domain and seed differ."""

    label: str
    setting: Setting
    frame: pd.DataFrame  # as ``tabulate`` returns it: a line per run and domain
    named: frozenset[str] = frozenset()  # the aspects of the protocol that the label names

    @cached_property
    def rows(self) -> list[Row]:
        """Its runs."""
        return self.frame.drop_duplicates("run")["row"].tolist()

    @property
    def first(self) -> Row:
        """Any row: they share the protocol."""
        return self.rows[0]

    @cached_property
    def kind(self) -> LineKind:
        """The role of its line in a table."""
        return kind_of(self.first)

    @cached_property
    def sweep(self) -> str | None:
        """The sweep of its method that it is a step of."""
        return find_sweep(self.first)

    @cached_property
    def changes(self) -> dict[str, Any]:
        """The arguments in which the spec differs from the nearest preset of its method."""
        return find_changes(self.first.spec)

    @property
    def watch(self) -> str | None:
        """The spec of the watch around the method; None for a plain run."""
        return self.first.watch.get("spec")

    @property
    def configuration(self) -> tuple[str, str | None]:
        """The method with its arguments and its watch, whatever it was run on."""
        return self.first.spec, self.watch

    @cached_property
    def ground(self) -> tuple[Any, ...]:
        """The facts that two groups share if they differ only in spec, batch size, images and emission."""
        return tuple(self.frame[key].iloc[0] for key in GROUND)

    @property
    def length(self) -> int:
        """The images of each of its streams; 0 for whole natural domains."""
        return int(self.frame["length"].iloc[0])

    @property
    def data(self) -> str:
        """The images it saw, where others of its setting saw different ones; empty where all saw the same."""
        return cast("str", self.ground[2])

    @property
    def stream(self) -> tuple[str, ...]:
        """The domains of a stream through several, in their order: another order is another stream."""
        return cast("tuple[str, ...]", self.ground[-1])

    @cached_property
    def domains(self) -> list[str]:
        """The domains it has numbers for, in the order of the rows."""
        return list(dict.fromkeys(self.frame["domain"]))

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds of the order."""
        return sorted(set(self.frame["seed"]))

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], NDArray[np.float64]]:
        """Its numbers by seed, for each metric and domain; of several runs the last that has a number."""
        frame = self.frame.groupby(["seed", "domain"])[list(METRICS)].last().unstack("domain")
        keys = cast("list[tuple[str, str]]", list(frame.columns))
        return dict(zip(keys, frame.to_numpy(float).T, strict=True))  # pandas would read each cell slowly

    @cached_property
    def _runs(self) -> list[tuple[str, str]]:
        """The domain and the id of each run."""
        return list(zip(self.frame["domain"], self.frame["run"], strict=True))

    def keep_seeds(self, seeds: Iterable[int]) -> RunGroup:
        """Return the group with some of its seeds."""
        return replace(self, frame=self.frame[self.frame["seed"].isin(list(seeds))])

    def find(self, domain: str, seed: int | None = None) -> Row | None:
        """Return the last row about a domain."""
        about = self.frame["domain"] == domain
        found = self.frame["row"][about if seed is None else about & (self.frame["seed"] == seed)]
        return cast("Row", found.iloc[-1]) if len(found) else None

    def average(self, domains: Sequence[str], metric: str = "accuracy") -> pd.Series[float]:
        """Return the mean over the domains by seed, for the seeds that have all of them; shares in %."""
        if not domains or not set(domains) <= set(self.domains):
            return pd.Series(dtype=float)
        means = np.mean([self._numbers[metric, domain] for domain in domains], axis=0)
        known = ~np.isnan(means)
        return pd.Series(means[known], index=np.array(self.seeds)[known])

    def cell(self, domains: Sequence[str], metric: str = "accuracy", published: float | None = None) -> Cell:
        """Return the mean of a metric over domains and seeds, with its spread over seeds and its runs."""
        runs = [run for domain, run in self._runs if domain in domains]
        return make_cell(self.average(domains, metric), runs, published)

    def find_published(self, table: PublishedTable | None) -> PublishedRow | None:
        """Return the published row of what was run; watched runs have none."""
        return table.find(self.first.spec) if table and self.watch is None else None

    def list_differences(
        self, table: PublishedTable | None, row: PublishedRow | None, column: str | None = None
    ) -> list[str]:
        """Return where the protocol of any run differs from that of a published row."""
        if table is None or row is None:
            return []
        return list(dict.fromkeys(text for own in self.rows for text in find_differences(own, table, row, column)))

    def make_line(
        self, cells: Sequence[Cell], differs: Sequence[str] = (), label: str = "", members: Sequence[RunGroup] = ()
    ) -> Line:
        """Return a line with the protocol and the command of the first run; of ``members`` all values are listed."""
        found: dict[str, dict[str, None]] = {"method": {self.first.spec: None}}
        for member in members or (self,):
            for row in member.rows:
                for key, value in _describe_protocol(row, member.seeds).items():
                    found.setdefault(key, {})[value] = None
        protocol = tuple((key, " | ".join(values)) for key, values in found.items())
        first, watched = self.first, self.watch is not None
        return Line(
            label or self.label, tuple(cells), tuple(differs), protocol, first.command, self.kind, first.spec, watched
        )


Settings = dict[Setting, list[RunGroup]]


def split(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return items in lists by their key, in the order they come."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _describe_protocol(row: Row, seeds: Sequence[int]) -> dict[str, str]:
    return {
        "backbone": ", ".join(f"{key} {value}" for key, value in row.backbone.items()),
        "dataset": row.dataset,
        **({"data": describe_data(row)} if row.protocol else {}),
        "severity": str(row.severity),
        "prompts": f"{row.prompts.get('name')} ({row.prompts.get('count')} prompts)",
        "batch size": str(row.batch_size),
        "images": str(row.images),
        "order": f"{row.order_text}, {name_seeds(seeds)}",
        "reset": row.reset,
        "answers": f"{row.emit} the batch's own update",
        **({"watch": row.watch["spec"]} if row.watch else {}),
    }


def name_seeds(seeds: Iterable[int]) -> str:
    """Return seeds for people, such as "seed 1" or "seeds 1, 2"."""
    names = [str(seed) for seed in sorted(set(seeds))]
    return f"{'seed' if len(names) == 1 else 'seeds'} {', '.join(names)}"


def describe_data(row: Row) -> str:
    """Return what a row says about its data: whether they are official or made."""
    return "; ".join(f"{key}: {value}" for key, value in row.protocol.items())


def tabulate(rows: Iterable[Row]) -> pd.DataFrame:
    """Return a DataFrame with a line per run and domain: setting, protocol, seed and metrics, shares in %.

    A run through several domains has a line for each, with the accuracy on it; its other metrics are of the stream.
    """
    lines = []
    for row in rows:
        several = stream_of(row).several
        setting = Setting(
            row.dataset,
            name_backbone(str(row.backbone.get("name", "?"))),
            name_prompts(str(row.prompts.get("name", ""))),
            row.severity if row.domain != "clean" else 0,
            row.order_text,
            stream_of(row),
        )
        shared: dict[str, Any] = {
            "setting": setting, "run": row.run, "row": row, "seed": row.seed, "spec": row.spec,
            "watch": row.watch.get("spec", ""), "batch_size": row.batch_size, "images": row.images, "emit": row.emit,
            "weights": row.backbone.get("weights", ""), "dtype": row.backbone.get("dtype", ""),
            "prompts": row.prompts.get("digest", ""), "stream": tuple(row.domains) if several else (),
        } | {key: row.metrics.get(key) for key in METRICS}  # fmt: skip
        for domain, accuracy in (row.domains if several else {row.domain: row.metrics["accuracy"]}).items():
            lines.append(shared | {"domain": domain, "accuracy": accuracy})
    frame = pd.DataFrame(lines)
    scale = pd.Series([100 if key in PERCENT else 1 for key in METRICS], list(METRICS))
    return frame.assign(**frame[list(METRICS)].astype(float).mul(scale))


def gather(rows: Iterable[Row]) -> Settings:
    """Return rows as groups, by setting."""
    rows = list(rows)
    if not rows:
        return {}
    settings: Settings = {}
    for setting, part in tabulate(rows).groupby("setting", sort=False):
        once = part.drop_duplicates("run")["row"].tolist()
        part = part.assign(data=part["run"].map(_name_data(once)), length=part["run"].map(_find_lengths(once)))
        groups = (frame for _, frame in part.groupby(KEYS, sort=False))
        own = cast("Setting", setting)
        settings[own] = [RunGroup(_find_label(frame["row"].tolist()), own, frame) for frame in groups]
    return settings


def is_natural(row: Row) -> bool:
    """Return True if the domains of a run are no corruptions of the same images."""
    return not row.severity and row.domain != CLEAN


def _find_lengths(rows: Sequence[Row]) -> dict[str, int]:
    """Return the images of each run, 0 for a whole natural domain: these have different numbers of images."""
    counts = split((row for row in rows if is_natural(row) and not stream_of(row).several), lambda row: row.domain)
    largest = {domain: max(row.images for row in members) for domain, members in counts.items()}
    return {row.run: 0 if row.images == largest.get(row.domain) else row.images for row in rows}


def _name_data(rows: Sequence[Row]) -> dict[str, str]:
    """Return a name for the images of each run; empty for all unless runs on one domain saw different ones.

    Digests of two domains say nothing about each other: each may cover only the files of its domain.
    """
    if not _find_clashes(rows):
        return {row.run: "" for row in rows}
    keys = [key for key in rows[0].protocol if all(key in row.protocol for row in rows)]
    keys = [key for key in keys if len({row.protocol[key] for row in rows}) > 1]
    found = {}
    for facts, members in split(rows, lambda row: "; ".join(row.protocol[key] for key in keys)).items():
        clashes = _find_clashes(members)
        for row in members:
            found[row.run] = f"data {row.data_digest[:8]}" if row.data_digest in clashes else facts
    return found


def _find_clashes(rows: Sequence[Row]) -> set[str]:
    """Return the digests of images where one domain has several."""
    by_domain = split(rows, lambda row: (row.domain, *row.domains)).values()
    digests = [{row.data_digest for row in members} for members in by_domain]
    return {digest for own in digests if len(own) > 1 for digest in own}


def _find_label(rows: Sequence[Row]) -> str:
    """Return the label of a group.

    That is the one its plan gave it, unless plans disagree, or an ablation named a step that changes nothing: then it
    is the method's own with the changed arguments.
    """
    row, changes = rows[0], find_changes(rows[0].spec)
    if len({other.label for other in rows}) == 1:
        given = row.label.removesuffix(row.watch_text)
        if changes or not (is_printed_name(given, row.spec) or _names_values(row, given)):
            return row.label
    arguments = f" ({', '.join(f'{key}={value}' for key, value in changes.items())})" if changes else ""
    return label_of(row) + arguments + row.watch_text


def _names_values(row: Row, label: str) -> bool:
    """Return True if a label only gives the values of a sweep's arguments, such as ``gap, 5``."""
    sweeps = find_card(row.method).swept
    values = expand_spec(row.spec) if sweeps else {}
    return any(sorted(label.split(", ")) == sorted(str(values[key]) for key in keys) for keys in sweeps.values())


def sort_domains(domains: Iterable[str]) -> list[str]:
    """Return every domain once: the benchmark's in its order, then others as they came."""
    found = dict.fromkeys(domains)
    known = [domain for domain in CORRUPTIONS if domain in found]
    return known + [domain for domain in found if domain not in known]


def order_domains(groups: Sequence[RunGroup]) -> list[str]:
    """Return the domains of the groups, in the benchmark's order."""
    return sort_domains(domain for one in groups for domain in one.domains)


def find_common(groups: Sequence[RunGroup]) -> list[str]:
    """Return the domains that all groups have: means over others are not comparable."""
    return [domain for domain in order_domains(groups) if all(domain in one.domains for one in groups)]


def share_seeds(groups: Sequence[RunGroup], domains: Sequence[str] | None = None) -> tuple[list[RunGroup], list[str]]:
    """Return the groups with the seeds they all have, and a note about others.

    A seed counts for a group that has it on all of its domains (or all of the given ones). Means over other seeds are
    not comparable: another seed is another order and, in short streams, other images.
    """
    if not groups:
        return [], []
    complete = (_find_complete_seeds(one, one.domains if domains is None else domains) for one in groups)
    common = set.intersection(*complete)
    if not common:
        return list(groups), ["No seed is complete in all lines; the lines are not strictly comparable."]
    dropped = {seed for one in groups for seed in one.seeds} - common
    if not dropped:
        return list(groups), []
    note = f"Left out because some lines have no complete results for it: {name_seeds(dropped)}."
    return [one.keep_seeds(common) for one in groups], [note]


def _find_complete_seeds(one: RunGroup, domains: Sequence[str]) -> set[int]:
    found = {pair for pair in zip(one.frame["seed"], one.frame["domain"], strict=True) if pair[1] in domains}
    known = Counter(seed for seed, _ in found)
    return {seed for seed in one.seeds if known[seed] == len(set(domains))}
