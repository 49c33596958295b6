"""Select and order the groups of runs of a table, and tell them apart by labels and notes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from lmr.report.groups import RunGroup, split
from lmr.report.protocol import PRESETS
from lmr.report.published import find_published
from lmr.report.traits import LineKind, find_usual_batch, place_of, read_spec

EMISSION, WEIGHTS, DTYPE = "emit", "weights", "dtype"


def sort_groups(groups: Iterable[RunGroup]) -> list[RunGroup]:
    """Return groups in the order of tables: baseline, methods without training, then by year, ours last."""
    return sorted(groups, key=lambda one: (place_of(one.first), one.label))


def choose_main(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the lines of the main table: no parts switched off, no sweeps, one batch size per configuration.

    Of several numbers of images the largest is shown, and any that another line has for its largest.
    """
    ordered = sorted(filter(is_main, groups), key=_weigh)
    alike = split(ordered, lambda one: (*one.configuration, one.first.emit, *one.ground)).values()
    counts = {members[-1].length for members in alike}
    by_images = [{one.length: one for one in members} for members in alike]
    chosen = [one for members in by_images for count, one in members.items() if count in counts]
    return tell_apart(sort_groups(chosen))


def choose_together(groups: Sequence[RunGroup], main: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the configurations of the main table in one batch size, the largest that all were run in.

    Nothing if the main table has one batch size itself, or if there is none that all have on the same data.
    """
    if len({one.first.batch_size for one in main}) < 2:
        return []
    alike = split(filter(is_main, groups), _identify)
    whole = [
        {g.first.batch_size: g for g in alike[_identify(one)] if set(one.domains) <= set(g.domains)} for one in main
    ]
    sizes = set.intersection(*(set(own) for own in whole))
    return tell_apart(sort_groups([own[max(sizes)] for own in whole])) if sizes else []


def _identify(one: RunGroup) -> tuple[Any, ...]:
    """Return everything that tells groups apart but the batch size."""
    return (*one.configuration, one.first.emit, one.first.images, *one.ground)


def is_main(one: RunGroup) -> bool:
    """Return True unless parts are switched off or it is a step of a sweep."""
    return one.kind not in (LineKind.PART, LineKind.STEP)


def _weigh(one: RunGroup) -> tuple[int, int, bool, int]:
    """Rank the groups of a configuration: most domains, most images, the method's own batch size, largest batch."""
    return len(one.domains), one.first.images, one.first.batch_size == get_usual_batch(one), one.first.batch_size


def get_usual_batch(one: RunGroup) -> int | None:
    """Return the batch size that the method's values for the dataset were chosen for."""
    return find_usual_batch(one.first, PRESETS.get(one.setting.dataset, "default"))


def group_parts(groups: Sequence[RunGroup]) -> list[list[RunGroup]]:
    """Return the groups with parts switched off, together for every method."""
    parts = (one for one in groups if one.kind is LineKind.PART)
    return list(split(parts, lambda one: one.first.method).values())


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


def _list_aspects(one: RunGroup) -> dict[str, str]:
    """Return a phrase for everything that groups of one setting and spec may differ in."""
    row = one.first
    return {
        "batch size": f"batch {row.batch_size}",
        "images": f"{one.length or 'all'} images",
        EMISSION: row.emit,
        WEIGHTS: f"weights {row.backbone.get('weights', '?')[:8]}",
        DTYPE: row.backbone.get("dtype", "?"),
        "data": one.data,
        "prompts": f"prompts {str(row.prompts.get('digest'))[:8]}",
        "order of domains": name_stream(one.stream),
    }


def name_stream(domains: Sequence[str]) -> str:
    """Return the order of domains for people; a long one is its ends and a hash."""
    text = " → ".join(domains)
    if len(domains) < 5:
        return text
    return f"{domains[0]} → … → {domains[-1]} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _find_aspects(groups: Sequence[RunGroup]) -> pd.DataFrame:
    """Return the phrases of the groups for what they differ in: a line per group, a column per aspect.

    Weights of another dtype have another digest: that alone is no difference.
    """
    frame = pd.DataFrame([_list_aspects(one) for one in groups])
    different = [aspect for aspect in frame if frame[aspect].nunique() > 1]
    if WEIGHTS in different and len(frame[[DTYPE, WEIGHTS]].drop_duplicates()) == frame[DTYPE].nunique():
        different.remove(WEIGHTS)
    return frame[different]


def _compare(one: RunGroup, others: Sequence[RunGroup]) -> dict[str, str]:
    """Return the phrases of a group for what it differs in from others."""
    own = _find_aspects([one, *others]).iloc[0]
    return {str(aspect): phrase for aspect, phrase in own.items() if phrase}


def tell_apart(groups: Iterable[RunGroup], aspects: Collection[str] | None = None) -> list[RunGroup]:
    """Return the groups of one table; where one label names several, what differs is added to it.

    Of the protocol only the given ``aspects`` are added, by default all.
    """
    every = list(groups)
    named = []
    for one in every:
        same = [other for other in every if other.label == one.label]
        phrases = _compare(one, same) if len(same) > 1 else {}
        phrases = {key: phrase for key, phrase in phrases.items() if aspects is None or key in aspects}
        added = [*_compare_specs(one, same), *phrases.values()]
        label = f"{one.label} ({', '.join(added)})" if added else one.label
        named.append(replace(one, label=label, named=one.named | frozenset(phrases)))
    return named


def _compare_specs(one: RunGroup, others: Sequence[RunGroup]) -> list[str]:
    every, own = [read_spec(other.first.spec)[1] for other in others], read_spec(one.first.spec)[1]
    return [f"{key}={value}" for key, value in own.items() if any(o.get(key) != value for o in every)]


def note_differences(groups: Sequence[RunGroup]) -> list[str]:
    """Return notes on where the lines of a table are not under one protocol, unless their labels say so."""
    notes = []
    aspects = _find_aspects(groups) if groups else pd.DataFrame()
    for aspect, phrases in aspects.items():
        if aspect == EMISSION or all(aspect in one.named for one in groups):  # the emission is a trait of the method
            continue
        labels = pd.Series([one.label for one in groups]).groupby(phrases, sort=False).agg(", ".join)
        text = ", ".join(f"{phrase or 'other'} ({names})" for phrase, names in labels.items())
        notes.append(f"The lines differ in {aspect}: {text}.")
    return notes


def note_main(shown: Sequence[RunGroup], groups: Sequence[RunGroup]) -> list[str]:
    """Return a note on the groups that could be in the main table and are not."""
    return note_left_out(shown, [one for one in groups if is_main(one)])


def note_left_out(shown: Sequence[RunGroup], groups: Sequence[RunGroup]) -> list[str]:
    """Return a note on the groups that are not shown, with what they differ in from the one that is."""
    left: dict[str, list[str]] = {}
    runs = {one.first.run for one in shown}
    for one in groups:
        if one.first.run not in runs:
            key = (*one.configuration, *one.ground)
            like = [other for other in shown if (*other.configuration, *other.ground) == key]
            left.setdefault(one.label, []).append(", ".join(_compare(one, like).values()))
    texts = [f"{label} ({'; '.join(own)})" if any(own) else label for label, own in left.items()]
    return [f"Also run, not shown here: {', '.join(texts)}."] if texts else []
