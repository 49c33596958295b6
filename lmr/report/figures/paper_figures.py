"""The paper's figures 1 (a-d) and 3 (a-d), each as PNG and SVG from the same runs as the tables.

Made for print: a column wide, letters of 8 points, Okabe and Ito's colours (safe for colour-blind readers) with another
line style each, names at the lines rather than in a legend.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmr.report.figures import figure_data as data
from lmr.report.paper.published import describe_paper
from lmr.report.series import Runs, Series, Setting
from lmr.report.tables.sweeps import DELTA, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (3.4, 2.6)  # inches; a column of a two-column page
DPI = 300
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000")  # Okabe and Ito, without ours
OURS: dict[str, Any] = {"color": "#D55E00", "linestyle": "-", "linewidth": 2.0, "marker": "o"}
PLAIN: dict[str, Any] = {"color": "#555555", "linestyle": (0, (4, 2)), "linewidth": 1.2, "marker": "s"}
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
MARKERS = ("s", "^", "D", "v", "P", "X")
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "lines.linewidth": 1.4,
    "lines.markersize": 3.5, "svg.fonttype": "none", "svg.hashsalt": "lmr", "figure.constrained_layout.use": True,
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn: its name, what it shows, and both forms of it."""

    name: str
    number: str
    caption: str
    svg: str
    png: bytes

    def write(self, folder: Path) -> list[Path]:
        """Put both forms into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.svg", folder / f"{self.name}.png"]
        paths[0].write_text(self.svg, encoding="utf-8")
        paths[1].write_bytes(self.png)
        return paths


Draw = Callable[["Axes"], str]  # draws and returns the caption


def draw_figures(runs: Runs, settings: dict[Setting, list[Series]]) -> tuple[list[Drawing], list[str]]:
    """Every figure the runs have the numbers for, and a sentence for each that is left out."""
    families = data.find_families(settings)
    found: list[tuple[str, str, Draw]] = []
    for family in families:
        found += [(number, family.dataset, draw) for number, draw in _list_of_family(runs, family)]
    for number, kind in (("3a", "batch-size"), ("3b", "negatives")):
        found += [(number, s.setting.dataset, _draw_sweep(s)) for s in data.pick_sweeps(families, kind)]
    if deltas := data.pick_sweeps(families, "delta"):
        found.append(("3c", "", _draw_deltas(deltas)))
    drawings = [_render(number, name, draw) for number, name, draw in _name_figures(found)]
    drawn = {number for number, _, _ in found}
    missing = [_explain_missing(number) for number in _NEEDS if number not in drawn]
    return sorted(drawings, key=lambda drawing: drawing.name), missing


_NEEDS = {  # what a figure is made of, and the plan that makes it; each has a pocket- form without download
    "1a": ("zero-shot's answers to single pictures of a corruption", "failure-patterns"),
    "1b": ("zero-shot's answers at several severities", "failure-patterns"),
    "1c": ("zero-shot's answers to the same pictures clean and corrupted", "failure-patterns"),
    "1d": ("LMR with PMR alone and with PMR and AM", "failure-patterns"),
    "3a": ("methods with several batch sizes", "ablation-batch-size"),
    "3b": ("LMR with several numbers of negatives", "ablation-negatives"),
    "3c": ("LMR with several values of delta", "ablation-delta"),
    "3d": ("TENT, MINT and LMR with recovery measured", "margin-recovery"),
}


def _explain_missing(number: str) -> str:
    what, plan = _NEEDS[number]
    return (
        f"Figure {number} is left out: it needs {what}. The plan {plan!r} makes them, 'pocket-{plan}' without download."
    )


def _name_figures(found: Sequence[tuple[str, str, Draw]]) -> list[tuple[str, str, Draw]]:
    """figure-1a, or with several datasets figure-1a-cifar10-c; a number at the end where that is not enough."""
    names: list[str] = []
    for number, dataset, _ in found:
        alone = sum(other == number for other, _, _ in found) == 1
        name = f"figure-{number}" if alone else f"figure-{number}-{_make_safe(dataset)}"
        while name in names:
            head, _, tail = name.rpartition("_")
            name = f"{head}_{int(tail) + 1}" if head and tail.isdigit() else f"{name}_2"
        names.append(name)
    return [(number, name, draw) for (number, _, draw), name in zip(found, names, strict=True)]


def _make_safe(text: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in text).strip("-")


def _list_of_family(runs: Runs, family: data.Family) -> list[tuple[str, Draw]]:
    found: list[tuple[str, Draw]] = []
    if gaps := data.collect_gaps(runs, family):
        found.append(("1a", lambda axes: _draw_gaps(axes, *gaps)))
    if margins := data.collect_margins(runs, family):
        found.append(("1b", lambda axes: _draw_margins(axes, *margins)))
    if mass := data.collect_mass(runs, family):
        found.append(("1c", lambda axes: _draw_mass(axes, *mass)))
    if shares := data.collect_late_shares(family):
        found.append(("1d", lambda axes: _draw_shares(axes, *shares)))
    if recovery := data.collect_recovery(runs, family):
        found.append(("3d", lambda axes: _draw_recovery(axes, *recovery)))
    return found


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
        f"Top-1/ground-truth gap of the {len(gaps)} errors of zero-shot on {where}: "
        f"{100 * below:.1f} % lie within δ = {DELTA}."
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
    _label_ends(axes, ends)
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


def _draw_recovery(axes: Axes, where: str, lines: dict[str, data.Floats]) -> str:
    ends = []
    for name, style in _style_methods(list(lines)).items():
        shown = {key: value for key, value in style.items() if key != "marker"}
        axes.plot(data.PERCENTILES, lines[name], **shown)
        ends.append((name, 99.0, float(lines[name][-1]), str(style["color"])))
    axes.axhline(0, color="#999999", linewidth=0.7)
    axes.set(xlabel="percentile of zero-shot's errors", ylabel="true class − zero-shot's answer", xlim=(1, 99))
    _label_ends(axes, ends)
    return f"Local margin recovery on what zero-shot gets wrong, {where}; above 0 the error is undone."


def _draw_sweep(sweep: Sweep) -> Draw:
    def draw(axes: Axes) -> str:
        ends = []
        for name, style in _style_methods([name for name in sweep.lines if sweep.means(name)]).items():
            means = sweep.means(name)
            axes.plot(list(means), list(means.values()), **style)
            ends.append((_spell(name), list(means)[-1], list(means.values())[-1], str(style["color"])))
        values = sorted({value for name in sweep.lines for value in sweep.means(name)})
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
        axes.set(xlabel={"batch-size": "batch size"}.get(sweep.kind, "hard negatives"), ylabel="mean accuracy, %")
        _widen(axes)
        _label_ends(axes, ends)
        what = "the batch size" if sweep.kind == "batch-size" else "the number of hard negatives"
        return f"Accuracy against {what} on {sweep.describe()}."

    return draw


def _draw_deltas(sweeps: Sequence[Sweep]) -> Draw:
    def draw(axes: Axes) -> str:
        ends = []
        sets = [sweep.setting.dataset for sweep in sweeps]
        marks = [f" ({k})" if sets.count(name) > 1 else "" for k, name in enumerate(sets, 1)]  # other backbones, say
        for k, sweep in enumerate(sweeps):
            means, colour = next(sweep.means(name) for name in sweep.lines), PALETTE[k % len(PALETTE)]
            axes.plot(list(means), list(means.values()), color=colour, linestyle=DASHES[k % 6], marker=MARKERS[k % 6])
            ends.append((sets[k] + marks[k], list(means)[-1], list(means.values())[-1], colour))
        axes.axvline(DELTA, color=OURS["color"], linewidth=0.9, linestyle=":")
        axes.text(DELTA, 0.02, f" δ = {DELTA}", color=OURS["color"], transform=axes.get_xaxis_transform(), va="bottom")
        axes.set(xlabel="δ, width of the protected set (cosine)", ylabel="mean accuracy, %")
        _widen(axes)
        _label_ends(axes, ends)
        where = "; ".join(sweep.describe() + mark for sweep, mark in zip(sweeps, marks, strict=True))
        return f"Accuracy against δ on {where}. The dotted line is the paper's choice."

    return draw


def _widen(axes: Axes, least: float = 2.0) -> None:
    """Show at least two points of accuracy: a tenth must not look like a cliff."""
    low, high = axes.get_ylim()
    if high - low < least:
        middle = (low + high) / 2
        axes.set_ylim(middle - least / 2, middle + least / 2)


def _spell(name: str) -> str:
    return {"gap": "by gap", "top1": "top class only"}.get(name, name)


def _style_methods(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """LMR (or its protected set) in its own colour, zero-shot in grey, others in turn."""
    styles: dict[str, dict[str, Any]] = {}
    for name in names:
        k = len([style for style in styles.values() if style not in (OURS, PLAIN)])
        other = {"color": PALETTE[k % 6], "linestyle": DASHES[1 + k % 5], "marker": MARKERS[k % 6]}
        styles[name] = OURS if name in ("LMR", "gap") else PLAIN if name == "zero-shot" else other
    return styles


def _label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write each line's name at its right end, moved apart where they would overlap."""
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    step = 0.075 * (high - low)
    ordered = sorted(ends, key=lambda end: end[2])
    places = [end[2] for end in ordered]
    for k in range(1, len(places)):
        places[k] = max(places[k], places[k - 1] + step)
    ceiling = high
    for k in reversed(range(len(places))):
        places[k] = min(places[k], ceiling)
        ceiling = places[k] - step
    for (name, x, y, colour), place in zip(ordered, places, strict=True):
        axes.annotate(
            name, (x, y), xytext=(6, (place - y) / (high - low) * axes.bbox.height * 72 / axes.figure.dpi),
            textcoords="offset points", color=colour, va="center", annotation_clip=False,
        )  # fmt: skip


def _render(number: str, name: str, draw: Draw) -> Drawing:
    """Draw one panel in both forms. No date and no random ids: the same runs give the same files."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=SIZE)
        caption = draw(axes)
        svg, png = _save(figure, "svg"), _save(figure, "png")
        pyplot.close(figure)
    stated = [entry["text"] for entry in describe_paper()["stated"] if entry["figure"] == number]
    caption += f" The paper states: {'; '.join(stated)}." if stated else ""
    return Drawing(name, number, caption, svg.decode(), png)


def _save(figure: Figure, form: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=form, dpi=DPI, metadata={"Date": None} if form == "svg" else {"Software": None})
    return content.getvalue()
