"""What distinguishes the lines of one table: additions to their labels, and notes under the table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lmr.report.row_traits import read_spec
from lmr.report.series import Aspect, Series


def _list_phrases(one: Series) -> dict[Aspect, str]:
    """A phrase for every aspect of a series."""
    row = one.first
    return {
        Aspect.BATCH_SIZE: f"batch {row.batch_size}",
        Aspect.IMAGES: f"{row.images} images",
        Aspect.EMISSION: row.emit,
        Aspect.WEIGHTS: f"weights {row.backbone.get('weights', '?')[:8]}",
        Aspect.DTYPE: row.backbone.get("dtype", "?"),
        Aspect.DATA: one.data.describe(),
        Aspect.PROMPTS: f"prompts {str(row.prompts.get('digest'))[:8]}",
        Aspect.DOMAIN_ORDER: _name_stream(one.stream),
    }


def _name_stream(domains: Sequence[str]) -> str:
    words = " → ".join(domains)
    if len(domains) < 5:
        return words
    return f"{domains[0]} → … → {domains[-1]} {hashlib.sha256(words.encode()).hexdigest()[:8]}"


def tell_apart(series: Iterable[Series]) -> list[Series]:
    """The series of one table; where one label names several, what differs is added to it."""
    every = list(series)
    named = []
    for one in every:
        same = [other for other in every if other.label == one.label]
        phrases = _compare(one, same)
        added = [*_compare_specs(one, same), *phrases.values()]
        label = f"{one.label} ({', '.join(added)})" if added else one.label
        named.append(replace(one, label=label, named=one.named | frozenset(phrases)))
    return named


def _compare_specs(one: Series, others: Sequence[Series]) -> list[str]:
    every, own = [read_spec(other.first.spec)[1] for other in others], read_spec(one.first.spec)[1]
    return [f"{key}={value}" for key, value in own.items() if any(o.get(key) != value for o in every)]


def _compare(one: Series, others: Sequence[Series]) -> dict[Aspect, str]:
    """The phrases of a series for what it differs in from others."""
    own = _list_phrases(one)
    return {aspect: own[aspect] for aspect in _find_aspects([one, *others]) if own[aspect]}


def _find_aspects(series: Sequence[Series]) -> list[Aspect]:
    """What the series differ in. Weights of another dtype have another digest: that alone is no difference."""
    every = [_list_phrases(one) for one in series]
    counts = {aspect: len({phrases[aspect] for phrases in every}) for aspect in (Aspect if every else ())}
    both = len({(phrases[Aspect.DTYPE], phrases[Aspect.WEIGHTS]) for phrases in every})
    return [
        aspect
        for aspect, count in counts.items()
        if count > 1 and (aspect is not Aspect.WEIGHTS or both > counts[Aspect.DTYPE])
    ]


def note_differences(series: Sequence[Series]) -> list[str]:
    """Where the lines of a table are not under one protocol, unless their labels say so already."""
    notes = []
    for aspect in _find_aspects(series):
        groups: dict[str, list[Series]] = {}
        for one in series:
            groups.setdefault(_list_phrases(one)[aspect], []).append(one)
        said = all(aspect in one.named for one in series)
        if aspect is not Aspect.EMISSION and not said:  # the emission is a trait of the method
            words = [f"{phrase or 'other'} ({_join_labels(members)})" for phrase, members in groups.items()]
            notes.append(f"The lines differ in {aspect.value}: {', '.join(words)}.")
    return notes


def _join_labels(series: Sequence[Series]) -> str:
    return ", ".join(one.label for one in series)


def note_left_out(shown: Sequence[Series], series: Sequence[Series]) -> list[str]:
    """Which series are not among those shown, and in what they differ from the one that is."""
    left: dict[str, list[str]] = {}
    runs = {one.first.run for one in shown}
    for one in series:
        if one.first.run not in runs:
            key = (*one.configuration, *one.ground)
            like = [other for other in shown if (*other.configuration, *other.ground) == key]
            left.setdefault(one.label, []).append(", ".join(_compare(one, like).values()))
    words = [f"{label} ({'; '.join(own)})" if any(own) else label for label, own in left.items()]
    return [f"Also run, not shown here: {', '.join(words)}."] if words else []
