"""The numbers behind the figures, from rows and from the answers to every image. No drawing here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import Row
from lmr.report.groups import RunGroup, Setting, Settings, find_common, share_seeds, split
from lmr.report.leaderboard import HAUL, World
from lmr.report.published import read_paper
from lmr.report.runs import Runs
from lmr.report.selection import sort_groups, tell_apart
from lmr.report.statistics import align_by_index
from lmr.report.sweeps import count_images
from lmr.report.traits import LineKind, identify_parts, is_switched, stream_of

T = TypeVar("T")
Floats = NDArray[np.float64]
PERCENTILES = np.arange(1, 100)
FEWEST_POINTS = 4  # that make a frontier


@dataclass(frozen=True)
class Located(Generic[T]):
    """The numbers of a figure and where they are from, for its caption."""

    where: str
    data: T


@dataclass(frozen=True)
class Family:
    """All groups on one dataset with one backbone, one set of prompts and one order, at any severity."""

    settings: Settings

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return next(iter(self.settings)).dataset

    @cached_property
    def shifted(self) -> Setting | None:
        """The most severe setting."""
        return max((s for s in self.settings if s.severity), key=lambda s: s.severity, default=None)

    def find_baseline(self, setting: Setting | None) -> RunGroup | None:
        """Return the baseline in a setting: the group with most domains, then most images."""
        found = [one for one in self.settings.get(setting, []) if one.kind is LineKind.BASELINE] if setting else []
        return max(found, key=lambda one: (len(one.domains), one.first.images), default=None)

    def shift_row(self, one: RunGroup | None) -> Row | None:
        """Return the run on the paper's representative shift, else on the first domain; of several seeds the first."""
        names = [row.domain for row in one.rows if not stream_of(row).several] if one else []
        if one is None or not names:
            return None
        shift = read_paper()["figures"]["1a"]["shift"]
        name = shift if shift in names else names[0]
        return one.find(name, one.seeds[0]) or one.find(name)


def find_families(settings: Settings) -> list[Family]:
    """Return settings that differ only in the severity together."""
    families = split(settings, lambda setting: setting.family).values()
    return [Family({setting: settings[setting] for setting in members}) for members in families]


def _describe(setting: Setting, row: Row) -> str:
    return f"{setting.describe()}, {row.domain}, {row.images} images, seed {row.seed}"


def collect_gaps(runs: Runs, family: Family) -> Located[Floats] | None:
    """1a: return by how much the top class beats the true one where the baseline is wrong, sorted."""
    row = family.shift_row(family.find_baseline(family.shifted))
    samples = runs.samples(row) if row else None
    if row is None or samples is None or family.shifted is None:
        return None
    gaps = samples["gap"][samples["predicted"] != samples["true"]].astype(np.float64)
    gaps = np.sort(gaps[np.isfinite(gaps)])
    return Located(_describe(family.shifted, row), gaps) if len(gaps) else None


def collect_margins(runs: Runs, family: Family) -> Located[dict[str, dict[int, float]]] | None:
    """1b: return the median local margin of the baseline by domain and severity, for at least two severities."""
    found: dict[str, dict[int, float]] = {}
    counts = set()
    for setting in sorted(family.settings, key=lambda s: s.severity):
        one = family.find_baseline(setting) if setting.severity else None
        for domain in one.domains if one else ():
            row = one.find(domain) if one else None
            samples = runs.samples(row) if row and row.domain == domain else None
            if row and samples is not None and np.isfinite(samples["margin"]).any():
                found.setdefault(domain, {})[setting.severity] = float(np.nanmedian(samples["margin"]))
                counts.add(row.images)
    several = {domain: line for domain, line in found.items() if len(line) > 1}
    longest = max(map(len, several.values()), default=0)
    full = {domain: line for domain, line in several.items() if len(line) == longest}
    preferred = read_paper()["figures"]["1b"]["domains"]
    chosen = [d for d in preferred if d in full] + [d for d in full if d not in preferred]
    if not chosen:
        return None
    where = f"{next(iter(family.settings)).family.describe()}, {count_images(counts)}"
    return Located(where, {domain: full[domain] for domain in chosen[:4]})


