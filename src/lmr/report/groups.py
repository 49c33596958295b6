"""Groups of runs: one method under one protocol, over domains and seeds; and which of them a table shows.

Runs that differ in anything that matters are never averaged: only domain and seed differ inside a group.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import pandas as pd

from lmr.bench.running.row import METRICS, Row
from lmr.core.registry import shorten_address
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.dataset import CLEAN
from lmr.report.protocol import (
    PRESETS,
    SINGLE_PROMPT,
    find_differences,
    is_printed_name,
    name_backbone,
    name_prompts,
)
from lmr.report.published import PublishedRow, PublishedTable, find_published
from lmr.report.table import Cell, Column, Line, Table
from lmr.report.traits import (
    LineKind,
    StreamKind,
    expand_spec,
    find_card,
    find_changes,
    find_sweep,
    find_usual_batch,
    is_variant,
    kind_of,
    label_of,
    place_of,
    read_spec,
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
OURS = ", ours"  # at the end of the label of a method that this project has invented
EMISSION, WEIGHTS, DTYPE = "emit", "weights", "dtype"


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
        self, kind: str, title: str, columns: Iterable[Column], lines: Iterable[Line], detail: str = "", **more: Any
    ) -> Table:
        """Return a table about this setting; ``more`` are its corner, published table and notes."""
        parts = [kind, detail, self.dataset, self.backbone, "" if "{" in self.prompts else self.prompts]
        parts += [f"s{self.severity}", "" if self.stream is StreamKind.DOMAIN else self.stream.value]
        parts += ["" if self.order == SHUFFLE else self.order]
        name = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(filter(None, parts))).strip("-").lower()  # safe as a file name
        return Table(name, f"{title}: {self.describe()}", tuple(columns), tuple(lines), **more)


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
    def is_main(self) -> bool:
        """True unless parts are switched off or it is a step of a sweep."""
        return self.kind not in (LineKind.PART, LineKind.STEP)

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
    def seen(self) -> tuple[Any, ...]:
        """The images and the order of domains, where others of its setting saw different ones."""
        return self.ground[2], self.ground[4]

    @property
    def length(self) -> int:
        """The images of each of its streams; 0 for whole natural domains."""
        return int(self.frame["length"].iloc[0])

    @property
    def usual_batch(self) -> int | None:
        """The batch size that the method's values for the dataset were chosen for."""
        return find_usual_batch(self.first, PRESETS.get(self.setting.dataset, "default"))

    @cached_property
    def domains(self) -> list[str]:
        """The domains it has numbers for, in the order of the rows."""
        return list(dict.fromkeys(self.frame["domain"]))

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds of the order."""
        return sorted(set(self.frame["seed"]))

    def find(self, domain: str, seed: int | None = None) -> Row | None:
        """Return the last row about a domain."""
        about = self.frame["domain"] == domain
        found = self.frame["row"][about if seed is None else about & (self.frame["seed"] == seed)]
        return cast("Row", found.iloc[-1]) if len(found) else None

    def enter(self, domains: Collection[str], metric: str = "accuracy") -> pd.DataFrame:
        """Return its numbers on some domains as entries for ``pivot``; none unless it has all of them."""
        entries = self.frame[["seed", "run"]].assign(stream=self.frame["domain"], value=self.frame[metric])
        whole = self.find_complete_seeds(domains) if set(domains) <= set(self.domains) else set()
        return entries[entries["stream"].isin(domains) & entries["seed"].isin(whole)]

    def find_complete_seeds(self, domains: Collection[str] | None = None) -> set[int]:
        """Return the seeds with runs on all of the domains; default: on all of its own."""
        wanted = set(self.domains if domains is None else domains)
        found = self.frame[self.frame["domain"].isin(wanted)].groupby("seed")["domain"].nunique()
        return set(found[found == len(wanted)].index)

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

    def make_line(self, cells: Sequence[Cell], differs: Sequence[str] = (), label: str = "") -> Line:
        """Return a line of its own, or one that it stands for."""
        return Line(label or self.label, tuple(cells), tuple(differs), self.kind, self.first.spec, bool(self.watch))


Settings = dict[Setting, list[RunGroup]]


def split(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return items in lists by their key, in the order they come."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def name_seeds(seeds: Iterable[int]) -> str:
    """Return seeds for people, such as "seed 1" or "seeds 1, 2"."""
    names = [str(seed) for seed in sorted(set(seeds))]
    return f"{'seed' if len(names) == 1 else 'seeds'} {', '.join(names)}"


def tabulate(rows: Iterable[Row]) -> pd.DataFrame:
    """Return a DataFrame with a line per run and domain: setting, protocol, seed and metrics, shares in %.

    A run through several domains has a line for each, with the accuracy on it; its other metrics are of the stream.
    """
    lines = []
    for row in rows:
        several = stream_of(row).several
        setting = Setting(
            shorten_address(row.dataset),
            name_backbone(str(row.backbone.get("name", "?"))),
            name_prompts(str(row.prompts.get("name", ""))),
            row.severity if row.domain != CLEAN else 0,
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
    settings: Settings = {}
    for setting, part in tabulate(rows).groupby("setting", sort=False) if rows else ():
        once = part.drop_duplicates("run")["row"].tolist()
        part = part.assign(data=part["run"].map(_name_data(once)), length=part["run"].map(_find_lengths(once)))
        own = cast("Setting", setting)
        settings[own] = [
            RunGroup(_find_label(rows) + (OURS if is_variant(rows[0]) else ""), own, frame)
            for _, frame in part.groupby(KEYS, sort=False)
            if (rows := frame["row"].tolist())
        ]
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


def order_domains(groups: Sequence[RunGroup]) -> list[str]:
    """Return the domains of the groups: the benchmark's in its order, then others as they came."""
    found = dict.fromkeys(domain for one in groups for domain in one.domains)
    known = [domain for domain in CORRUPTIONS if domain in found]
    return known + [domain for domain in found if domain not in known]


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
    common = set.intersection(*(one.find_complete_seeds(domains) for one in groups))
    if not common:
        return list(groups), ["No seed is complete in all lines."]
    dropped = {seed for one in groups for seed in one.seeds} - common
    kept = [replace(one, frame=one.frame[one.frame["seed"].isin(common)]) if dropped else one for one in groups]
    return kept, [f"Not complete in all lines, left out: {name_seeds(dropped)}."] if dropped else []


