"""What tells the lines of one table apart: additions to their labels, and notes under the table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lmr.core.spec import parse_spec
from lmr.report.series import Series


def _list_phrases(one: Series) -> dict[str, str]:
    """Everything but the spec that series in one setting may differ in, as phrases."""
    row = one.first
    return {
        "batch size": f"batch {row.batch_size}",
        "images": f"{row.images} images",
        "emit": row.emit,
        "weights": f"weights {row.backbone.get('weights', '?')[:8]}",
        "dtype": row.backbone.get("dtype", "?"),
        "data": one.data,
        "prompts": f"prompts {str(row.prompts.get('digest'))[:8]}",
        "order of domains": _name_stream(one.stream),
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
        added = [*_compare_specs(one, same), *_compare_phrases(one, same)]
        named.append(replace(one, label=f"{one.label} ({', '.join(added)})" if added else one.label))
    return named


def _compare_specs(one: Series, others: Sequence[Series]) -> list[str]:
    every, own = [parse_spec(other.first.spec)[1] for other in others], parse_spec(one.first.spec)[1]
    return [f"{key}={value}" for key, value in own.items() if any(o.get(key) != value for o in every)]


def _compare_phrases(one: Series, others: Sequence[Series]) -> list[str]:
    own, keys = _list_phrases(one), _find_keys([one, *others])
    return [own[key] for key in keys if own[key]]


def _find_keys(series: Sequence[Series]) -> list[str]:
    """In what the series differ. Weights of another dtype have another digest: that alone is no difference."""
    every = [_list_phrases(one) for one in series]
    kinds = {key: len({phrases[key] for phrases in every}) for key in (every[0] if every else ())}
    both = len({(phrases["dtype"], phrases["weights"]) for phrases in every})
    return [key for key, count in kinds.items() if count > 1 and (key != "weights" or both > kinds["dtype"])]


def note_differences(series: Sequence[Series]) -> list[str]:
    """Where the lines of a table are not under one protocol, unless their labels say so already."""
    notes = []
    for key in _find_keys(series):
        groups: dict[str, list[Series]] = {}
        for one in series:
            groups.setdefault(_list_phrases(one)[key], []).append(one)
        said = all(phrase in one.label for phrase, members in groups.items() for one in members)
        if key != "emit" and not said:  # that is a trait of the method
            words = [f"{phrase or 'other'} ({_join_labels(members)})" for phrase, members in groups.items()]
            notes.append(f"The lines differ in {key}: {', '.join(words)}.")
    return notes


def _join_labels(series: Sequence[Series]) -> str:
    return ", ".join(one.label for one in series)


def note_left_out(shown: Sequence[Series], series: Sequence[Series]) -> list[str]:
    """Which of the series are not among those shown, and in what they differ from the one that is."""
    left: dict[str, list[str]] = {}
    runs = {one.first.run for one in shown}
    for one in series:
        if one.first.run not in runs:
            like = [other for other in shown if (other.first.spec, *other.ground) == (one.first.spec, *one.ground)]
            left.setdefault(one.label, []).append(", ".join(_compare_phrases(one, like)))
    words = [f"{label} ({'; '.join(own)})" if any(own) else label for label, own in left.items()]
    return [f"Also run, not shown here: {', '.join(words)}."] if words else []
