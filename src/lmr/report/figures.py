"""The figures of a report, as PNG and SVG, from the same runs as the tables.

They are the paper's figures 1 (a-d) and 3 (a-d). Each function draws one figure and returns its caption, empty where
the runs lack the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import Row
from lmr.report.drawing import (
    OURS,
    PALETTE,
    PLAIN,
    Draw,
    Drawing,
    label_ends,
    remove_markers,
    render,
    style_lines,
)
from lmr.report.groups import (
    RunGroup,
    Setting,
    Settings,
    split,
)
from lmr.report.published import read_paper
from lmr.report.runs import Runs, Samples
from lmr.report.statistics import align_by_index
from lmr.report.table import Layout, Table, name_apart
from lmr.report.tables import find_figure, lay_sweeps
from lmr.report.traits import LineKind, identify_parts, stream_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
DELTA = "3c"
PERCENTILES = np.arange(1, 100)


def draw_figures(runs: Runs, settings: Settings) -> list[Drawing]:
    """Draw every figure that the runs have the numbers for."""
    draws: list[tuple[str, Draw]] = []  # number in the paper
    for members in split(settings, lambda setting: setting.family).values():
        family = Family(runs, {setting: settings[setting] for setting in members})
        draws += [(number, functools.partial(panel, family=family)) for number, panel in PANELS.items()]
    sweeps = [(figure, sweep) for sweep in lay_sweeps(settings) if (figure := find_figure(sweep))]
    for figure, sweep in sweeps:
        draw: Draw = functools.partial(draw_sweep, table=sweep.build(), figure=figure)
        draws += [(figure["number"], draw)] if figure["number"] != DELTA else []
    deltas = [sweep for figure, sweep in sweeps if figure["number"] == DELTA]
    draws += [(DELTA, functools.partial(draw_deltas, sweeps=deltas))] if deltas else []
    drawn = (render(number, draw) for number, draw in draws)
    return sorted(name_apart(drawing for drawing in drawn if drawing), key=lambda drawing: drawing.name)


@dataclass(frozen=True)
class Family:
    """All groups on one dataset with one backbone, one set of prompts and one order, at any severity."""

    runs: Runs
    settings: Settings

    @cached_property
    def shifted(self) -> Setting:
        """The most severe setting."""
        return max(self.settings, key=lambda s: s.severity)

    @property
    def groups(self) -> list[RunGroup]:
        """The groups of the highest severity, none if all images are clean."""
        return self.at(self.shifted.severity) if self.shifted.severity else []

    def at(self, severity: int) -> list[RunGroup]:
        """Return the groups of a severity, 0 for clean images."""
        return [one for setting, own in self.settings.items() if setting.severity == severity for one in own]

    @property
    def where(self) -> str:
        """The shifted images for people, whatever their number."""
        return replace(self.shifted, images=0).describe()

    def find_baseline(self, groups: Iterable[RunGroup]) -> RunGroup | None:
        """Return the baseline with most domains, then most images."""
        found = [one for one in groups if one.kind is LineKind.BASELINE]
        return max(found, key=lambda one: (len(one.domains), one.first.images), default=None)

    def read_baseline(self) -> tuple[Row, Samples] | None:
        """Return the run of the shifted baseline and its answers."""
        row = self.shift_row(self.find_baseline(self.groups))
        samples = self.runs.samples(row) if row else None
        return (row, samples) if row and samples is not None else None

    def shift_row(self, one: RunGroup | None) -> Row | None:
        """Return the run on the paper's representative shift, else on the first domain; of several seeds the first."""
        rows = [row for row in (one.rows if one else ()) if not stream_of(row).several]
        shift = read_paper()["figures"]["1a"]["shift"]
        return min(rows, key=lambda row: (row.domain != shift, row.seed), default=None)

    def describe(self, row: Row) -> str:
        """Return where a run on the shifted images is from."""
        return f"{self.where}, {row.domain}, {row.images} images, seed {row.seed}"


def plot_lines(
    axes: Axes, lines: Mapping[str, Mapping[Any, float]], styles: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, float, float, str]]:
    """Plot lines of x -> y; return name, x, y and colour of their right ends, for ``label_ends``."""
    ends = []
    for name, line in lines.items():
        x, y = list(line), list(line.values())
        axes.plot(x, y, **styles[name])
        ends.append((name, float(x[-1]), float(y[-1]), str(styles[name]["color"])))
    return ends


