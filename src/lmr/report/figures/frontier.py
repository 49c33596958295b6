"""The frontier: accuracy against cost in plain forwards, every method and every switch as a point.

A point is on the frontier if nothing that costs as much or less is more accurate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lmr.report.row_traits import LineKind, find_known
from lmr.report.series import Series, Setting, find_common, share_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 4  # points that make a frontier
COLOURS = {LineKind.OURS: "#D55E00", LineKind.BASELINE: "#555555"}
SWITCHED, OTHER = "#E69F00", "#0072B2"  # switches; other methods


@dataclass(frozen=True)
class CostPoint:
    """What a method, or a switch of it, costs and reaches."""

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


def collect_frontier(setting: Setting, series: Sequence[Series]) -> Frontier | None:
    """The largest group of series under one protocol whose costs were counted; None without a switch among them.

    Steps of ablations and sweeps are no points. A part that is switched off may be a switch too, but ablations have
    it as well: it alone makes no figure.
    """
    groups: dict[tuple[Any, ...], list[Series]] = {}
    for one in series:
        counted = tuple(row for row in one.rows if row.metrics.get("forwards") is not None)
        if counted and (_is_switch(one) or not one.changes):
            key = one.first.images, one.first.batch_size, *one.ground
            groups.setdefault(key, []).append(replace(one, rows=counted))
    group = max(groups.values(), key=len, default=[])
    domains = find_common(group)
    points = [_measure(one, domains) for one in share_seeds(group, domains).value] if domains else []
    if len(points) < FEWEST or not any(point.switched and point.kind is not LineKind.PART for point in points):
        return None
    first = group[0].first
    seeds = len({row.seed for one in group for row in one.rows})
    where = f"{setting.describe()}, {len(domains)} domains, {first.images} images each, batch {first.batch_size}"
    ordered = sorted(points, key=lambda point: (round(point.forwards, 6), -point.accuracy))
    return Frontier(f"{where}, {seeds} seed{'s' * (seeds > 1)}", tuple(ordered))


def _measure(one: Series, domains: Sequence[str]) -> CostPoint:
    forwards, accuracy = (float(np.mean(list(one.average(domains, key).values()))) for key in ("forwards", "accuracy"))
    return CostPoint(one.label, one.kind, _is_switch(one), forwards, accuracy)


def _is_switch(one: Series) -> bool:
    """Whether all changed arguments are among those that the method declares as switches."""
    method = find_known(one.first.method)
    declared = {key for switch in method.card.switches for key in switch.values} if method else set()
    return bool(one.changes) and set(one.changes) <= declared


def draw_frontier(axes: Axes, frontier: Frontier) -> str:
    """Draw the points, a line along the best of them, and the names at the right; return the caption."""
    axes.step(
        [point.forwards for point in frontier.best],
        [point.accuracy for point in frontier.best],
        where="post",
        color="#bbbbbb",
        linewidth=1.0,
    )
    for point in frontier.points:
        colour = COLOURS.get(point.kind, SWITCHED if point.switched else OTHER)
        marker = "o" if point.kind is LineKind.OURS or point.switched else "s"
        axes.plot([point.forwards], [point.accuracy], marker, color=colour)
    axes.set_xscale("log", base=2)
    ticks = [1, 1.5, 2, 3, 4, 6, 8, 12, 16]
    largest = max(point.forwards for point in frontier.points)
    axes.set_xticks([tick for tick in ticks if tick <= 1.3 * largest], [f"{t:g}" for t in ticks if t <= 1.3 * largest])
    axes.minorticks_off()
    axes.set(xlabel="cost of a step, in plain forwards per image", ylabel="mean accuracy, %")
    axes.margins(x=0.06, y=0.08)
    _write_names(axes, frontier)
    names = ", ".join(f"{point.label} ({point.forwards:.2f}: {point.accuracy:.1f} %)" for point in frontier.best)
    return f"Accuracy against the counted cost of a step on {frontier.where}. The line joins the best: {names}."


def _write_names(axes: Axes, frontier: Frontier) -> None:
    """All names in a column at the right, in the order of accuracy, each with a thin line to its point."""
    ordered = sorted(frontier.points, key=lambda point: point.accuracy)
    for place, point in zip(np.linspace(0.02, 0.98, len(ordered)), ordered, strict=True):
        weight = "bold" if point in frontier.best else "normal"
        axes.annotate(
            point.label, (point.forwards, point.accuracy), xytext=(1.03, float(place)), textcoords="axes fraction",
            va="center", fontsize=7, fontweight=weight, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#cccccc", "linewidth": 0.5},
        )  # fmt: skip
