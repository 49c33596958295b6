"""The figures of a report, each as PNG and SVG, from the same runs as the tables.

They are the paper's figures 1 (a-d) and 3 (a-d), the long haul, and the frontier of accuracy against cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lmr.bench.running.metrics import WINDOW
from lmr.report import figure_data as data
from lmr.report.drawing import (
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
    remove_markers,
    render,
    style_lines,
)
from lmr.report.groups import Setting, Settings
from lmr.report.leaderboard import find_worlds
from lmr.report.published import read_paper
from lmr.report.runs import Runs
from lmr.report.sweeps import Sweep, find_sweeps
from lmr.report.traits import LineKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DELTA, HAUL, FRONTIER = "3c", "haul", "frontier"
SWITCHED, OTHER = "#E69F00", "#0072B2"  # colours of points of the frontier: switches, other methods


@dataclass(frozen=True)
class _Figure:
    """A figure that can be drawn: its number in the paper, or a name for one that is not in the paper."""

    number: str
    dataset: str
    draw: Draw


def is_figure(name: str) -> bool:
    """Return True if a figure may have files of this name."""
    numbers = (*read_paper()["figures"], HAUL, FRONTIER)
    return any(name == f"figure-{n}" or name.startswith((f"figure-{n}-", f"figure-{n}_")) for n in numbers)


def draw_figures(runs: Runs, settings: Settings) -> list[Drawing]:
    """Draw every figure that the runs have the numbers for."""
    hauls = _prepare_hauls(runs, settings)
    figures = [*_prepare_families(runs, settings), *_prepare_sweeps(settings)]
    for setting, groups in settings.items():
        if frontier := data.collect_frontier(setting, groups):
            figures.append(_Figure(FRONTIER, setting.dataset, functools.partial(_draw_frontier, frontier=frontier)))
    return [*_render(hauls), *sorted(_render(figures), key=lambda drawing: drawing.name)]


def list_absent(drawings: Sequence[Drawing]) -> str:
    """Return a sentence on the figures of the paper that are not drawn, and the plans that they need; else nothing."""
    drawn = {drawing.number for drawing in drawings}
    plans = {number: paper["plan"] for number, paper in read_paper()["figures"].items() if number not in drawn}
    needs = [f"{', '.join(n for n in plans if plans[n] == plan)} ({plan})" for plan in dict.fromkeys(plans.values())]
    advice = "Run the plan in brackets, or photo-PLAN, which needs no download."
    return f"Figures that these runs have no numbers for: {'; '.join(needs)}. {advice}" if needs else ""


def _render(figures: Sequence[_Figure]) -> list[Drawing]:
    """Draw figures under names of their own: figure-1a, or with several datasets figure-1a-cifar10-c."""
    numbers = [figure.number for figure in figures]
    drawings: dict[str, Drawing] = {}
    for figure in figures:
        base = name = f"figure-{figure.number}"
        if numbers.count(figure.number) > 1:
            base = name = f"{base}-{make_safe(figure.dataset)}"
        for number in range(2, len(figures) + 1):
            name = f"{base}_{number}" if name in drawings else name
        size = WIDE if figure.number == FRONTIER else SIZE
        drawing = render(name, figure.number, figure.draw, size)
        stated = read_paper()["figures"].get(figure.number, {}).get("stated")
        cited = f" The paper states: {stated}." if stated else ""
        drawings[name] = replace(drawing, caption=drawing.caption + cited)
    return list(drawings.values())


def _prepare_families(runs: Runs, settings: Settings) -> list[_Figure]:
    found = []
    for family in data.find_families(settings):
        for number, (collect, draw) in PANELS.items():
            if located := collect(runs, family):
                found.append(_Figure(number, family.dataset, functools.partial(draw, located=located)))
    return found


def _prepare_sweeps(settings: Settings) -> list[_Figure]:
    """Return a figure for each sweep over batch sizes or over arguments of our method; δ of all datasets is one."""
    found, deltas = [], []
    for sweep in find_sweeps(settings):
        number = sweep.figure["number"] if sweep.figure else ""
        if number == DELTA:
            deltas.append(sweep)
        elif number:
            found.append(_Figure(number, sweep.setting.dataset, functools.partial(_draw_sweep, sweep=sweep)))
    return found + ([_Figure(DELTA, "", functools.partial(_draw_deltas, sweeps=deltas))] if deltas else [])


def _prepare_hauls(runs: Runs, settings: Settings) -> list[_Figure]:
    """Return a figure for every model, dataset and severity with a long haul of the frozen model and another method."""
    found = []
    for world in find_worlds(settings):
        by_severity = data.collect_hauls(runs, world)
        for severity, lines in by_severity.items():
            setting = replace(world.setting, severity=severity)
            ending = f"-s{severity}" if len(by_severity) > 1 else ""
            draw = functools.partial(_draw_haul, setting=setting, lines=lines)
            found.append(_Figure(HAUL, f"{setting.dataset}-{setting.backbone}{ending}", draw))
    return found


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


def _style_in_turn(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        name: {"color": PALETTE[k % 6], "linestyle": DASHES[k % 6], "marker": MARKERS[k % 6]}
        for k, name in enumerate(names)
    }


def widen(axes: Axes, least: float = 2.0) -> None:
    """Show at least two points of accuracy, so that a tenth does not look like a cliff."""
    low, high = axes.get_ylim()
    if high - low < least:
        middle = (low + high) / 2
        axes.set_ylim(middle - least / 2, middle + least / 2)


def mark_values(axes: Axes, values: Sequence[float]) -> None:
    """Write every value at the x axis, and nothing else."""
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def _draw_gaps(axes: Axes, located: data.Located[data.Floats]) -> str:
    gaps, delta = located.data, float(read_paper()["figures"]["1a"]["delta"])
    below = 100 * float((gaps <= delta).mean())
    axes.axvspan(0, delta, color="#56B4E9", alpha=0.18, linewidth=0)
    axes.plot(gaps, 100 * (np.arange(1, len(gaps) + 1) / len(gaps)), color=PALETTE[0], linewidth=1.8)
    axes.plot([delta], [below], "o", color=OURS["color"])
    axes.annotate(f"{below:.1f} % within δ = {delta}", (delta, below), (8, -9), textcoords="offset points")
    axes.set(xlabel="cosine of top class − cosine of true class", ylabel="errors with a gap up to this, %")
    axes.set(xlim=(0, float(np.quantile(gaps, 0.995)) * 1.05 or 1), ylim=(0, 102))
    return (
        f"Gap between the top class and the true class where zero-shot is wrong ({len(gaps)} of the images), on "
        f"{located.where}: {below:.1f} % are within δ = {delta}."
    )


def _draw_margins(axes: Axes, located: data.Located[dict[str, dict[int, float]]]) -> str:
    lines = {domain.replace("_", " "): line for domain, line in located.data.items()}
    ends = plot_lines(axes, lines, _style_in_turn(list(lines)))
    severities = sorted({severity for line in lines.values() for severity in line})
    axes.set(xlabel="severity", ylabel="median local margin (cosine)", xticks=severities)
    axes.set_ylim(0, None)
    label_ends(axes, ends)
    return f"Median local margin of zero-shot against the severity on {located.where}."


def _draw_mass(axes: Axes, located: data.Located[dict[str, data.Floats]]) -> str:
    third = {"color": PALETTE[0], "linestyle": ":"}
    styles = remove_markers(dict(zip(located.data, (OURS, PLAIN, third), strict=True)))
    for name, line in located.data.items():
        axes.plot(np.arange(1, len(line) + 1), 100 * line, label=name, **styles[name])
    classes = len(next(iter(located.data.values())))
    top = max(1, classes // 10)
    axes.axvline(top, color="#999999", linewidth=0.7)
    axes.set(xlabel="most frequent classes", ylabel="cumulative share, %", xlim=(1, classes), ylim=(0, 102))
    axes.legend(loc="lower right", frameon=False)
    shares = "; ".join(f"{name} {100 * line[top - 1]:.1f} %" for name, line in located.data.items())
    return f"Cumulative class mass on {located.where}. The {top} most frequent of {classes} classes hold: {shares}."


def _draw_late_shares(axes: Axes, located: data.Located[dict[str, float]]) -> str:
    names, shares = list(located.data), list(located.data.values())
    bars = axes.bar(names, shares, width=0.55, color=(PALETTE[4], OURS["color"]), edgecolor="black", linewidth=0.6)
    bars.patches[0].set_hatch("//")
    axes.bar_label(bars, labels=[f"{value:.1f} %" for value in shares], padding=2)
    axes.set(ylabel="late share of the top class, %", xlim=(-0.7, 1.7), ylim=(0, 1.18 * max(shares) or 1))
    axes.grid(axis="x", visible=False)
    return (
        f"Share of the most predicted class at the end of the stream, {located.where}: {shares[0]:.1f} % without the "
        f"adaptive margin, {shares[1]:.1f} % with it."
    )


def _draw_recovery(axes: Axes, located: data.Located[dict[str, data.RecoveryLine]]) -> str:
    styles = remove_markers(style_lines({name: line.kind for name, line in located.data.items()}))
    lines = {
        name: dict(zip(data.PERCENTILES.tolist(), line.percentiles, strict=True)) for name, line in located.data.items()
    }
    ends = plot_lines(axes, lines, styles)
    axes.axhline(0, color="#999999", linewidth=0.7)
    axes.set(xlabel="percentile of zero-shot's errors", ylabel="true class − zero-shot's answer", xlim=(1, 99))
    label_ends(axes, ends)
    return f"Local margin recovery on what zero-shot gets wrong, {located.where}; above 0 the error is corrected."


PANELS: dict[str, tuple[Callable[[Runs, data.Family], Any], Callable[..., str]]] = {
    "1a": (data.collect_gaps, _draw_gaps),
    "1b": (data.collect_margins, _draw_margins),
    "1c": (data.collect_mass, _draw_mass),
    "1d": (data.collect_late_shares, _draw_late_shares),
    "3d": (data.collect_recovery, _draw_recovery),
}


def _draw_sweep(axes: Axes, sweep: Sweep) -> str:
    figure = sweep.figure or {}
    means = {name: line for name in sweep.lines if (line := sweep.means(name))}
    names = {name: figure.get("lines", {}).get(name, name) for name in means}
    styles = style_lines({names[name]: sweep.lines[name].kind for name in means})
    ends = plot_lines(axes, {names[name]: line for name, line in means.items()}, styles)
    axes.set_xscale("log", base=2)
    mark_values(axes, sorted({value for line in means.values() for value in line}))
    axes.set(xlabel=figure["axis"], ylabel="mean accuracy, %")
    widen(axes)
    label_ends(axes, ends)
    return f"Accuracy against {figure['caption']} on {sweep.describe()}."


def _draw_deltas(axes: Axes, sweeps: Sequence[Sweep]) -> str:
    sets = [sweep.setting.dataset for sweep in sweeps]
    marks = [f" ({k})" if sets.count(name) > 1 else "" for k, name in enumerate(sets, 1)]  # different backbones
    names = [dataset + mark for dataset, mark in zip(sets, marks, strict=True)]
    lines = {name: sweep.means(next(iter(sweep.lines))) for name, sweep in zip(names, sweeps, strict=True)}
    ends = plot_lines(axes, lines, _style_in_turn(names))
    paper = read_paper()["figures"]
    delta = float(paper["1a"]["delta"])
    axes.axvline(delta, color=OURS["color"], linewidth=0.9, linestyle=":")
    axes.text(delta, 0.02, f" δ = {delta}", color=OURS["color"], transform=axes.get_xaxis_transform(), va="bottom")
    axes.set(xlabel=paper[DELTA]["axis"], ylabel="mean accuracy, %")
    widen(axes)
    label_ends(axes, ends)
    where = "; ".join(sweep.describe() + mark for sweep, mark in zip(sweeps, marks, strict=True))
    return f"Accuracy against δ on {where}. The dotted line is the paper's choice."


def _draw_haul(axes: Axes, setting: Setting, lines: Sequence[data.HaulLine]) -> str:
    styles = remove_markers(style_lines({line.label: line.kind for line in lines}), linewidth=1.0)
    gains = {
        line.label: dict(zip(range(WINDOW, WINDOW * len(line.gains) + 1, WINDOW), line.gains, strict=True))
        for line in lines
    }
    ends = plot_lines(axes, gains, styles)
    axes.axhline(0, color="#555555", linewidth=0.9)
    axes.set(xlabel="thousand images", ylabel="accuracy − zero-shot, points")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,g}")
    label_ends(axes, ends)
    seeds = max(line.seeds for line in lines)
    return (
        f"The long haul: accuracy minus that of the frozen model in windows of {WINDOW:,} images, under "
        f"corruptions that blend into each other, {setting.describe()}, "
        f"{'one seed' if seeds == 1 else f'mean of {seeds} seeds'}."
    )


def _draw_frontier(axes: Axes, frontier: data.Frontier) -> str:
    """Draw the points, a line along the best of them, and the names at the right."""
    best = frontier.best
    axes.step([p.forwards for p in best], [p.accuracy for p in best], where="post", color="#bbbbbb", linewidth=1.0)
    colours = {LineKind.OURS: OURS["color"], LineKind.BASELINE: PLAIN["color"]}
    for point in frontier.points:
        colour = colours.get(point.kind, SWITCHED if point.switched else OTHER)
        marker = "o" if point.kind is LineKind.OURS or point.switched else "s"
        axes.plot([point.forwards], [point.accuracy], marker, color=colour)
    axes.set_xscale("log", base=2)
    largest = max(point.forwards for point in frontier.points)
    mark_values(axes, [tick for tick in (1, 1.5, 2, 3, 4, 6, 8, 12, 16) if tick <= 1.3 * largest])
    axes.set(xlabel="cost of a step, in plain forwards per image", ylabel="mean accuracy, %")
    axes.margins(x=0.06, y=0.08)
    ordered = sorted(frontier.points, key=lambda point: point.accuracy)
    for place, point in zip(np.linspace(0.02, 0.98, len(ordered)), ordered, strict=True):
        axes.annotate(  # names in a column at the right, each with a thin line to its point
            point.label, (point.forwards, point.accuracy), xytext=(1.03, float(place)), textcoords="axes fraction",
            va="center", fontsize=7, fontweight="bold" if point in best else "normal", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#cccccc", "linewidth": 0.5},
        )  # fmt: skip
    names = ", ".join(f"{point.label} ({point.forwards:.2f}: {point.accuracy:.1f} %)" for point in best)
    return f"Accuracy against the counted cost of a step on {frontier.where}. The line joins the best: {names}."
