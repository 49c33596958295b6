"""The numbers behind the paper's figures, from rows and from the answers to every image. No drawing here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import Row
from lmr.report.noted import Noted, join_notes
from lmr.report.paper.panels import REPRESENTATIVE, SHIFT, WITH_MARGIN, WITHOUT_MARGIN
from lmr.report.row_traits import LineKind, list_parts_off, read_spec, stream_of
from lmr.report.runs import Runs
from lmr.report.series import Series, Setting
from lmr.report.statistics import align_by_index
from lmr.report.tables.sweeps import BATCH_SIZE, FEWEST_SIZES, Sweep, count_images, find_sweeps

T = TypeVar("T")
Floats = NDArray[np.float64]
PERCENTILES = np.arange(1, 100)


@dataclass(frozen=True)
class Located(Generic[T]):
    """Numbers of a figure and where they are from, for its caption."""

    where: str
    data: T


@dataclass(frozen=True)
class Family:
    """All series on one dataset with one backbone, one set of prompts and one order, at any severity."""

    settings: dict[Setting, list[Series]]

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return next(iter(self.settings)).dataset

    @cached_property
    def shifted(self) -> Setting | None:
        """The most severe setting."""
        return max((s for s in self.settings if s.severity), key=lambda s: s.severity, default=None)

    def find_baseline(self, setting: Setting | None) -> Series | None:
        """The baseline in a setting: the series with most domains, then most images."""
        found = [s for s in self.settings.get(setting, []) if s.kind is LineKind.BASELINE] if setting else []
        return max(found, key=lambda s: (len(s.domains), s.first.images), default=None)

    def shift_row(self, one: Series | None) -> Row | None:
        """The run on the representative shift, else on the first domain; of several seeds the first."""
        if one is None:
            return None
        names = [row.domain for row in one.rows if not stream_of(row).several]
        name = SHIFT if SHIFT in names else names[0] if names else ""
        return one.find(name, one.seeds[0]) or one.find(name)


def find_families(settings: dict[Setting, list[Series]]) -> list[Family]:
    """Settings that differ only in the severity, together."""
    groups: dict[Setting, dict[Setting, list[Series]]] = {}
    for setting, series in settings.items():
        groups.setdefault(setting.family, {})[setting] = series
    return [Family(group) for group in groups.values()]


def _describe(setting: Setting, row: Row) -> str:
    """Where an answer was given, for a caption."""
    return f"{setting.describe()}, {row.domain}, {row.images} images, seed {row.seed}"


def collect_gaps(runs: Runs, family: Family) -> Noted[Located[Floats] | None]:
    """1a: by how much the top class beats the true one where the baseline is wrong, sorted."""
    row = family.shift_row(family.find_baseline(family.shifted))
    if row is None or family.shifted is None:
        return Noted(None)
    read = runs.samples(row)
    if read.value is None:
        return Noted(None, read.notes)
    gaps = read.value["gap"][read.value["predicted"] != read.value["true"]].astype(np.float64)
    gaps = np.sort(gaps[np.isfinite(gaps)])
    return Noted(Located(_describe(family.shifted, row), gaps) if len(gaps) else None)


def collect_margins(runs: Runs, family: Family) -> Noted[Located[dict[str, dict[int, float]]] | None]:
    """1b: median local margin of the baseline by domain and severity, for at least two severities."""
    found: dict[str, dict[int, float]] = {}
    counts = set()
    notes: list[tuple[str, ...]] = []
    for setting in sorted(family.settings, key=lambda s: s.severity):
        one = family.find_baseline(setting) if setting.severity else None
        for domain in one.domains if one else ():
            row = one.find(domain) if one else None
            if row is None or row.domain != domain:
                continue
            read = runs.samples(row)
            notes.append(read.notes)
            if read.value is not None and np.isfinite(read.value["margin"]).any():
                found.setdefault(domain, {})[setting.severity] = float(np.nanmedian(read.value["margin"]))
                counts.add(row.images)
    several = {domain: line for domain, line in found.items() if len(line) > 1}
    longest = max(map(len, several.values()), default=0)
    full = {domain: line for domain, line in several.items() if len(line) == longest}
    chosen = [d for d in REPRESENTATIVE if d in full] + [d for d in full if d not in REPRESENTATIVE]
    if not chosen:
        return Noted(None, join_notes(*notes))
    where = f"{next(iter(family.settings)).family.describe()}, {count_images(counts)}"
    return Noted(Located(where, {domain: full[domain] for domain in chosen[:4]}), join_notes(*notes))


def collect_mass(runs: Runs, family: Family) -> Noted[Located[dict[str, Floats]] | None]:
    """1c: cumulative share of classes, largest first, of shifted predictions, clean predictions and true labels.

    All on the same images: few images look more concentrated than many.
    """
    shifted = family.shift_row(family.find_baseline(family.shifted))
    clean = family.find_baseline(next((s for s in family.settings if not s.severity), None))
    if shifted is None or clean is None or family.shifted is None:
        return Noted(None)
    read = runs.samples(shifted), runs.samples(clean.first)
    one, two = (samples.value for samples in read)
    if one is None or two is None:
        return Noted(None, join_notes(*(samples.notes for samples in read)))
    mine, theirs = align_by_index(one["index"], two["index"])
    if not len(mine):
        return Noted(None)
    stated = shifted.protocol.get("classes", "")
    seen = 1 + max(int(samples[key].max()) for samples in (one, two) for key in ("true", "predicted"))
    classes = max(int(stated), seen) if stated.isdecimal() else seen
    where = f"{family.shifted.describe()}, {shifted.domain}, {len(mine)} images clean and shifted"
    mass = {
        "shifted predictions": accumulate_classes(one["predicted"][mine], classes),
        "clean predictions": accumulate_classes(two["predicted"][theirs], classes),
        "labels": accumulate_classes(one["true"][mine], classes),
    }
    return Noted(Located(where, mass))


def accumulate_classes(labels: NDArray[np.int64], classes: int) -> Floats:
    """Share of the k most frequent classes for every k: [classes], from the largest class's share to 1."""
    counts = np.sort(np.bincount(labels, minlength=classes))[::-1]
    return np.asarray(np.cumsum(counts) / max(1, counts.sum()), np.float64)


