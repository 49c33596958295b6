"""Groups of runs: one method under one protocol, over domains and seeds; and which of them a table shows.

Runs that differ in anything that matters are never averaged: only domain and seed differ inside a group.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import pandas as pd

from lmr.bench.running.row import METRICS, Row
from lmr.core.registry import shorten_address
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.dataset import CLEAN
from lmr.report.protocol import PRESETS, SINGLE_PROMPT, name_backbone, name_prompts
from lmr.report.published import COMPONENTS, find_published, read_tables
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
PERCENT = {
    "accuracy", "macro_recall", "accuracy_second_half", "macro_recall_second_half", "clean_accuracy", "ece",
    "top_share", "late_top_share", "gate_share", "classes_predicted",
}  # fmt: skip
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
        """True if classes are skewed, or if the corruption begins within the stream: these are columns of one table."""
        words = self.order.split()
        return words[:1] == ["skew"] or "onset" in words

    def describe(self) -> str:
        """Return a phrase for the title of a table; it names what is not as in the paper's main tables."""
        parts = [*([self.dataset] if self.dataset else []), self.backbone]
        parts += [f"severity {self.severity}"] if self.severity else []
        parts += [f"prompts {self.prompts}"] if self.prompts != SINGLE_PROMPT else []
        parts += [self.stream.value] if self.stream.several else []
        parts += [f"order {self.order}"] if self.order != SHUFFLE else []
        return ", ".join(parts)


class Key(NamedTuple):
    """What the runs of a group share besides their setting."""

    spec: str
    watch: str  # the spec of the watch; empty for a plain run
    batch_size: int
    length: int  # images of each stream; 0 for whole natural domains
    emit: str
    weights: str
    dtype: str
    data: str  # tells images apart where one domain has several
    prompts: str
    stream: tuple[str, ...]  # the order of domains of a run through several

    @property
    def ground(self) -> Key:
        """What groups share whose methods can be compared: all but method, watch, batch size and emission."""
        return self._replace(spec="", watch="", batch_size=0, emit="")


@dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one method in one setting under one protocol; only domain and seed differ."""

    label: str
    setting: Setting
    key: Key
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
        """Return its numbers on some domains as entries for ``pivot``, of the seeds that have all of these domains."""
        entries = self.frame[["seed", "run", "row"]].assign(stream=self.frame["domain"], value=self.frame[metric])
        return complete(entries[entries["stream"].isin(domains)], len(set(domains)))


Settings = dict[Setting, list[RunGroup]]


def complete(entries: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the entries of the seeds that have all of so many streams: means over fewer are not comparable."""
    return entries[entries.groupby("seed")["stream"].transform("nunique") == count]


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
        groups = part.groupby(list(Key._fields), sort=False)
        settings[own] = [RunGroup(_find_label(g["row"].tolist()), own, Key(*key), g) for key, g in cast("Any", groups)]
    return settings


def is_natural(row: Row) -> bool:
    """Return True if the domains of a run are no corruptions of the same images."""
    return not row.severity and row.domain != CLEAN


def identify_stream(row: Row, timing: bool = True) -> str:
    """Return what two runs share that saw the same images in the same order with the same model.

    Without ``timing``: the frozen model is the same at any.
    """
    order = [value for key, value in row.order.items() if timing or key != "timing"]
    model = row.backbone.get("weights"), row.backbone.get("dtype"), row.prompts.get("digest")
    stream = row.dataset, row.data_digest, row.domain, row.severity, row.seed, row.images, *order, *row.domains
    return repr((*model, *stream))


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
    """Return the label of a group: the one its plan gave it, or its method's own with the changed arguments.

    The latter where plans disagree, and where the label is that of a step of an ablation that changes nothing.
    """
    row, changes, ours = rows[0], find_changes(rows[0].spec), OURS if is_variant(rows[0]) else ""
    given = row.label.removesuffix(row.watch_text)
    if len({other.label for other in rows}) == 1 and (
        changes or not (_names_values(row, given) or _is_printed(row, given))
    ):
        return row.label + ours
    arguments = f" ({', '.join(f'{key}={value}' for key, value in changes.items())})" if changes else ""
    return label_of(row) + arguments + row.watch_text + ours


def _names_values(row: Row, label: str) -> bool:
    """Return True if a label only gives the values of a sweep's arguments, such as ``gap, 5``."""
    sweeps = find_card(row.method).swept
    values = expand_spec(row.spec) if sweeps else {}
    return any(sorted(label.split(", ")) == sorted(str(values[key]) for key in keys) for keys in sweeps.values())


def _is_printed(row: Row, label: str) -> bool:
    """Return True if a published table prints this label for the method with these parts."""
    return any((found := table.find(row.spec)) and found.printed == label for table in read_tables().values())


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
    common = set.intersection(*(set(one.enter(domains or one.domains)["seed"]) for one in groups))
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

    alike = split((one for one in groups if one.is_main), lambda one: one.key._replace(batch_size=0)).values()
    return tell_apart(sort_groups(max(members, key=weigh) for members in alike))


def add_base(parts: Sequence[RunGroup], groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return variations of a method between the baseline and the unchanged method, under the same protocol."""
    frozen = split((one for one in groups if one.kind is LineKind.BASELINE), lambda one: one.key.ground)
    grounds = dict.fromkeys(one.key.ground for one in parts)
    baselines = (max(frozen[key], key=lambda one: len(one.domains)) for key in grounds if key in frozen)
    methods = {(one.first.method, one.key.batch_size, one.key.ground) for one in parts}
    plain = (one for one in groups if not one.changes)
    whole = (one for one in plain if (one.first.method, one.key.batch_size, one.key.ground) in methods)
    table = find_published(COMPONENTS)

    def place(one: RunGroup) -> int:
        row = table.find(one.first.spec)
        return table.rows.index(row) if row else len(table.rows)

    return tell_apart([*baselines, *sorted(parts, key=place), *whole])


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
            "batch size": f"batch {key.batch_size}",
            "images": f"{key.length or 'all'} images",
            EMISSION: key.emit,
            WEIGHTS: f"weights {key.weights[:8] or '?'}",
            DTYPE: key.dtype or "?",
            "data": key.data,
            "prompts": f"prompts {key.prompts[:8]}",
            "order of domains": name_stream(key.stream),
        }
        for key in (one.key for one in groups)
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
