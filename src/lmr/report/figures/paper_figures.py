"""The paper's figures 1 (a-d) and 3 (a-d), and the frontier, each as PNG and SVG from the same runs as the tables.

How they look is in drawing.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lmr.report.figures import figure_data as data
from lmr.report.figures.class_counts import ClassCounts, collect_class_counts
from lmr.report.figures.drawing import (
    DASHES,
    MARKERS,
    OURS,
    PALETTE,
    PLAIN,
    SIZE,
    WIDE,
    Draw,
    Drawing,
    label_ends,
    make_safe,
    render,
    style_lines,
)
from lmr.report.figures.frontier import collect_frontier, draw_frontier
from lmr.report.noted import join_notes
from lmr.report.paper.panels import DELTA, NEEDS, SWEEPS, SWEPT_PANELS, VALUE_WORDS, Panel
from lmr.report.paper.paper_tables import describe_paper
from lmr.report.row_traits import LineKind
from lmr.report.runs import Runs
from lmr.report.series import Series, Setting
from lmr.report.tables.sweeps import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class FigureSet:
    """The figures that could be drawn, one message for each that could not, and notes on samples."""

    drawings: tuple[Drawing, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ready:
    """A figure that can be drawn."""

    panel: Panel
    dataset: str
    draw: Draw


def draw_figures(runs: Runs, settings: dict[Setting, list[Series]]) -> FigureSet:
    """Draw every figure that the runs have the numbers for."""
    families = data.find_families(settings)
    ready: list[_Ready] = []
    notes: list[tuple[str, ...]] = []
    for family in families:
        found, problems = _prepare_family(runs, family)
        ready += found
        notes.append(problems)
    ready += [
        _Ready(Panel.BATCH_SIZE, s.setting.dataset, _draw_sweep(s, "batch size", "the batch size"))
        for s in data.pick_size_sweeps(families)
    ]
    for name, panel in SWEPT_PANELS.items():
        sweeps = data.pick_own_sweeps(families, name)
        if panel is Panel.DELTA:
            ready += [_Ready(panel, "", _draw_deltas(sweeps))] if sweeps else []
        else:
            words = SWEEPS[name]
            ready += [_Ready(panel, s.setting.dataset, _draw_sweep(s, words.axis, words.caption)) for s in sweeps]
    ready += [
        _Ready(Panel.CLASSES, counts.dataset, _draw_class_counts(counts)) for counts in collect_class_counts(settings)
    ]
    for setting, series in settings.items():
        if frontier := collect_frontier(setting, series):
            draw = functools.partial(draw_frontier, frontier=frontier)
            ready.append(_Ready(Panel.FRONTIER, setting.dataset, draw))
    drawings = [
        render(name, one.panel.value, _cite(one), WIDE if one.panel is Panel.FRONTIER else SIZE)
        for one, name in zip(ready, _name_figures(ready), strict=True)
    ]
    drawn = {one.panel for one in ready}
    missing = tuple(_explain_missing(panel) for panel in NEEDS if panel not in drawn)
    return FigureSet(tuple(sorted(drawings, key=lambda drawing: drawing.name)), missing, join_notes(*notes))


def _cite(one: _Ready) -> Draw:
    """Draws a panel; its caption ends with what the paper states about it."""
    stated = [entry["text"] for entry in describe_paper()["stated"] if entry["figure"] == one.panel.value]
    return lambda axes: one.draw(axes) + (f" The paper states: {'; '.join(stated)}." if stated else "")


def _explain_missing(panel: Panel) -> str:
    need = NEEDS[panel]
    return (
        f"Figure {panel.value} is not drawn: it needs {need.what}. Run 'lmr bench {need.plan}', or "
        f"'lmr bench photo-{need.plan}', which needs no download."
    )


def _name_figures(ready: Sequence[_Ready]) -> list[str]:
    """figure-1a, or with several datasets figure-1a-cifar10-c; with a number at the end where that is not unique."""
    names: list[str] = []
    for one in ready:
        alone = sum(other.panel is one.panel for other in ready) == 1
        name = _begin_name(one.panel) if alone else f"{_begin_name(one.panel)}-{make_safe(one.dataset)}"
        while name in names:
            head, _, tail = name.rpartition("_")
            name = f"{head}_{int(tail) + 1}" if head and tail.isdigit() else f"{name}_2"
        names.append(name)
    return names


def find_panel(name: str) -> Panel | None:
    """The panel whose files have such a name, None for names that no figure has."""
    begins = {panel: _begin_name(panel) for panel in Panel}
    return next(
        (p for p, begin in begins.items() if name == begin or name.startswith((f"{begin}-", f"{begin}_"))), None
    )


def _begin_name(panel: Panel) -> str:
    return f"figure-{panel.value}"


def _prepare_family(runs: Runs, family: data.Family) -> tuple[list[_Ready], tuple[str, ...]]:
    """The figures that one family has the numbers for, and notes on samples that could not be read."""
    found: list[tuple[Panel, Draw]] = []
    gaps, margins = data.collect_gaps(runs, family), data.collect_margins(runs, family)
    mass, recovery = data.collect_mass(runs, family), data.collect_recovery(runs, family)
    if located_gaps := gaps.value:
        found.append((Panel.GAPS, lambda axes: _draw_gaps(axes, located_gaps.where, located_gaps.data)))
    if located_margins := margins.value:
        found.append((Panel.MARGINS, lambda axes: _draw_margins(axes, located_margins.where, located_margins.data)))
    if located_mass := mass.value:
        found.append((Panel.MASS, lambda axes: _draw_mass(axes, located_mass.where, located_mass.data)))
    if shares := data.collect_late_shares(family):
        found.append((Panel.LATE_SHARES, lambda axes: _draw_shares(axes, shares.where, shares.data)))
    if recovered := recovery.value:
        found.append((Panel.RECOVERY, lambda axes: _draw_recovery(axes, recovered.where, recovered.data)))
    notes = join_notes(gaps.notes, margins.notes, mass.notes, recovery.notes)
    return [_Ready(panel, family.dataset, draw) for panel, draw in found], notes


def _draw_gaps(axes: Axes, where: str, gaps: data.Floats) -> str:
    below = float((gaps <= DELTA).mean())
    shares = np.arange(1, len(gaps) + 1) / len(gaps)
    axes.axvspan(0, DELTA, color="#56B4E9", alpha=0.18, linewidth=0)
    axes.plot(gaps, 100 * shares, color=PALETTE[0], linewidth=1.8)
    axes.plot([DELTA], [100 * below], "o", color=OURS["color"])
    axes.annotate(f"{100 * below:.1f} % within δ = {DELTA}", (DELTA, 100 * below), (8, -9), textcoords="offset points")
    axes.set(xlabel="cosine of top class − cosine of true class", ylabel="errors with a gap up to this, %")
    axes.set(xlim=(0, float(np.quantile(gaps, 0.995)) * 1.05 or 1), ylim=(0, 102))
    return (
        f"Gap between the top class and the true class where zero-shot is wrong ({len(gaps)} of the images), on "
        f"{where}: {100 * below:.1f} % are within δ = {DELTA}."
    )


def _draw_margins(axes: Axes, where: str, margins: dict[str, dict[int, float]]) -> str:
    ends = []
    for k, (domain, line) in enumerate(margins.items()):
        style: dict[str, Any] = {"color": PALETTE[k], "linestyle": DASHES[k], "marker": MARKERS[k]}
        axes.plot(list(line), list(line.values()), **style)
        ends.append((domain.replace("_", " "), list(line)[-1], list(line.values())[-1], style["color"]))
    severities = sorted({severity for line in margins.values() for severity in line})
    axes.set(xlabel="severity", ylabel="median local margin (cosine)", xticks=severities)
    axes.set_ylim(0, None)
    label_ends(axes, ends)
    return f"Median local margin of zero-shot against the severity on {where}."


def _draw_mass(axes: Axes, where: str, mass: dict[str, data.Floats]) -> str:
    styles: tuple[dict[str, Any], ...] = (OURS, PLAIN, {"color": PALETTE[0], "linestyle": ":"})
    for (name, line), style in zip(mass.items(), styles, strict=True):
        shown = {key: value for key, value in style.items() if key != "marker"}
        axes.plot(np.arange(1, len(line) + 1), 100 * line, label=name, **shown)
    classes = len(next(iter(mass.values())))
    top = max(1, classes // 10)
    axes.axvline(top, color="#999999", linewidth=0.7)
    axes.set(xlabel="most frequent classes", ylabel="cumulative share, %", xlim=(1, classes), ylim=(0, 102))
    axes.legend(loc="lower right", frameon=False)
    shares = "; ".join(f"{name} {100 * line[top - 1]:.1f} %" for name, line in mass.items())
    return f"Cumulative class mass on {where}. The {top} most frequent of {classes} classes hold: {shares}."


def _draw_shares(axes: Axes, where: str, shares: dict[str, float]) -> str:
    colours = (PALETTE[4], OURS["color"])
    bars = axes.bar(list(shares), list(shares.values()), width=0.55, color=colours, edgecolor="black", linewidth=0.6)
    bars.patches[0].set_hatch("//")
    axes.bar_label(bars, labels=[f"{value:.1f} %" for value in shares.values()], padding=2)
    axes.set(ylabel="late share of the top class, %", xlim=(-0.7, 1.7), ylim=(0, 1.18 * max(shares.values()) or 1))
    axes.grid(axis="x", visible=False)
    first, second = shares.values()
    return (
        f"Share of the most predicted class at the end of the stream, {where}: {first:.1f} % without the "
        f"adaptive margin, {second:.1f} % with it."
    )


def _draw_recovery(axes: Axes, where: str, lines: dict[str, data.RecoveryLine]) -> str:
    ends = []
    for name, style in style_lines({name: line.kind for name, line in lines.items()}).items():
        shown = {key: value for key, value in style.items() if key != "marker"}
        values = lines[name].percentiles
        axes.plot(data.PERCENTILES, values, **shown)
        ends.append((name, 99.0, float(values[-1]), str(style["color"])))
    axes.axhline(0, color="#999999", linewidth=0.7)
    axes.set(xlabel="percentile of zero-shot's errors", ylabel="true class − zero-shot's answer", xlim=(1, 99))
    label_ends(axes, ends)
    return f"Local margin recovery on what zero-shot gets wrong, {where}; above 0 the error is corrected."


def _draw_sweep(sweep: Sweep, axis: str, what: str) -> Draw:
    def draw(axes: Axes) -> str:
        ends = []
        kinds = {name: line.kind for name, line in sweep.lines.items() if sweep.means(name)}
        for name, style in style_lines(kinds).items():
            means = sweep.means(name)
            axes.plot(list(means), list(means.values()), **style)
            label = VALUE_WORDS.get(name, name) if sweep.axis.arguments else name
            ends.append((label, list(means)[-1], list(means.values())[-1], str(style["color"])))
        values = sorted({value for name in sweep.lines for value in sweep.means(name)})
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
        axes.set(xlabel=axis, ylabel="mean accuracy, %")
        _widen(axes)
        label_ends(axes, ends)
        return f"Accuracy against {what} on {sweep.describe()}."

    return draw


def _draw_deltas(sweeps: Sequence[Sweep]) -> Draw:
    def draw(axes: Axes) -> str:
        ends = []
        sets = [sweep.setting.dataset for sweep in sweeps]
        marks = [f" ({k})" if sets.count(name) > 1 else "" for k, name in enumerate(sets, 1)]  # different backbones
        for k, sweep in enumerate(sweeps):
            means, colour = next(sweep.means(name) for name in sweep.lines), PALETTE[k % len(PALETTE)]
            axes.plot(list(means), list(means.values()), color=colour, linestyle=DASHES[k % 6], marker=MARKERS[k % 6])
            ends.append((sets[k] + marks[k], list(means)[-1], list(means.values())[-1], colour))
        axes.axvline(DELTA, color=OURS["color"], linewidth=0.9, linestyle=":")
        axes.text(DELTA, 0.02, f" δ = {DELTA}", color=OURS["color"], transform=axes.get_xaxis_transform(), va="bottom")
        axes.set(xlabel="δ, width of the protected set (cosine)", ylabel="mean accuracy, %")
        _widen(axes)
        label_ends(axes, ends)
        where = "; ".join(sweep.describe() + mark for sweep, mark in zip(sweeps, marks, strict=True))
        return f"Accuracy against δ on {where}. The dotted line is the paper's choice."

    return draw


def _draw_class_counts(counts: ClassCounts) -> Draw:
    def draw(axes: Axes) -> str:
        ends = []
        for name, style in style_lines(dict.fromkeys(counts.gains, LineKind.OTHER)).items():
            gains = counts.gains[name]
            axes.plot(list(gains), list(gains.values()), **style)
            ends.append((name, list(gains)[-1], list(gains.values())[-1], str(style["color"])))
        axes.axhline(0, color="#999999", linewidth=0.7)
        if counts.limit is not None:
            axes.axvline(counts.limit, color=OURS["color"], linewidth=0.9, linestyle=":")
        values = sorted({classes for gains in counts.gains.values() for classes in gains})
        axes.set_xscale("log")
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
        axes.set(xlabel="classes", ylabel="gain over zero-shot, points")
        _widen(axes)
        label_ends(axes, ends)
        return (
            f"Gain over zero-shot against the number of classes, on subsets of {counts.dataset} in batches of "
            f"{counts.batch_size}, means over {counts.domains} domains, up to {counts.images} images each. Left of the "
            "dotted line the preset 'auto' leaves the defaults."
        )

    return draw


def _widen(axes: Axes, least: float = 2.0) -> None:
    """Show at least two points of accuracy, so that a tenth does not look like a cliff."""
    low, high = axes.get_ylim()
    if high - low < least:
        middle = (low + high) / 2
        axes.set_ylim(middle - least / 2, middle + least / 2)