def collect_late_shares(family: Family) -> Located[dict[str, float]] | None:
    """1d: share in % of the most predicted class late in the stream, without and with the adaptive margin."""
    if family.shifted is None:
        return None
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for label, spec in (WITHOUT_MARGIN, WITH_MARGIN):
        for one in family.settings[family.shifted]:
            wanted = one.kind is LineKind.PART and _identify(one.first.spec) == _identify(spec)
            row = family.shift_row(one) if wanted else None
            if row and row.metrics.get("late_top_share") is not None:
                alike = (row.images, row.batch_size, row.domain, row.seed, one.watch, *one.ground)
                groups.setdefault(alike, {})[label] = row
    pairs = [group for group in groups.values() if len(group) == 2]
    pair = max(pairs, key=lambda group: max(row.images for row in group.values()), default={})
    if not pair:
        return None
    first = next(iter(pair.values()))
    where = f"{_describe(family.shifted, first)}, batch {first.batch_size}"
    return Located(where, {name: 100 * float(row.metrics["late_top_share"] or 0) for name, row in pair.items()})


def _identify(spec: str) -> tuple[str, tuple[str, ...]]:
    return read_spec(spec)[0], list_parts_off(spec)


@dataclass(frozen=True)
class RecoveryLine:
    """The percentiles of one method, [99]."""

    kind: LineKind
    percentiles: Floats


def collect_recovery(runs: Runs, family: Family) -> Noted[Located[dict[str, RecoveryLine]] | None]:
    """3d: percentiles of the true class's score above the baseline's wrong answer, where that is wrong, by method.

    Over all domains on which every method was measured, with the same number of images.
    """
    groups: dict[tuple[Any, ...], dict[str, tuple[LineKind, dict[str, Floats]]]] = {}
    notes: list[tuple[str, ...]] = []
    for one in family.settings.get(family.shifted, []) if family.shifted else []:
        if one.changes:
            continue
        measured = {}
        for row in one.rows:
            if not stream_of(row).several and row.seed == one.seeds[0]:
                read = _read_recovery(runs, row)
                notes.append(read.notes)
                if read.value is not None:
                    measured[row.domain] = read.value
        series = groups.setdefault((one.first.images, *one.ground), {})
        if measured and len(measured) >= len(series.get(one.label, (one.kind, {}))[1]):
            series[one.label] = one.kind, measured
    images = max(groups, key=lambda key: (len(groups[key]), key[0]), default=())
    series = groups.get(images, {})
    common = set.intersection(*(set(lines) for _, lines in series.values())) if series else set()
    if len(series) < 2 or not common or family.shifted is None:
        return Noted(None, join_notes(*notes))
    order = sorted(common)
    domains = ", ".join(order) if len(order) < 4 else f"{len(order)} corruptions"
    found = {
        label: RecoveryLine(kind, np.percentile(np.concatenate([lines[d] for d in order]), PERCENTILES))
        for label, (kind, lines) in series.items()
    }
    where = f"{family.shifted.describe()}, {domains}, {images[0]} images each"
    return Noted(Located(where, found), join_notes(*notes))


def _read_recovery(runs: Runs, row: Row) -> Noted[Floats | None]:
    read = runs.samples(row)
    values = read.value["recovery"].astype(np.float64) if read.value else np.empty(0)
    values = values[np.isfinite(values)]
    return Noted(values if len(values) else None, read.notes)


def pick_size_sweeps(families: Iterable[Family]) -> list[Sweep]:
    """3a: the sweeps over enough batch sizes to draw a line, over all families."""
    sweeps = [sweep for family in families for sweep in find_sweeps(family.settings) if sweep.axis == BATCH_SIZE]
    return [sweep for sweep in sweeps if sweep.longest >= FEWEST_SIZES]


def pick_own_sweeps(families: Iterable[Family], name: str) -> list[Sweep]:
    """3b and 3c: the sweeps of a name over arguments of our method, over all families."""
    return [s for family in families for s in find_sweeps(family.settings) if s.ours and s.axis.name == name]
