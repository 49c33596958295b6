"""Groups of runs: one method under one protocol, over domains and seeds; and which of them a table shows.

Runs that differ in anything that matters are never averaged: only domain and seed differ inside a group. What is not of
the method is the setting, and runs in different settings are in different tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from lmr.bench.running.row import METRICS, Row
from lmr.core.registry import shorten_address
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.dataset import CLEAN
from lmr.report.protocol import PRESETS, SINGLE_PROMPT, name_backbone, name_prompts
from lmr.report.published import COMPONENTS, find_published
from lmr.report.traits import (
    LineKind,
    StreamKind,
    find_card,
    find_changes,
    find_sweep,
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
MODEL = ("backbone", "weights", "dtype", "prompts")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that the lines of one table share."""

    backbone: str
    weights: str
    dtype: str
    prompts: str
    prompts_digest: str = ""
    dataset: str = ""
    origin: str = ""  # of the images
    version: int = 0  # of the images, where one domain has several of one origin
    severity: int = 0
    images: int = 0  # of each stream; 0 for whole natural domains, which have different numbers
    order: str = SHUFFLE
    stream: StreamKind = StreamKind.DOMAIN
    domains: tuple[str, ...] = ()  # in their order, of a run through several

    def keep(self, *names: str) -> Setting:
        """Return what several settings share: the model and some fields."""
        return Setting(**{name: getattr(self, name) for name in (*MODEL, *names)})

    @property
    def family(self) -> Setting:
        """What the severities of one figure share."""
        return self.keep("dataset", "order", "stream")

    @property
    def skewed(self) -> bool:
        """True if classes are skewed, or if the corruption begins within the stream: these are columns of one table."""
        words = self.order.split()
        return words[:1] == ["skew"] or "onset" in words

    def describe(self) -> str:
        """Return a phrase for the title of a table; it names what is not as in the paper's main tables."""
        parts = [*([self.dataset] if self.dataset else []), self.backbone]
        parts += [self.dtype] if self.dtype not in ("", "float32") else []
        parts += [f"severity {self.severity}"] if self.severity else []
        parts += [f"prompts {self.prompts}"] if self.prompts != SINGLE_PROMPT else []
        parts += [self.stream.value] if self.stream.several else []
        parts += [name_stream(self.domains)] if self.domains else []
        parts += [f"order {self.order}"] if self.order != SHUFFLE else []
        return ", ".join([*parts, *([f"{self.images} images"] if self.images else [])])


class Key(NamedTuple):
    """What the runs of a group share besides their setting."""

    spec: str
    watch: str  # the spec of the watch; empty for a plain run
    batch_size: int
    emit: str


@dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one method in one setting; only domain and seed differ."""

    label: str
    setting: Setting
    key: Key
    rows: Sequence[Row]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A line for each run and domain: seed and metrics, shares in %.

        A run through several domains has a line for each, with the accuracy on it; its other metrics are of the stream.
        """
        lines = []
        for row in self.rows:
            shared = {"run": row.run, "row": row, "seed": row.seed} | {key: row.metrics.get(key) for key in METRICS}
            several = row.domains if self.setting.stream.several else {row.domain: row.metrics["accuracy"]}
            lines += [shared | {"domain": domain, "accuracy": accuracy} for domain, accuracy in several.items()]
        frame = pd.DataFrame(lines)
        scale = pd.Series([100 if key in PERCENT else 1 for key in METRICS], list(METRICS))
        return frame.assign(**frame[list(METRICS)].astype(float).mul(scale))

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
        return find_changes(self.key.spec)

    @property
    def is_main(self) -> bool:
        """True unless parts are switched off or it is a step of a sweep."""
        return self.kind not in (LineKind.PART, LineKind.STEP)

    @property
    def usual_batch(self) -> int | None:
        """The batch size that the method's values for the dataset were chosen for."""
        presets = find_card(self.first.method).presets
        found = presets.get(PRESETS.get(self.setting.dataset, "default")) or presets.get("default")
        return found.batch_size if found else None

    @cached_property
    def domains(self) -> list[str]:
        """The domains it has numbers for, in the order of the rows."""
        return list(dict.fromkeys(self.frame["domain"]))

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds of the order."""
        return sorted({row.seed for row in self.rows})

    def find(self, domain: str) -> Row | None:
        """Return the last row about a domain."""
        found = [row for row in self.rows if domain in (row.domain, *row.domains)]
        return found[-1] if found else None

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


def gather(rows: Iterable[Row]) -> Settings:
    """Return rows as groups, by setting: those with most images first."""
    rows = list(rows)
    whole = _count_whole(rows)
    versions: dict[tuple[Setting, str], dict[str, int]] = {}
    found: dict[Setting, dict[Key, list[Row]]] = {}
    for row in rows:
        setting = _find_setting(row)
        if row.images == whole.get(_name_natural(row)):
            setting = replace(setting, images=0)
        # Digests of two domains say nothing about each other: each may cover only the files of its domain.
        digests = versions.setdefault((setting, row.domain), {})
        setting = replace(setting, version=digests.setdefault(row.data_digest, len(digests)))
        key = Key(row.spec, row.watch.get("spec", ""), row.batch_size, row.emit)
        found.setdefault(setting, {}).setdefault(key, []).append(row)
    return {
        setting: [RunGroup(_find_label(own), setting, key, own) for key, own in found[setting].items()]
        for setting in sorted(found, key=lambda setting: -(setting.images or float("inf")))
    }


def _find_setting(row: Row) -> Setting:
    stream = stream_of(row)
    return Setting(
        backbone=name_backbone(str(row.backbone.get("name", "?"))),
        weights=row.backbone.get("weights", ""),
        dtype=row.backbone.get("dtype", ""),
        prompts=name_prompts(str(row.prompts.get("name", ""))),
        prompts_digest=row.prompts.get("digest", ""),
        dataset=shorten_address(row.dataset),
        origin="; ".join(row.protocol.get(key, "") for key in ("images", "corruptions")),
        severity=row.severity if row.domain != CLEAN else 0,
        images=row.images,
        order=row.order_text,
        stream=stream,
        domains=tuple(row.domains) if stream.several else (),
    )


def _name_natural(row: Row) -> tuple[str, ...]:
    return row.dataset, row.domain, row.order_text


def _count_whole(rows: Sequence[Row]) -> dict[tuple[str, ...], int]:
    """Return the images of each natural domain, the most of any run on it."""
    natural = split((row for row in rows if is_natural(row) and not stream_of(row).several), _name_natural)
    return {domain: max(row.images for row in own) for domain, own in natural.items()}


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


def _find_label(rows: Sequence[Row]) -> str:
    """Return the label that a plan gave; of several the method's own if it is one of them, else the first."""
    given = [row.label for row in rows]
    own = label_of(rows[0]) + rows[0].watch_text
    return (own if own in given else given[0]) + (OURS if is_variant(rows[0]) else "")


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
    if not dropped:
        return list(groups), []
    kept = [replace(one, rows=[row for row in one.rows if row.seed in common]) for one in groups]
    return kept, [f"Not complete in all lines, left out: {name_seeds(dropped)}."]


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
    """Return variations of a method in one setting between the baseline and the unchanged method."""
    frozen = [one for one in groups if one.kind is LineKind.BASELINE]
    baseline = [max(frozen, key=lambda one: len(one.domains))] if frozen else []
    methods = {(one.first.method, one.key.batch_size) for one in parts}
    whole = [one for one in groups if not one.changes and (one.first.method, one.key.batch_size) in methods]
    table = find_published(COMPONENTS)

    def place(one: RunGroup) -> int:
        row = table.find(one.key.spec)
        return table.rows.index(row) if row else len(table.rows)

    return tell_apart([*baseline, *sorted(parts, key=place), *whole])


def name_stream(domains: Sequence[str]) -> str:
    """Return the order of domains for people; a long one is its ends and a hash."""
    text = " → ".join(domains)
    if len(domains) < 5:
        return text
    return f"{domains[0]} → … → {domains[-1]} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def tell_apart(groups: Iterable[RunGroup]) -> list[RunGroup]:
    """Return the groups of one table; where several have one label, the values in which they differ are added to it."""
    every = list(groups)
    values = [
        read_spec(one.key.spec)[1] | {"batch": one.key.batch_size, "emit": one.key.emit, "watch": one.key.watch}
        for one in every
    ]
    named = []
    for one, own in zip(every, values, strict=True):
        alike = [theirs for other, theirs in zip(every, values, strict=True) if other.label == one.label]
        added = [f"{key}={v}" for key, v in own.items() if any(theirs.get(key) != v for theirs in alike)]
        named.append(replace(one, label=f"{one.label} ({', '.join(added)})") if added else one)
    return named


def note_batches(groups: Sequence[RunGroup]) -> list[str]:
    """Return a note about the batch sizes of lines, if they have several."""
    sizes = split(groups, lambda one: one.key.batch_size)
    texts = [f"{size} ({', '.join(one.label for one in own)})" for size, own in sorted(sizes.items())]
    return [f"Batch sizes: {'; '.join(texts)}."] if len(sizes) > 1 else []
