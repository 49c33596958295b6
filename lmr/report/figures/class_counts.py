"""What a method's values gain with few and with many classes: numbers for a figure, from runs on subsets of classes.

The arguments are those that the method itself chooses by the number of classes; other values must be its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lmr.core.method import Method
from lmr.data.sets.class_subset import BEFORE_COUNT
from lmr.report.row_traits import LineKind, expand_spec, find_known
from lmr.report.series import Series, Setting, find_common

FEW = 2  # the smallest number of classes, for which a method surely chooses if it does at all


@dataclass(frozen=True)
class ClassCounts:
    """The lines of one figure: values in words -> number of classes -> points above zero-shot, a mean over subsets."""

    method: str
    dataset: str
    batch_size: int
    gains: dict[str, dict[int, float]]
    domains: int
    limit: int | None  # the number of classes from which on the method keeps its defaults


def collect_class_counts(settings: Mapping[Setting, Sequence[Series]]) -> list[ClassCounts]:
    """The figures that the runs have numbers for: at least two numbers of classes and two lines."""
    found: dict[tuple[Setting, str, int], dict[str, dict[int, list[float]]]] = {}
    domains: dict[tuple[Setting, str, int], int] = {}
    for setting, series in settings.items():
        whole = replace(setting, dataset=setting.dataset.partition(BEFORE_COUNT)[0])
        for one in series:
            method, classes = find_known(one.first.method), one.first.protocol.get("classes", "")
            base = _find_baseline(series, one)
            words = _describe_values(method, one) if method and one.watch is None else ""
            common = find_common([one, base]) if base else []
            if method is None or base is None or not words or not common or not classes.isdecimal():
                continue
            key = (whole, method.name, one.first.batch_size)
            gain = _average(one, common) - _average(base, common)
            found.setdefault(key, {}).setdefault(words, {}).setdefault(int(classes), []).append(gain)
            domains[key] = max(domains.get(key, 0), len(common))
    counts = []
    for (whole, name, size), lines in found.items():
        if len({classes for line in lines.values() for classes in line}) > 1 and len(lines) > 1:
            gains = {words: {n: fmean(g) for n, g in sorted(line.items())} for words, line in lines.items()}
            counts.append(ClassCounts(name, whole.dataset, size, gains, domains[whole, name, size], _find_limit(name)))
    return counts


def _describe_values(method: type[Method], one: Series) -> str:
    """The values of the arguments that the method chooses; empty if others are not its defaults."""
    keys = method.choose_values(FEW).keys()
    values = expand_spec(one.first.spec)
    changed = {key for key, value in values.items() if value != getattr(method, key)} - keys
    return "" if changed or not keys else ", ".join(f"{key}={values[key]:g}" for key in keys)


def _find_baseline(series: Sequence[Series], one: Series) -> Series | None:
    """The frozen classifier on the same images."""
    alike = (other for other in series if other.kind is LineKind.BASELINE and other.first.images == one.first.images)
    return next(alike, None)


def _average(one: Series, domains: Sequence[str]) -> float:
    return fmean(value for domain in domains for value in one.collect(domain).values())


def _find_limit(name: str) -> int | None:
    method = find_known(name)
    assert method is not None
    return next((classes for classes in range(FEW, 1000) if not method.choose_values(classes)), None)