def sort_groups(groups: Iterable[RunGroup]) -> list[RunGroup]:
    """Return groups in the order of tables: baseline, methods without training, then by year, ours last."""
    return sorted(groups, key=lambda one: (place_of(one.first), one.label))


def choose_main(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the lines of a main table: no parts switched off, no sweeps, one batch size per configuration.

    That is the batch size with most domains, then the method's own, then the largest.
    """

    def weigh(one: RunGroup) -> tuple[int, bool, int]:
        return len(one.domains), one.first.batch_size == one.usual_batch, one.first.batch_size

    alike = split((one for one in groups if one.is_main), _identify).values()
    return tell_apart(sort_groups(max(members, key=weigh) for members in alike))


def choose_together(groups: Sequence[RunGroup], main: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the configurations of the main table in one batch size, the largest that all were run in.

    Nothing if the main table has one batch size itself, or if there is none that all have on the same data.
    """
    if len({one.first.batch_size for one in main}) < 2:
        return []
    alike = split((one for one in groups if one.is_main), _identify)
    whole = [
        {g.first.batch_size: g for g in alike[_identify(one)] if set(one.domains) <= set(g.domains)} for one in main
    ]
    sizes = set.intersection(*(set(own) for own in whole))
    return tell_apart(sort_groups([own[max(sizes)] for own in whole])) if sizes else []


def _identify(one: RunGroup) -> tuple[Any, ...]:
    """Return everything that tells groups apart but the batch size."""
    return (*one.configuration, one.first.emit, one.length, *one.ground)


def add_base(parts: Sequence[RunGroup], groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return variations of a method between the baseline and the unchanged method, under the same protocol."""
    frozen = (one for one in groups if one.kind is LineKind.BASELINE)
    alike = split(frozen, lambda one: (one.first.images, *one.ground)).items()
    baselines = {key: max(members, key=lambda one: len(one.domains)) for key, members in alike}
    keys = dict.fromkeys((one.first.images, *one.ground) for one in parts)
    methods = {(one.first.method, one.first.images, one.first.batch_size, *one.ground) for one in parts}
    whole = [
        one
        for one in groups
        if not one.changes and (one.first.method, one.first.images, one.first.batch_size, *one.ground) in methods
    ]
    table = find_published("ablation-components")

    def place(one: RunGroup) -> int:
        row = table.find(one.first.spec)
        return table.rows.index(row) if row else len(table.rows)

    return tell_apart([*(baselines[key] for key in keys if key in baselines), *sorted(parts, key=place), *whole])


def name_stream(domains: Sequence[str]) -> str:
    """Return the order of domains for people; a long one is its ends and a hash."""
    text = " → ".join(domains)
    if len(domains) < 5:
        return text
    return f"{domains[0]} → … → {domains[-1]} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _find_aspects(groups: Sequence[RunGroup]) -> pd.DataFrame:
    """Return phrases for what groups of one setting differ in: a line per group, a column per aspect.

    Weights of another dtype have another digest: that alone is no difference.
    """
    frame = pd.DataFrame(
        {
            "batch size": f"batch {one.first.batch_size}",
            "images": f"{one.length or 'all'} images",
            EMISSION: one.first.emit,
            WEIGHTS: f"weights {one.first.backbone.get('weights', '?')[:8]}",
            DTYPE: one.first.backbone.get("dtype", "?"),
            "data": one.ground[2],
            "prompts": f"prompts {str(one.first.prompts.get('digest'))[:8]}",
            "order of domains": name_stream(one.ground[4]),
        }
        for one in groups
    )
    different = [aspect for aspect in frame if frame[aspect].nunique() > 1]
    if WEIGHTS in different and len(frame[[DTYPE, WEIGHTS]].drop_duplicates()) == frame[DTYPE].nunique():
        different.remove(WEIGHTS)
    return frame[different]


def tell_apart(groups: Iterable[RunGroup], aspects: Collection[str] | None = None) -> list[RunGroup]:
    """Return the groups of one table; where one label names several, what differs is added to it.

    Of the protocol only the given ``aspects`` are added, by default all.
    """
    every, named = list(groups), []
    alike = Counter(one.label for one in every)
    for one in every:
        same = [one, *(other for other in every if other.label == one.label and other is not one)]
        own = _find_aspects(same).iloc[0].to_dict() if alike[one.label] > 1 else {}
        phrases = {str(key): text for key, text in own.items() if text and (aspects is None or key in aspects)}
        specs = [read_spec(other.first.spec)[1] for other in same]
        added = [f"{key}={v}" for key, v in specs[0].items() if any(spec.get(key) != v for spec in specs)]
        label = f"{one.label} ({', '.join([*added, *phrases.values()])})" if added or phrases else one.label
        named.append(replace(one, label=label, named=one.named | frozenset(phrases)))
    return named


def note_differences(groups: Sequence[RunGroup]) -> list[str]:
    """Return the aspects in which the lines of a table differ, each with its values, unless labels name them."""
    notes = []
    labels = pd.Series([one.label for one in groups], dtype=object)
    for aspect, phrases in _find_aspects(groups).items() if groups else ():
        if aspect != EMISSION and not all(aspect in one.named for one in groups):  # emission is a trait of the method
            named = labels.groupby(phrases, sort=False).agg(", ".join).items()
            notes.append(f"{aspect}: {'; '.join(f'{phrase or None} ({names})' for phrase, names in named)}")
    return notes