def _widen(axes: Axes, least: float = 2.0) -> None:
    """Show at least two points of accuracy, so that a tenth does not look like a cliff."""
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def _mark_values(axes: Axes, values: Sequence[float]) -> None:
    """Write every value at the x axis, and nothing else."""
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def draw_gaps(axes: Axes, family: Family) -> str:
    """1a: draw by how much the top class beats the true one where the baseline is wrong."""
    if (found := family.read_baseline()) is None:
        return ""
    row, samples = found
    gaps = samples["gap"][samples["predicted"] != samples["true"]].astype(np.float64)
    gaps = np.sort(gaps[np.isfinite(gaps)])
    if not len(gaps):
        return ""
    delta = float(read_paper()["figures"]["1a"]["delta"])
    below = 100 * float((gaps <= delta).mean())
    axes.axvspan(0, delta, color="#56B4E9", alpha=0.18, linewidth=0)
    axes.plot(gaps, 100 * (np.arange(1, len(gaps) + 1) / len(gaps)), color=PALETTE[0], linewidth=1.8)
    axes.plot([delta], [below], "o", color=OURS["color"])
    axes.annotate(f"{below:.1f} % within δ = {delta}", (delta, below), (8, -9), textcoords="offset points")
    axes.set(xlabel="cosine of top class − cosine of true class", ylabel="errors with a gap up to this, %")
    axes.set(xlim=(0, float(np.quantile(gaps, 0.995)) * 1.05 or 1), ylim=(0, 102))
    return f"Gap between top and true class, {len(gaps)} errors; {family.describe(row)}."


def draw_margins(axes: Axes, family: Family) -> str:
    """1b: draw the median local margin of the baseline by domain and severity, for at least two severities."""
    found: dict[str, dict[int, float]] = {}
    for severity in sorted({setting.severity for setting in family.settings} - {0}):
        one = family.find_baseline(family.at(severity))
        for domain in one.domains if one else ():
            row = one.find(domain) if one else None
            samples = family.runs.samples(row) if row and row.domain == domain else None
            if samples is not None and np.isfinite(samples["margin"]).any():
                found.setdefault(domain, {})[severity] = float(np.nanmedian(samples["margin"]))
    longest = max((len(line) for line in found.values() if len(line) > 1), default=None)
    full = {domain: line for domain, line in found.items() if len(line) == longest}
    preferred = [domain for domain in read_paper()["figures"]["1b"]["domains"] if domain in full]
    chosen = [*preferred, *(domain for domain in full if domain not in preferred)][:4]
    if not chosen:
        return ""
    lines = {domain.replace("_", " "): full[domain] for domain in chosen}
    ends = plot_lines(axes, lines, style_lines(dict.fromkeys(lines, LineKind.OTHER)))
    severities = sorted({severity for line in lines.values() for severity in line})
    axes.set(xlabel="severity", ylabel="median local margin (cosine)", xticks=severities)
    axes.set_ylim(0, None)
    label_ends(axes, ends)
    return f"Median local margin of zero-shot by severity; {family.shifted.family.describe()}."


