"""The numbers behind the paper's figures, from rows and from the answers to every picture. No drawing here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import Row
from lmr.report.series import SEVERAL, Runs, Series, Setting
from lmr.report.statistics import align_by_index
from lmr.report.tables.sweeps import Sweep, count_images, find_sweeps

Floats = NDArray[np.float64]
SHIFT = "frost"  # the paper's representative shift
REPRESENTATIVE = ("gaussian_noise", "defocus_blur", "frost", "contrast")
PERCENTILES = np.arange(1, 100)


@dataclass(frozen=True)
class Family:
    """All series on one dataset with one backbone, one set of prompts, one order: whatever the severity."""

    settings: dict[Setting, list[Series]]

    @property
    def dataset(self) -> str:
        """What the pictures are."""
        return next(iter(self.settings)).dataset

    @cached_property
    def shifted(self) -> Setting | None:
        """The most severe setting."""
        return max((s for s in self.settings if s.severity), key=lambda s: s.severity, default=None)

    def zero_shot(self, setting: Setting | None) -> Series | None:
        """Zero-shot in a setting: the series with most domains, then most images."""
        found = [s for s in self.settings.get(setting, []) if s.first.method == "zeroshot"] if setting else []
        return max(found, key=lambda s: (len(s.domains), s.first.images), default=None)

    def shift_row(self, one: Series | None) -> Row | None:
        """The run on the representative shift, else on the first domain; of several seeds the first."""
        if one is None:
            return None
        names = [row.domain for row in one.rows if row.domain not in SEVERAL]
        name = SHIFT if SHIFT in names else names[0] if names else ""
        return one.find(name, one.seeds[0]) or one.find(name)


def find_families(settings: dict[Setting, list[Series]]) -> list[Family]:
    """Settings that differ in the severity alone, together."""
    groups: dict[tuple[str, ...], dict[Setting, list[Series]]] = {}
    for setting, series in settings.items():
        groups.setdefault(setting.family, {})[setting] = series
    return [Family(group) for group in groups.values()]


def _describe(setting: Setting, row: Row) -> str:
    """Where an answer was given, for a caption."""
    return f"{setting.describe()}, {row.domain}, {row.images} images, seed {row.seed}"


def collect_gaps(runs: Runs, family: Family) -> tuple[str, Floats] | None:
    """1a: by how much the top class beats the true one where zero-shot errs: where that was, and the gaps, sorted."""
    row = family.shift_row(family.zero_shot(family.shifted))
    samples = runs.samples(row) if row else None
    if row is None or samples is None or family.shifted is None:
        return None
    gaps = samples["gap"][samples["predicted"] != samples["true"]].astype(np.float64)
    gaps = np.sort(gaps[np.isfinite(gaps)])
    return (_describe(family.shifted, row), gaps) if len(gaps) else None


def collect_margins(runs: Runs, family: Family) -> tuple[str, dict[str, dict[int, float]]] | None:
    """1b: median local margin of zero-shot by domain and severity, for at least two severities."""
    found: dict[str, dict[int, float]] = {}
    counts = set()
    for setting in sorted(family.settings):
        one = family.zero_shot(setting) if setting.severity else None
        for domain in one.domains if one else ():
            row = one.find(domain) if one else None
            samples = runs.samples(row) if row and row.domain == domain else None
            if row and samples is not None and np.isfinite(samples["margin"]).any():
                found.setdefault(domain, {})[setting.severity] = float(np.nanmedian(samples["margin"]))
                counts.add(row.images)
    several = {domain: line for domain, line in found.items() if len(line) > 1}
    longest = max(map(len, several.values()), default=0)
    full = {domain: line for domain, line in several.items() if len(line) == longest}
    chosen = [d for d in REPRESENTATIVE if d in full] + [d for d in full if d not in REPRESENTATIVE]
    if not chosen:
        return None
    where = replace(next(iter(family.settings)), severity=0).describe()
    return f"{where}, {count_images(counts)}", {domain: full[domain] for domain in chosen[:4]}


def collect_mass(runs: Runs, family: Family) -> tuple[str, dict[str, Floats]] | None:
    """1c: cumulative share of classes, largest first, of shifted predictions, clean predictions and true labels.

    All on the same pictures: few of them look more concentrated than many.
    """
    shifted = family.shift_row(family.zero_shot(family.shifted))
    clean = family.zero_shot(next((s for s in family.settings if not s.severity), None))
    one, two = runs.samples(shifted) if shifted else None, runs.samples(clean.first) if clean else None
    if shifted is None or one is None or two is None or family.shifted is None:
        return None
    mine, theirs = align_by_index(one["index"], two["index"])
    if not len(mine):
        return None
    said = shifted.protocol.get("classes", "")
    seen = 1 + max(int(samples[key].max()) for samples in (one, two) for key in ("true", "predicted"))
    classes = max(int(said), seen) if said.isdecimal() else seen
    where = f"{family.shifted.describe()}, {shifted.domain}, {len(mine)} images clean and shifted"
    return where, {
        "shifted predictions": accumulate_classes(one["predicted"][mine], classes),
        "clean predictions": accumulate_classes(two["predicted"][theirs], classes),
        "labels": accumulate_classes(one["true"][mine], classes),
    }


def accumulate_classes(labels: NDArray[np.int64], classes: int) -> Floats:
    """Share of the k most frequent classes for every k: [classes], from the largest class's share to 1."""
    counts = np.sort(np.bincount(labels, minlength=classes))[::-1]
    return np.asarray(np.cumsum(counts) / max(1, counts.sum()), np.float64)