def collect_mass(runs: Runs, family: Family) -> Located[dict[str, Floats]] | None:
    """1c: return the cumulative share of classes, largest first, of shifted and clean predictions and true labels.

    All on the same images: few images look more concentrated than many.
    """
    shifted = family.shift_row(family.find_baseline(family.shifted))
    clean = family.find_baseline(next((s for s in family.settings if not s.severity), None))
    if shifted is None or clean is None or family.shifted is None:
        return None
    one, two = runs.samples(shifted), runs.samples(clean.first)
    if one is None or two is None:
        return None
    mine, theirs = align_by_index(one["index"], two["index"])
    if not len(mine):
        return None
    stated = shifted.protocol.get("classes", "")
    seen = 1 + max(int(samples[key].max()) for samples in (one, two) for key in ("true", "predicted"))
    classes = max(int(stated), seen) if stated.isdecimal() else seen
    mass = {
        "shifted predictions": accumulate_classes(one["predicted"][mine], classes),
        "clean predictions": accumulate_classes(two["predicted"][theirs], classes),
        "labels": accumulate_classes(one["true"][mine], classes),
    }
    return Located(f"{family.shifted.describe()}, {shifted.domain}, {len(mine)} images clean and shifted", mass)


def accumulate_classes(labels: NDArray[np.int64], classes: int) -> Floats:
    """Return the share of the k most frequent classes for every k: [classes], from the largest class's share to 1."""
    counts = np.sort(np.bincount(labels, minlength=classes))[::-1]
    return np.asarray(np.cumsum(counts) / max(1, counts.sum()), np.float64)


def collect_late_shares(runs: Runs, family: Family) -> Located[dict[str, float]] | None:
    """1d: return the share in % of the most predicted class late in the stream, for both compared configurations."""
    if family.shifted is None:
        return None
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for label, spec in read_paper()["figures"]["1d"]["compared"].items():
        for one in family.settings[family.shifted]:
            wanted = one.kind is LineKind.PART and identify_parts(one.first.spec) == identify_parts(spec)
            row = family.shift_row(one) if wanted else None
            if row and row.metrics.get("late_top_share") is not None:
                alike = (row.images, row.batch_size, row.domain, row.seed, one.watch, *one.ground)
                found.setdefault(alike, {})[label] = row
    pairs = [pair for pair in found.values() if len(pair) == 2]
    pair = max(pairs, key=lambda own: max(row.images for row in own.values()), default={})
    if not pair:
        return None
    first = next(iter(pair.values()))
    where = f"{_describe(family.shifted, first)}, batch {first.batch_size}"
    return Located(where, {name: 100 * float(row.metrics["late_top_share"] or 0) for name, row in pair.items()})


@dataclass(frozen=True)
class RecoveryLine:
    """The percentiles of one method, [99]."""

    kind: LineKind
    percentiles: Floats


def collect_recovery(runs: Runs, family: Family) -> Located[dict[str, RecoveryLine]] | None:
    """3d: return percentiles of the true class's score above the baseline's wrong answer, by method.

    Over all domains on which every method was measured, with the same number of images.
    """
    if family.shifted is None:
        return None
    found: dict[tuple[Any, ...], dict[str, tuple[LineKind, dict[str, Floats]]]] = {}
    for one in family.settings[family.shifted]:
        if one.changes:
            continue
        measured = {}
        for row in one.rows:
            samples = None if stream_of(row).several or row.seed != one.seeds[0] else runs.samples(row)
            values = samples["recovery"].astype(np.float64) if samples else np.empty(0)
            if np.isfinite(values).any():
                measured[row.domain] = values[np.isfinite(values)]
        lines = found.setdefault((one.first.images, *one.ground), {})
        if measured and len(measured) >= len(lines.get(one.label, (one.kind, {}))[1]):
            lines[one.label] = one.kind, measured
    key = max(found, key=lambda key: (len(found[key]), key[0]), default=())
    lines = found.get(key, {})
    common = sorted(set.intersection(*(set(measured) for _, measured in lines.values()))) if lines else []
    if len(lines) < 2 or not common:
        return None
    domains = ", ".join(common) if len(common) < 4 else f"{len(common)} corruptions"
    percentiles = {
        label: RecoveryLine(kind, np.percentile(np.concatenate([measured[d] for d in common]), PERCENTILES))
        for label, (kind, measured) in lines.items()
    }
    return Located(f"{family.shifted.describe()}, {domains}, {key[0]} images each", percentiles)


