"""The figures of a report, as PNG and SVG, from the same runs as the tables.

They are the paper's figures 1 (a-d) and 3 (a-d), the running accuracy, the long haul, and accuracy against cost. Each
function draws one figure and returns its caption, empty where the runs lack the numbers.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.metrics import WINDOW
from lmr.bench.running.row import Row
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
    remove_markers,
    render,
    style_lines,
)
from lmr.report.groups import (
    RunGroup,
    Setting,
    Settings,
    choose_main,
    find_common,
    share_seeds,
    sort_groups,
    split,
    tell_apart,
)
from lmr.report.leaderboard import HAUL, World, find_worlds
from lmr.report.published import read_paper
from lmr.report.runs import Runs, Samples
from lmr.report.statistics import align_by_index
from lmr.report.table import pivot
from lmr.report.tables import Sweep, find_line_kind, find_sweeps, split_lengths
from lmr.report.traits import LineKind, identify_parts, is_switched, stream_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
DELTA, FRONTIER, RUNNING = "3c", "frontier", "accuracy"
SWITCHED, OTHER = "#E69F00", "#0072B2"  # colours of points of the frontier: switches, other methods
PERCENTILES = np.arange(1, 100)
FEWEST_POINTS = 4  # that make a frontier


def draw_figures(runs: Runs, settings: Settings) -> list[Drawing]:
    """Draw every figure that the runs have the numbers for."""
    draws: list[tuple[str, str, Draw]] = []  # number in the paper, or a name; dataset
    for members in split(settings, lambda setting: setting.family).values():
        family = Family(runs, {setting: settings[setting] for setting in members})
        draws += [(n, family.dataset, functools.partial(panel, family=family)) for n, panel in PANELS.items()]
    deltas = []
    for sweep in find_sweeps(settings):
        figure = sweep.figure or {"number": ""}
        if figure["number"] == DELTA:
            deltas.append(sweep)
        elif figure["number"]:
            draw: Draw = functools.partial(draw_sweep, sweep=sweep, figure=figure)
            draws.append((figure["number"], sweep.setting.dataset, draw))
    draws += [(DELTA, "", functools.partial(draw_deltas, sweeps=deltas))] if deltas else []
    for setting, groups in settings.items():
        for number, make in ((FRONTIER, draw_frontier), (RUNNING, draw_running)):
            draws.append((number, setting.dataset, functools.partial(make, setting=setting, groups=groups)))
    for world in find_worlds(settings):
        hauls = [one for one in world.groups if one.kind is not LineKind.BASELINE and one.setting.order == HAUL]
        for severity, groups in split(hauls, lambda one: one.setting.severity).items():
            draw = functools.partial(draw_haul, runs=runs, world=world, groups=groups)
            draws.append((HAUL, f"{world.setting.dataset}-s{severity}", draw))
    drawn = [(data, render(n, draw, WIDE if n == FRONTIER else SIZE)) for n, data, draw in draws]
    return _name_apart((data, drawing) for data, drawing in drawn if drawing)


def _name_apart(drawn: Iterable[tuple[str, Drawing]]) -> list[Drawing]:
    """Return drawings under names of their own: figure-1a, or with several datasets figure-1a-cifar10-c."""
    drawn = list(drawn)
    counts = Counter(drawing.number for _, drawing in drawn)
    named: dict[str, Drawing] = {}
    for dataset, drawing in drawn:
        safe = "".join(sign if sign.isalnum() else "-" for sign in dataset).strip("-")
        base = name = drawing.name if counts[drawing.number] == 1 else f"{drawing.name}-{safe}"
        number = 1
        while name in named:
            name = f"{base}_{(number := number + 1)}"
        named[name] = replace(drawing, name=name)
    return sorted(named.values(), key=lambda drawing: drawing.name)


def list_absent(drawings: Sequence[Drawing]) -> str:
    """Return the figures of the paper that are not drawn, with the plans that they need; else nothing."""
    drawn = {drawing.number for drawing in drawings}
    plans = {number: paper["plan"] for number, paper in read_paper()["figures"].items() if number not in drawn}
    needs = [f"{', '.join(n for n in plans if plans[n] == plan)} ({plan})" for plan in dict.fromkeys(plans.values())]
    return f"Figures without runs, and the plans that they need: {'; '.join(needs)}." if needs else ""


@dataclass(frozen=True)
class Family:
    """All groups on one dataset with one backbone, one set of prompts and one order, at any severity."""

    runs: Runs
    settings: Settings

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return next(iter(self.settings)).dataset

    @cached_property
    def shifted(self) -> Setting:
        """The most severe setting."""
        return max(self.settings, key=lambda s: s.severity)

    @property
    def groups(self) -> list[RunGroup]:
        """The groups of the most severe setting, none if all images are clean."""
        return self.settings[self.shifted] if self.shifted.severity else []

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
        return _pick_row(one, [row.domain for row in one.rows if not stream_of(row).several]) if one else None

    def describe(self, row: Row) -> str:
        """Return where a run on the shifted images is from."""
        return f"{self.shifted.describe()}, {row.domain}, {row.images} images, seed {row.seed}"


def _pick_row(one: RunGroup, names: Sequence[str]) -> Row | None:
    shift = read_paper()["figures"]["1a"]["shift"]
    name = shift if shift in names else next(iter(names), "")
    return one.find(name, one.seeds[0]) or one.find(name) if names else None


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
    for setting in sorted((s for s in family.settings if s.severity), key=lambda s: s.severity):
        one = family.find_baseline(family.settings[setting])
        for domain in one.domains if one else ():
            row = one.find(domain) if one else None
            samples = family.runs.samples(row) if row and row.domain == domain else None
            if samples is not None and np.isfinite(samples["margin"]).any():
                found.setdefault(domain, {})[setting.severity] = float(np.nanmedian(samples["margin"]))
    longest = max((len(line) for line in found.values() if len(line) > 1), default=None)
    full = {domain: line for domain, line in found.items() if len(line) == longest}
    preferred = [domain for domain in read_paper()["figures"]["1b"]["domains"] if domain in full]
    chosen = [*preferred, *(domain for domain in full if domain not in preferred)][:4]
    if not chosen:
        return ""
    lines = {domain.replace("_", " "): full[domain] for domain in chosen}
    ends = plot_lines(axes, lines, _style_in_turn(list(lines)))
    severities = sorted({severity for line in lines.values() for severity in line})
    axes.set(xlabel="severity", ylabel="median local margin (cosine)", xticks=severities)
    axes.set_ylim(0, None)
    label_ends(axes, ends)
    return f"Median local margin of zero-shot by severity; {family.shifted.family.describe()}."


def draw_mass(axes: Axes, family: Family) -> str:
    """1c: draw the cumulative share of classes, largest first, of shifted and clean predictions and true labels.

    All on the same images: few images look more concentrated than many.
    """
    clean = family.find_baseline(one for s, own in family.settings.items() if not s.severity for one in own)
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
    where = f"{family.shifted.describe()}, {row.domain}, {len(places)} images clean and shifted"
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
                alike = (row.images, row.batch_size, row.domain, row.seed, one.watch, *one.ground)
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
    found: dict[tuple[Any, ...], dict[str, tuple[LineKind, dict[str, Floats]]]] = {}
    for one in family.groups:
        measured = {}
        for row in one.rows if not one.changes else ():
            samples = None if stream_of(row).several or row.seed != one.seeds[0] else family.runs.samples(row)
            values = samples["recovery"].astype(np.float64) if samples else np.empty(0)
            if np.isfinite(values).any():
                measured[row.domain] = values[np.isfinite(values)]
        methods = found.setdefault((one.first.images, *one.ground), {})
        if measured and len(measured) >= len(methods.get(one.label, (one.kind, {}))[1]):
            methods[one.label] = one.kind, measured
    key = max(found, key=lambda key: (len(found[key]), key[0]), default=())
    methods = found.get(key, {})
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
    where = f"{family.shifted.describe()}, {', '.join(common)}, {key[0]} images each"
    return f"Local margin recovery on what zero-shot gets wrong; above 0 the error is corrected; {where}."


PANELS: dict[str, Callable[..., str]] = {
    "1a": draw_gaps,
    "1b": draw_margins,
    "1c": draw_mass,
    "1d": draw_late_shares,
    "3d": draw_recovery,
}


def measure_sweep(sweep: Sweep) -> dict[str, dict[float, float]]:
    """Return the mean accuracy in % over domains and seeds, by line and value."""
    lines = list(sweep.lines.items())
    entries = {(k, f"{v:g}"): one.enter(sweep.domains) for k, (_, line) in enumerate(lines) for v, one in line.items()}
    cells = pivot(entries)
    found = {name: {v: cells.get((k, f"{v:g}")) for v in line} for k, (name, line) in enumerate(lines)}
    return {name: {v: c.value for v, c in line.items() if c and c.value is not None} for name, line in found.items()}


def draw_sweep(axes: Axes, sweep: Sweep, figure: Mapping[str, Any]) -> str:
    """3a, 3b: draw accuracy against the batch size, or against the number of negatives."""
    means = {name: line for name, line in measure_sweep(sweep).items() if line}
    names = {name: figure.get("lines", {}).get(name, name) for name in means}
    styles = style_lines({names[name]: find_line_kind(sweep.lines[name]) for name in means})
    ends = plot_lines(axes, {names[name]: line for name, line in means.items()}, styles)
    axes.set_xscale("log", base=2)
    _mark_values(axes, sorted({value for line in means.values() for value in line}))
    axes.set(xlabel=figure["axis"], ylabel="mean accuracy, %")
    _widen(axes)
    label_ends(axes, ends)
    return f"Accuracy against {figure['caption']}; {sweep.describe()}."


def draw_deltas(axes: Axes, sweeps: Sequence[Sweep]) -> str:
    """3c: draw accuracy against δ, a line for every dataset."""
    sets = [sweep.setting.dataset for sweep in sweeps]
    names = [name + (f" ({k})" if sets.count(name) > 1 else "") for k, name in enumerate(sets, 1)]  # other backbones
    lines = {name: next(iter(measure_sweep(sweep).values())) for name, sweep in zip(names, sweeps, strict=True)}
    ends = plot_lines(axes, lines, _style_in_turn(names))
    paper = read_paper()["figures"]
    delta = float(paper["1a"]["delta"])
    axes.axvline(delta, color=OURS["color"], linewidth=0.9, linestyle=":")
    axes.text(delta, 0.02, f" δ = {delta}", color=OURS["color"], transform=axes.get_xaxis_transform(), va="bottom")
    axes.set(xlabel=paper[DELTA]["axis"], ylabel="mean accuracy, %")
    _widen(axes)
    label_ends(axes, ends)
    where = "; ".join(f"{name}: {sweep.describe()}" for name, sweep in zip(names, sweeps, strict=True))
    return f"Accuracy against δ, the paper's choice dotted; {where}."


def draw_running(axes: Axes, setting: Setting, groups: Sequence[RunGroup]) -> str:
    """Draw the running accuracy of the main lines on the paper's representative shift, or on the first domain."""
    main = [one for one in choose_main(split_lengths(groups)[0]) if one.first.curve.get("images")]
    common = find_common(main)
    found = {one: row for one in main if (row := _pick_row(one, common)) and row.curve.get("images")}
    if len(found) < 2:
        return ""
    lines = {
        one.label: dict(zip(row.curve["images"], 100 * np.array(row.curve["accuracy"]), strict=True))
        for one, row in found.items()
    }
    ends = plot_lines(axes, lines, remove_markers(style_lines({one.label: one.kind for one in found})))
    settled = [value for line in lines.values() for count, value in line.items() if count >= max(line) / 10]
    axes.set(xlabel="images seen", ylabel="accuracy so far, %", ylim=(min(settled) - 1, max(settled) + 1))
    label_ends(axes, ends)
    first = next(iter(found.values()))
    return f"Running accuracy; {setting.describe()}, {first.domain}, seed {first.seed}."