def collect_late_shares(family: Family) -> tuple[str, dict[str, float]] | None:
    """1d: share in % of the most predicted class late in the stream, for PMR without and with AM, alike in all else."""
    if family.shifted is None:
        return None
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for name, changes in (("PMR only", {"am": False, "bc": False}), ("PMR + AM", {"bc": False})):
        for one in family.settings[family.shifted]:
            row = family.shift_row(one) if one.first.method == "lmr" and one.changes == changes else None
            if row and row.metrics.get("late_top_share") is not None:
                alike = (row.images, row.batch_size, row.domain, row.seed, *one.ground)
                groups.setdefault(alike, {})[name] = row
    pair = max((group for group in groups.values() if len(group) == 2), key=lambda g: g["PMR only"].images, default={})
    if not pair:
        return None
    where = f"{_describe(family.shifted, pair['PMR only'])}, batch {pair['PMR only'].batch_size}"
    return where, {name: 100 * float(row.metrics["late_top_share"] or 0) for name, row in pair.items()}


def collect_recovery(runs: Runs, family: Family) -> tuple[str, dict[str, Floats]] | None:
    """3d: percentiles of the true class's score above zero-shot's wrong answer, over zero-shot's errors, by method.

    Over all domains that every one of the methods was measured on, with the same number of images.
    """
    groups: dict[tuple[Any, ...], dict[str, dict[str, Floats]]] = {}
    for one in family.settings.get(family.shifted, []) if family.shifted else []:
        if one.first.method in ("zeroshot", "tent", "mint", "lmr") and not one.changes:
            rows = [row for row in one.rows if row.domain not in SEVERAL and row.seed == one.seeds[0]]
            pairs = [(row.domain, _read_recovery(runs, row)) for row in rows]
            measured = {domain: values for domain, values in pairs if values is not None}
            series = groups.setdefault((one.first.images, *one.ground), {})
            if measured and len(measured) >= len(series.get(one.label, {})):
                series[one.label] = measured
    images = max(groups, key=lambda key: (len(groups[key]), key[0]), default=())
    series = groups.get(images, {})
    common = set.intersection(*map(set, series.values())) if series else set()
    if len(series) < 2 or not common or family.shifted is None:
        return None
    order = sorted(common)
    domains = ", ".join(order) if len(order) < 4 else f"{len(order)} corruptions"
    return f"{family.shifted.describe()}, {domains}, {images[0]} images each", {
        label: np.percentile(np.concatenate([lines[d] for d in order]), PERCENTILES) for label, lines in series.items()
    }


def _read_recovery(runs: Runs, row: Row) -> Floats | None:
    samples = runs.samples(row)
    values = samples["recovery"].astype(np.float64) if samples else np.empty(0)
    values = values[np.isfinite(values)]
    return values if len(values) else None


def pick_sweeps(families: Iterable[Family], kind: str) -> list[Sweep]:
    """3a to 3c: the sweeps of a kind, over all families."""
    return [sweep for family in families for sweep in find_sweeps(family.settings) if sweep.kind == kind]
