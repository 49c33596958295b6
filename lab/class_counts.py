"""The gain over zero-shot against the number of classes: the figure behind the preset ``auto``."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from lab.command import build_parser, run_command
from lmr.bench.running.row import Row
from lmr.core.registry import find_method
from lmr.data.dataset import BEFORE_CHOICE
from lmr.report.drawing import OURS, Drawing, label_ends, render, style_lines
from lmr.report.figures import mark_values, plot_lines, widen
from lmr.report.groups import RunGroup, Setting, Settings, find_common, gather
from lmr.report.runs import read_runs
from lmr.report.traits import LineKind, expand_spec, find_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DESCRIPTION = """\
Draw the gain over zero-shot against the number of classes, from runs of the plans classes-*, as PNG and SVG."""

EXAMPLES = """\
examples:
  python -m lab.class_counts results/classes --out figures"""

FEW_CLASSES = 2  # a method that adapts its defaults to the number of classes does so for the smallest one


@dataclass(frozen=True)
class ClassCounts:
    """The lines of one figure: values of arguments -> number of classes -> points above zero-shot."""

    method: str
    dataset: str
    batch_size: int
    images: int
    gains: dict[str, dict[int, float]]  # means over subsets of classes
    domains: int
    limit: int | None  # the number of classes from which on the method keeps its defaults


def collect_class_counts(settings: Settings) -> list[ClassCounts]:
    """Return the figures that runs on subsets of classes make: at least two numbers of classes and two lines.

    The lines are values of the arguments that a method sets by the number of classes. Runs with other weights,
    precision or numbers of images are never averaged: the largest set of them is drawn. The few classes of a small
    subset have fewer images in all, and their runs complete it.
    """
    gains = [gain for setting, groups in settings.items() for gain in _list_class_gains(setting, groups)]
    if not gains:
        return []
    found = []
    for _, frame in pd.DataFrame(gains).groupby(["whole", "method", "batch_size"], sort=False):
        alike = [own for _, own in frame.groupby(["images", "weights", "dtype"], sort=False)]
        enough = [own for own in alike if own["classes"].nunique() > 1 and own["values"].nunique() > 1]
        if enough:
            chosen = max(enough, key=len)
            first = chosen.iloc[0]
            complete = _complete(chosen, alike)
            lines = {
                str(values): cast("dict[int, float]", own.groupby("classes")["points"].agg(fmean).to_dict())
                for values, own in complete.groupby("values", sort=False)
            }
            whole, name, size, images = first[["whole", "method", "batch_size", "images"]]
            domains = int(complete["domains"].max())
            found.append(ClassCounts(name, whole.dataset, size, images, lines, domains, find_class_limit(name)))
    return found


def _complete(chosen: pd.DataFrame, alike: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the gains, with those of fewer classes on fewer images, the largest such number first."""
    images, *model = chosen[["images", "weights", "dtype"]].iloc[0]
    others = [own for own in alike if own["images"].iloc[0] < images and [*own[["weights", "dtype"]].iloc[0]] == model]
    for other in sorted(others, key=lambda own: -own["images"].iloc[0]):
        chosen = pd.concat([chosen, other[other["classes"] < chosen["classes"].min()]])
    return chosen


def _list_class_gains(setting: Setting, groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    """Return the gains over zero-shot on one dataset, on one kind of its data and prompts.

    Digests of data and prompts say nothing about those of other classes, so each dataset has its own choice of them.
    """
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], list[dict[str, Any]]]] = {}
    whole = replace(setting, dataset=setting.dataset.partition(BEFORE_CHOICE)[0])
    for one in groups:
        row, values = one.first, describe_class_values(one.first) if one.watch is None else ""
        bases = (o for o in groups if o.kind is LineKind.BASELINE and o.first.images == row.images)
        base = next((other for other in bases if other.ground == one.ground), None)
        common = find_common([one, base]) if base else []
        classes = row.protocol.get("classes", "")
        if base is None or not values or not common or not classes.isdecimal():
            continue
        weights, dtype, *data = one.ground
        points = _average(one, common) - _average(base, common)
        key = row.method, row.batch_size, row.images, weights, dtype
        names = ("method", "batch_size", "images", "weights", "dtype")
        gain = {"whole": whole, "values": values, "classes": int(classes), "points": points, "domains": len(common)}
        found.setdefault(key, {}).setdefault(tuple(data), []).append(gain | dict(zip(names, key, strict=True)))
    return [gain for kinds in found.values() for gain in max(kinds.values(), key=len)]


def _average(one: RunGroup, domains: Sequence[str]) -> float:
    return float(one.frame[one.frame["domain"].isin(domains)]["accuracy"].mean())


def describe_class_values(row: Row) -> str:
    """Return the values of the arguments that the method sets by the number of classes.

    Empty if it sets none, if other arguments are changed, or if the method is not loaded.
    """
    method = find_known(row.method)
    keys = method.choose_values(FEW_CLASSES).keys() if method else ()
    values = expand_spec(row.spec) if keys else {}
    changed = {key for key, value in values.items() if value != getattr(method, key)} - set(keys)
    return "" if changed else ", ".join(f"{key}={values[key]:g}" for key in keys)


def find_class_limit(name: str) -> int | None:
    """Return the number of classes from which on a method keeps its defaults."""
    method = find_method(name)
    return next((count for count in range(FEW_CLASSES, 1000) if not method.choose_values(count)), None)


def _draw_class_counts(axes: Axes, counts: ClassCounts) -> str:
    ends = plot_lines(axes, counts.gains, style_lines(dict.fromkeys(counts.gains, LineKind.OTHER)))
    axes.axhline(0, color="#999999", linewidth=0.7)
    if counts.limit is not None:
        axes.axvline(counts.limit, color=OURS["color"], linewidth=0.9, linestyle=":")
    axes.set_xscale("log")
    mark_values(axes, sorted({classes for gains in counts.gains.values() for classes in gains}))
    axes.set(xlabel="classes", ylabel="gain over zero-shot, points")
    widen(axes)
    label_ends(axes, ends)
    return (
        f"Gain over zero-shot against the number of classes, on subsets of {counts.dataset} in batches of "
        f"{counts.batch_size}, means over {counts.domains} domains, up to {counts.images} images each. Left of the "
        "dotted line the preset 'auto' leaves the defaults."
    )


def draw_class_counts(settings: Settings) -> list[Drawing]:
    """Return a figure for each dataset, method and batch size."""
    drawings = []
    for counts in collect_class_counts(settings):
        name = f"classes-{counts.dataset}-{counts.method}-{counts.batch_size}"
        drawings.append(render(name, "classes", functools.partial(_draw_class_counts, counts=counts)))
    return drawings


def run(options: argparse.Namespace) -> str | None:
    """Write the figures and print their captions; complain if the runs make none."""
    drawings = draw_class_counts(gather(read_runs(options.runs).rows))
    for drawing in drawings:
        drawing.write(options.out)
        print(f"{options.out / drawing.name}.png: {drawing.caption}")
    return None if drawings else "These runs make no figure: it needs two numbers of classes and two pairs of values."


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.class_counts`` and return its exit code."""
    parser = build_parser("class_counts", DESCRIPTION, EXAMPLES)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="folders that lmr bench or lmr report --pack wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the figures are written")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
