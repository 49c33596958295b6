"""The figure of the long haul: accuracy minus that of the frozen model, window by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lmr.bench.running.metrics import WINDOW
from lmr.report.figures.drawing import Draw, Drawing, label_ends, make_safe, render, style_lines
from lmr.report.in_life import HAUL, Gains, LifeGroup, find_groups, find_scenario, measure_gains
from lmr.report.noted import Noted, join_notes
from lmr.report.row_traits import LineKind
from lmr.report.runs import Runs
from lmr.report.series import Series, Setting
from lmr.report.tables.distinction import tell_apart
from lmr.report.tables.selection import sort_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "figure-haul"


@dataclass(frozen=True)
class HaulLine:
    """A line of the figure: the gain in every window in points, the mean over some seeds."""

    label: str
    kind: LineKind
    gains: Gains
    seeds: int


def is_haul_figure(name: str) -> bool:
    """Whether a file with such a name is a figure of a long haul."""
    return name == NAME or name.startswith(f"{NAME}-")


def draw_hauls(runs: Runs, settings: Mapping[Setting, list[Series]]) -> Noted[tuple[Drawing, ...]]:
    """A figure for every model, dataset and severity with a long haul of the frozen model and of another method."""
    found: list[tuple[str, Draw]] = []
    notes: list[tuple[str, ...]] = []
    for group in find_groups(settings):
        collected = collect_lines(runs, group)
        notes.append(collected.notes)
        for severity, lines in collected.value.items():
            setting = replace(group.setting, severity=severity)
            ending = f"-s{severity}" if len(collected.value) > 1 else ""
            found.append((f"{setting.dataset}-{setting.backbone}{ending}", _draw(setting, lines)))
    names = [NAME if len(found) == 1 else f"{NAME}-{make_safe(name)}" for name, _ in found]
    drawings = tuple(render(name, "haul", draw) for name, (_, draw) in zip(names, found, strict=True))
    return Noted(drawings, join_notes(*notes))


def collect_lines(runs: Runs, group: LifeGroup) -> Noted[dict[int, list[HaulLine]]]:
    """Severity -> every series on a long haul that has the answers of the frozen model to compare with."""
    hauls: dict[int, list[Series]] = {}
    for one in group.series:
        scenario = find_scenario(one)
        if one.kind is not LineKind.BASELINE and scenario.order == HAUL:
            hauls.setdefault(scenario.severity, []).append(one)
    lines: dict[int, list[HaulLine]] = {}
    notes: list[tuple[str, ...]] = []
    for severity, series in sorted(hauls.items(), reverse=True):
        for one in tell_apart(sort_series(series)):
            measured = [measure_gains(runs, group, row) for row in one.rows]
            notes += [gains.notes for gains in measured]
            known = [gains.value for gains in measured if gains.value is not None]
            if known:
                line = HaulLine(one.label, one.kind, 100 * np.mean(known, 0), len(known))
                lines.setdefault(severity, []).append(line)
    return Noted(lines, join_notes(*notes))


def _draw(setting: Setting, lines: Sequence[HaulLine]) -> Draw:
    def draw(axes: Axes) -> str:
        ends = []
        styles = style_lines({line.label: line.kind for line in lines})
        for line in lines:
            style = {key: value for key, value in styles[line.label].items() if key != "marker"} | {"linewidth": 1.0}
            images = WINDOW * np.arange(1, len(line.gains) + 1)
            axes.plot(images, line.gains, **style)
            ends.append((line.label, float(images[-1]), float(line.gains[-1]), str(style["color"])))
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

    return draw
