"""What a method's values gain with few and with many classes: numbers for a figure, from runs on subsets of classes.

The arguments are those that the method itself chooses by the number of classes; other values must be its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from lmr.core.method import Method
from lmr.data.dataset import BEFORE_COUNT
from lmr.report.row_traits import LineKind, expand_spec, find_known
from lmr.report.series import Series, Setting, find_common

FEW = 2  # the smallest number of classes, for which a method surely chooses if it does at all


@dataclass(frozen=True)
class ClassCounts:
    """The lines of one figure: values in words -> number of classes -> points above zero-shot, a mean over subsets."""

    method: str
    dataset: str
    batch_size: int
    images: int
    gains: dict[str, dict[int, float]]
    domains: int
    limit: int | None  # the number of classes from which on the method keeps its defaults


class _Gain(NamedTuple):
    """What one series gains over zero-shot."""

    words: str  # its values
    classes: int
    points: float
    domains: int


class _Figure(NamedTuple):
    """What the figures of a report differ in."""

    whole: Setting  # with the dataset that the subsets are of
    method: str
    batch_size: int


def collect_class_counts(settings: Mapping[Setting, Sequence[Series]]) -> list[ClassCounts]:
    """The figures that the runs have numbers for: at least two numbers of classes and two lines.

    Runs with other weights, precision or numbers of images are never averaged: the largest group of them is drawn. The
    few classes of a small subset have fewer images in all, and their runs complete it.
    """
    found: dict[_Figure, dict[tuple[Any, ...], list[_Gain]]] = {}
    for setting, series in settings.items():
        whole = replace(setting, dataset=setting.dataset.partition(BEFORE_COUNT)[0])
        for (name, size, *rest), gains in _collect_gains(series).items():
            found.setdefault(_Figure(whole, name, size), {}).setdefault(tuple(rest), []).extend(gains)
    counts = []
    for figure, groups in found.items():
        enough = {group: gains for group, gains in groups.items() if _is_enough(gains)}
        if enough:
            group = max(enough, key=lambda one: len(enough[one]))
            counts.append(_count(figure, group[0], _complete(group, groups)))
    return counts


def _complete(group: tuple[Any, ...], groups: Mapping[tuple[Any, ...], list[_Gain]]) -> list[_Gain]:
    """The gains of a group, and of smaller numbers of classes those with the largest smaller number of images."""
    images, *rest = group
    gains = list(groups[group])
    for other in sorted((one for one in groups if one[0] < images and list(one[1:]) == rest), reverse=True):
        fewest = min(gain.classes for gain in gains)
        gains += [gain for gain in groups[other] if gain.classes < fewest]
    return gains


def _collect_gains(series: Sequence[Series]) -> dict[tuple[Any, ...], list[_Gain]]:
    """Method, batch size, images, weights and dtype -> the gains of one dataset, on one kind of its data and prompts.

    Digests of data and prompts say nothing about those of other classes, so each dataset has its own choice of them.
    """
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], list[_Gain]]] = {}
    for one in series:
        method, classes = find_known(one.first.method), one.first.protocol.get("classes", "")
        base = _find_baseline(series, one)
        words = _describe_values(method, one) if method and one.watch is None else ""
        common = find_common([one, base]) if base else []
        if method is None or base is None or not words or not common or not classes.isdecimal():
            continue
        weights, dtype, *data = one.ground
        gain = _Gain(words, int(classes), _average(one, common) - _average(base, common), len(common))
        key = method.name, one.first.batch_size, one.first.images, weights, dtype
        found.setdefault(key, {}).setdefault(tuple(data), []).append(gain)
    return {key: max(kinds.values(), key=len) for key, kinds in found.items()}


def _is_enough(gains: Sequence[_Gain]) -> bool:
    return len({gain.classes for gain in gains}) > 1 and len({gain.words for gain in gains}) > 1


def _count(figure: _Figure, images: int, gains: Sequence[_Gain]) -> ClassCounts:
    lines: dict[str, dict[int, list[float]]] = {}
    for gain in gains:
        lines.setdefault(gain.words, {}).setdefault(gain.classes, []).append(gain.points)
    means = {words: {n: fmean(g) for n, g in sorted(line.items())} for words, line in lines.items()}
    domains = max(gain.domains for gain in gains)
    limit = _find_limit(figure.method)
    return ClassCounts(figure.method, figure.whole.dataset, figure.batch_size, images, means, domains, limit)


def _describe_values(method: type[Method], one: Series) -> str:
    """The values of the arguments that the method chooses; empty if others are not its defaults."""
    keys = method.choose_values(FEW).keys()
    values = expand_spec(one.first.spec)
    changed = {key for key, value in values.items() if value != getattr(method, key)} - keys
    return "" if changed or not keys else ", ".join(f"{key}={values[key]:g}" for key in keys)


def _find_baseline(series: Sequence[Series], one: Series) -> Series | None:
    """The frozen classifier on the same images, with the same weights and prompts."""
    base = (other for other in series if other.kind is LineKind.BASELINE and other.first.images == one.first.images)
    return next((other for other in base if other.ground == one.ground), None)


def _average(one: Series, domains: Sequence[str]) -> float:
    return fmean(value for domain in domains for value in one.collect(domain).values())


def _find_limit(name: str) -> int | None:
    method = find_known(name)
    assert method is not None
    return next((classes for classes in range(FEW, 1000) if not method.choose_values(classes)), None)