def draw_haul(axes: Axes, runs: Runs, world: World, groups: Sequence[RunGroup]) -> str:
    """Draw the gain over the frozen model in every window of a long haul, the mean over seeds."""
    found: dict[RunGroup, Floats] = {}
    for one in tell_apart(sort_groups(groups)):
        known = [own for row in one.rows if (own := world.measure_gains(runs, row)) is not None]
        found |= {one: 100 * np.mean(known, 0)} if known else {}
    if not found:
        return ""
    styles = remove_markers(style_lines({one.label: one.kind for one in found}), linewidth=1.0)
    gains = {one.label: {WINDOW * (k + 1): v for k, v in enumerate(own)} for one, own in found.items()}
    ends = plot_lines(axes, gains, styles)
    axes.axhline(0, color="#555555", linewidth=0.9)
    axes.set(xlabel="thousand images", ylabel="accuracy − zero-shot, points")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,g}")
    label_ends(axes, ends)
    where = groups[0].setting.describe()
    return f"The long haul: accuracy minus the frozen model's in windows of {WINDOW:,} images; {where}."


def draw_frontier(axes: Axes, setting: Setting, groups: Sequence[RunGroup]) -> str:
    """Draw accuracy against the counted cost of a step, of the largest set of groups under one protocol.

    Steps of ablations and sweeps are not points. A part that is switched off may be a switch too, but ablations have
    it as well: it alone does not make a figure.
    """
    own = [one for one in groups if is_switched(one.first) or not one.changes]
    counted = [replace(one, frame=one.frame[one.frame["forwards"].notna()]) for one in own]
    alike = split((g for g in counted if len(g.frame)), lambda g: (g.first.images, g.first.batch_size, *g.ground))
    chosen = max(alike.values(), key=len, default=[])
    domains = find_common(chosen)
    shared = share_seeds(chosen, domains)[0]
    switched = {one for one in shared if is_switched(one.first)}
    if len(shared) < FEWEST_POINTS or not domains or all(one.kind is LineKind.PART for one in switched):
        return ""
    cells = pivot({(k, key): g.enter(domains, key) for k, g in enumerate(shared) for key in ("forwards", "accuracy")})
    numbers = [(cells[k, "forwards"].value or 0.0, cells[k, "accuracy"].value or 0.0) for k in range(len(shared))]
    points = sorted(zip(numbers, shared, strict=True), key=lambda point: (round(point[0][0], 6), -point[0][1]))
    best: list[tuple[tuple[float, float], RunGroup]] = []  # more accurate than all that cost as much or less
    for point in points:
        best += [point] if not best or point[0][1] > best[-1][0][1] else []
    axes.step(*zip(*(place for place, _ in best), strict=True), where="post", color="#bbbbbb", linewidth=1.0)
    colours = {LineKind.OURS: OURS["color"], LineKind.BASELINE: PLAIN["color"]}
    for (cost, accuracy), one in points:
        colour = colours.get(one.kind, SWITCHED if one in switched else OTHER)
        axes.plot([cost], [accuracy], "o" if one.kind is LineKind.OURS or one in switched else "s", color=colour)
    axes.set_xscale("log", base=2)
    _mark_values(axes, [tick for tick in (1, 1.5, 2, 3, 4, 6, 8, 12, 16) if tick <= 1.3 * points[-1][0][0]])
    axes.set(xlabel="cost of a step, in plain forwards per image", ylabel="mean accuracy, %")
    axes.margins(x=0.06, y=0.08)
    ordered = sorted(points, key=lambda point: point[0][1])
    for height, (place, one) in zip(np.linspace(0.02, 0.98, len(ordered)), ordered, strict=True):
        axes.annotate(  # names in a column at the right, each with a thin line to its point
            one.label, place, xytext=(1.03, float(height)), textcoords="axes fraction", va="center", fontsize=7,
            fontweight="bold" if (place, one) in best else "normal", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#cccccc", "linewidth": 0.5},
        )  # fmt: skip
    first = shared[0].first
    where = f"{setting.describe()}, {len(domains)} domains, {first.images} images each, batch {first.batch_size}"
    return f"Accuracy against the counted cost of a step; the line joins the best; {where}."