def draw_mass(axes: Axes, family: Family) -> str:
    """1c: draw the cumulative share of classes, largest first, of shifted and clean predictions and true labels.

    All on the same images: few images look more concentrated than many.
    """
    clean = family.find_baseline(family.at(0))
    found, theirs = family.read_baseline(), family.runs.samples(clean.first) if clean else None
    if found is None or theirs is None:
        return ""
    row, ours = found
    places, others = align_by_index(ours["index"], theirs["index"])
    if not len(places):
        return ""
    stated = row.protocol.get("classes", "")
    seen = 1 + max(int(own[key].max()) for own in (ours, theirs) for key in ("true", "predicted"))
    classes = max(int(stated), seen) if stated.isdecimal() else seen
    labels = {"shifted predictions": ours["predicted"][places], "clean predictions": theirs["predicted"][others]}
    mass = {name: accumulate_classes(own, classes) for name, own in (labels | {"labels": ours["true"][places]}).items()}
    top = max(1, classes // 10)
    styles = remove_markers(dict(zip(mass, (OURS, PLAIN, {"color": PALETTE[0], "linestyle": ":"}), strict=True)))
    for name, line in mass.items():
        axes.plot(np.arange(1, len(line) + 1), 100 * line, label=name, **styles[name])
    axes.axvline(top, color="#999999", linewidth=0.7)
    axes.set(xlabel="most frequent classes", ylabel="cumulative share, %", xlim=(1, classes), ylim=(0, 102))
    axes.legend(loc="lower right", frameon=False)
    shares = "; ".join(f"{name} {100 * line[top - 1]:.1f} %" for name, line in mass.items())
    where = f"{family.where}, {row.domain}, {len(places)} images clean and shifted"
    return f"Cumulative class mass, of the {top} most frequent of {classes} classes: {shares}; {where}."


def accumulate_classes(labels: NDArray[np.int64], classes: int) -> Floats:
    """Return the share of the k most frequent classes for every k: [classes], from the largest class's share to 1."""
    counts = np.sort(np.bincount(labels, minlength=classes))[::-1]
    return np.asarray(np.cumsum(counts) / max(1, counts.sum()), np.float64)


def draw_late_shares(axes: Axes, family: Family) -> str:
    """1d: draw the share of the most predicted class late in the stream, without and with the adaptive margin."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for label, spec in read_paper()["figures"]["1d"]["compared"].items():
        for one in family.groups:
            wanted = one.kind is LineKind.PART and identify_parts(one.first.spec) == identify_parts(spec)
            row = family.shift_row(one) if wanted else None
            if row and row.metrics.get("late_top_share") is not None:
                alike = (one.setting, row.domain, row.seed, one.key._replace(spec=""))
                found.setdefault(alike, {})[label] = row
    pairs = [pair for pair in found.values() if len(pair) == 2]
    if not pairs:
        return ""
    pair = max(pairs, key=lambda own: max(row.images for row in own.values()))
    shares = [100 * float(row.metrics["late_top_share"] or 0) for row in pair.values()]
    colours = (PALETTE[4], OURS["color"])
    bars = axes.bar(list(pair), shares, width=0.55, color=colours, edgecolor="black", linewidth=0.6)
    bars.patches[0].set_hatch("//")
    axes.bar_label(bars, labels=[f"{value:.1f} %" for value in shares], padding=2)
    axes.set(ylabel="late share of the top class, %", xlim=(-0.7, 1.7), ylim=(0, 1.18 * max(shares) or 1))
    axes.grid(axis="x", visible=False)
    return f"Share of the most predicted class late in the stream; {family.describe(next(iter(pair.values())))}."


def draw_recovery(axes: Axes, family: Family) -> str:
    """3d: draw percentiles of the true class's score above the baseline's wrong answer, by method.

    Over all domains on which every method was measured, with the same number of images.
    """
    found: dict[Setting, dict[str, tuple[LineKind, dict[str, Floats]]]] = {}
    for one in family.groups:
        measured = {}
        for row in one.rows if not one.changes else ():
            samples = None if stream_of(row).several or row.seed != one.seeds[0] else family.runs.samples(row)
            values = samples["recovery"].astype(np.float64) if samples else np.empty(0)
            if np.isfinite(values).any():
                measured[row.domain] = values[np.isfinite(values)]
        methods = found.setdefault(one.setting, {})
        if measured and len(measured) >= len(methods.get(one.label, (one.kind, {}))[1]):
            methods[one.label] = one.kind, measured
    methods = max(found.values(), key=len, default={})
    common = sorted(set.intersection(*(set(measured) for _, measured in methods.values()))) if methods else []
    if len(methods) < 2 or not common:
        return ""
    styles = remove_markers(style_lines({name: kind for name, (kind, _) in methods.items()}))
    joined = {name: np.concatenate([measured[d] for d in common]) for name, (_, measured) in methods.items()}
    lines = {name: dict(zip(PERCENTILES, np.percentile(own, PERCENTILES), strict=True)) for name, own in joined.items()}
    ends = plot_lines(axes, lines, styles)
    axes.axhline(0, color="#999999", linewidth=0.7)
    axes.set(xlabel="percentile of zero-shot's errors", ylabel="true class − zero-shot's answer", xlim=(1, 99))
    label_ends(axes, ends)
    where = f"{family.where}, {', '.join(common)}"
    return f"Local margin recovery on what zero-shot gets wrong; above 0 the error is corrected; {where}."


PANELS: dict[str, Callable[..., str]] = {
    "1a": draw_gaps,
    "1b": draw_margins,
    "1c": draw_mass,
    "1d": draw_late_shares,
    "3d": draw_recovery,
}


def read_lines(table: Table) -> dict[str, dict[float, float]]:
    """Return the numbers of a sweep by line and value."""
    values = [float(column.key) for column in table.columns]
    cells = {line.label: zip(values, line.cells, strict=True) for line in table.lines}
    return {name: {v: c.value for v, c in own if c.value is not None} for name, own in cells.items()}


def draw_sweep(axes: Axes, table: Table, figure: Mapping[str, Any]) -> str:
    """3a, 3b: draw accuracy against the batch size, or against the number of negatives."""
    names = {line.label: figure.get("lines", {}).get(line.label, line.label) for line in table.lines}
    lines = {names[name]: line for name, line in read_lines(table).items() if line}
    styles = style_lines({names[line.label]: line.kind for line in table.lines if names[line.label] in lines})
    ends = plot_lines(axes, lines, styles)
    axes.set_xscale("log", base=2)
    _mark_values(axes, sorted({value for line in lines.values() for value in line}))
    axes.set(xlabel=figure["axis"], ylabel="mean accuracy, %")
    _widen(axes)
    label_ends(axes, ends)
    return f"{table.title}."


def draw_deltas(axes: Axes, sweeps: Sequence[Layout]) -> str:
    """3c: draw accuracy against δ, a line for every dataset."""
    sets = [sweep.setting.dataset for sweep in sweeps]
    names = [name + (f" ({k})" if sets.count(name) > 1 else "") for k, name in enumerate(sets, 1)]  # other backbones
    tables = [sweep.build() for sweep in sweeps]
    lines = {name: next(iter(read_lines(table).values())) for name, table in zip(names, tables, strict=True)}
    ends = plot_lines(axes, lines, style_lines(dict.fromkeys(names, LineKind.OTHER)))
    paper = read_paper()["figures"]
    delta = float(paper["1a"]["delta"])
    axes.axvline(delta, color=OURS["color"], linewidth=0.9, linestyle=":")
    axes.text(delta, 0.02, f" δ = {delta}", color=OURS["color"], transform=axes.get_xaxis_transform(), va="bottom")
    axes.set(xlabel=paper[DELTA]["axis"], ylabel="mean accuracy, %")
    _widen(axes)
    label_ends(axes, ends)
    return "; ".join(table.title for table in tables) + ". The paper's choice is dotted."