@dataclass(frozen=True)
class CostPoint:
    """The cost and the accuracy of a method, or of a switch of it."""

    label: str
    kind: LineKind
    switched: bool  # with arguments changed that its method declares as switches
    forwards: float
    accuracy: float  # %


@dataclass(frozen=True)
class Frontier:
    """All points of one protocol, the cheapest first, and where they are from."""

    where: str
    points: tuple[CostPoint, ...]

    @property
    def best(self) -> tuple[CostPoint, ...]:
        """The points that are more accurate than everything that costs as much or less."""
        found: list[CostPoint] = []
        for point in self.points:
            if not found or point.accuracy > found[-1].accuracy:
                found.append(point)
        return tuple(found)


def collect_frontier(setting: Setting, groups: Sequence[RunGroup]) -> Frontier | None:
    """Return the largest set of groups under one protocol whose costs were counted; None without a switch in it.

    Steps of ablations and sweeps are not points. A part that is switched off may be a switch too, but ablations have
    it as well: it alone does not make a figure.
    """
    own = [one for one in groups if is_switched(one.first) or not one.changes]
    counted = [replace(one, frame=one.frame[one.frame["forwards"].notna()]) for one in own]
    alike = split((g for g in counted if len(g.frame)), lambda g: (g.first.images, g.first.batch_size, *g.ground))
    chosen = max(alike.values(), key=len, default=[])
    domains = find_common(chosen)
    points = []
    for one in share_seeds(chosen, domains)[0] if domains else ():
        forwards, accuracy = (float(one.average(domains, key).mean()) for key in ("forwards", "accuracy"))
        points.append(CostPoint(one.label, one.kind, is_switched(one.first), forwards, accuracy))
    if len(points) < FEWEST_POINTS or not any(point.switched and point.kind is not LineKind.PART for point in points):
        return None
    first = chosen[0].first
    seeds = len({seed for one in chosen for seed in one.seeds})
    where = f"{setting.describe()}, {len(domains)} domains, {first.images} images each, batch {first.batch_size}"
    ordered = sorted(points, key=lambda point: (round(point.forwards, 6), -point.accuracy))
    return Frontier(f"{where}, {seeds} seed{'s' * (seeds > 1)}", tuple(ordered))


@dataclass(frozen=True)
class HaulLine:
    """A line of the figure of a long haul: the gain in every window in points, the mean over some seeds."""

    label: str
    kind: LineKind
    gains: Floats
    seeds: int


def collect_hauls(runs: Runs, world: World) -> dict[int, list[HaulLine]]:
    """Return, by severity, every group on a long haul that has the answers of the frozen model to compare with."""
    adapted = (one for one in world.groups if one.kind is not LineKind.BASELINE and one.setting.order == HAUL)
    hauls = split(adapted, lambda one: one.setting.severity)
    lines: dict[int, list[HaulLine]] = {}
    for severity, groups in sorted(hauls.items(), reverse=True):
        for one in tell_apart(sort_groups(groups)):
            measured = [world.measure_gains(runs, row) for row in one.rows]
            known = [gains for gains in measured if gains is not None]
            if known:
                line = HaulLine(one.label, one.kind, 100 * np.mean(known, 0), len(known))
                lines.setdefault(severity, []).append(line)
    return lines
