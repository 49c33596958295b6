"""The figures of the demonstration: matplotlib without a display, one function per figure."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lmr.core.registry import find_method
from lmr.core.spec import parse_spec
from lmr.core.traits import Role
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import CLEAN, Dataset

if TYPE_CHECKING:
    from lmr.apps.demo import Comparison
    from lmr.bench.running.row import Row

BASELINE: dict[str, Any] = {"color": "#333333", "linestyle": "--"}
OURS: dict[str, Any] = {"color": "#d1343a", "linewidth": 2.4}
SHOWN = 4  # images above every column
PALETTE = ("#7fb3d5", "#2471a3", "#f0b27a", "#b9770e", "#82c99d", "#1e8449", "#af7ac5", "#8c9fb5", "#c2a878")


def draw_comparison(comparison: Comparison, clean: float, path: Path) -> None:
    """One column per stream: what the corruption does to images, running accuracy, share of the most predicted class.

    ``clean`` is the accuracy of the frozen model on clean images, for the label of the axis.
    """
    domains, labels = comparison.domains, list(comparison.results)
    figure, axes = plt.subplots(
        3, len(domains), figsize=(3.6 * len(domains), 8.4), squeeze=False, height_ratios=(0.6, 1, 0.8)
    )
    styles = choose_styles({label: comparison.results[label][domains[0]].row for label in labels})
    classes = len(open_dataset(comparison.dataset).classes)
    top = max(_skip_start(result.curves[1]).max() for by in comparison.results.values() for result in by.values())
    for column, domain in enumerate(domains):
        samples, accuracy, share = axes[:, column]
        _show_images(samples, comparison.dataset, domain, comparison.severity, named=column == 0)
        samples.set_title(domain.replace("_", " "), fontsize=12)
        for label in labels:
            right, crowded = comparison.results[label][domain].curves
            seen = _skip_start(np.arange(1, len(right) + 1))
            accuracy.plot(seen, 100 * _skip_start(right), label=label, **styles[label])
            share.plot(seen, 100 * _skip_start(crowded), **styles[label])
        # Every panel has its own scale: what a method gains is small compared with the differences between corruptions.
        low, high = accuracy.get_ylim()
        accuracy.set_ylim(max(0, low - 1), min(100, high + 1))
        share.axhline(100 / classes, color="#bbbbbb", linewidth=1)
        share.set_ylim(0, 105 * top)
        share.set_xlabel("images seen")
    axes[1, 0].set_ylabel(f"accuracy so far, %\n(clean images: {100 * clean:.1f})")
    axes[2, 0].set_ylabel("most predicted class, %\n(grey: its fair share)")
    handles, names = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False, fontsize=12)
    severity = comparison.severity
    figure.suptitle(
        f"A small vision-language model on streams of corrupted photographs, severity {severity} of 5", y=0.99
    )
    figure.tight_layout(rect=(0, 0.045, 1, 0.99))
    _save(figure, path)


def choose_styles(rows: dict[str, Row]) -> dict[str, dict[str, Any]]:
    """How each line is drawn: the baseline dashed, our method with all of its parts in red, the others in turn."""
    colours = itertools.cycle(PALETTE)
    styles: dict[str, dict[str, Any]] = {}
    for label, row in rows.items():
        method, values = find_method(row.method), parse_spec(row.spec)[1]
        if method.role is Role.BASELINE:
            style = BASELINE
        elif method.role is Role.OURS and all(values[part] for part in method.parts):
            style = OURS
        else:
            style = {"color": next(colours)}
        styles[label] = {"linewidth": 1.5, **style}
    return styles


def draw_sheet(dataset: Dataset, path: Path, columns: int = 10) -> None:
    """A contact sheet of a dataset: one row per class with the first of its images."""
    labels = dataset.labels(CLEAN)
    places = [place for label in range(len(dataset.classes)) for place in np.flatnonzero(labels == label)[:columns]]
    arrays = np.stack(dataset.read(CLEAN, 0, places))
    figure, axis = plt.subplots(figsize=(9.0, 8.2))
    axis.imshow(_tile(arrays, columns), interpolation="nearest")
    size = arrays.shape[1]
    axis.set_yticks([size * (k + 0.5) for k in range(len(dataset.classes))], dataset.classes, fontsize=12)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.set_title(f"{columns} photographs of each class\nfrom the {dataset.protocol['pictures']}")
    figure.tight_layout()
    _save(figure, path)


def _skip_start(values: NDArray[Any]) -> NDArray[Any]:
    """Without the first answers of a stream, which alone say little."""
    return values[max(1, len(values) // 20) - 1 :]


def _show_images(axis: Axes, dataset: str, domain: str, severity: int, named: bool) -> None:
    """One image of each of the first classes to occur in the set, clean above and corrupted below."""
    opened = open_dataset(dataset)
    places = np.sort(np.unique(opened.labels(CLEAN), return_index=True)[1])[:SHOWN]
    arrays = np.stack([*opened.read(CLEAN, severity, places), *opened.read(domain, severity, places)])
    axis.imshow(_tile(arrays, len(places)), interpolation="nearest")
    axis.set_xticks([])
    height = arrays.shape[1]
    axis.set_yticks([height * 0.5, height * 1.5], ["clean", "corrupted"] if named else ["", ""], fontsize=9)
    axis.tick_params(length=0)


def _tile(arrays: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """[N, H, W, 3] to one image with ``columns`` in a row."""
    count, height, width, channels = arrays.shape
    grid = arrays.reshape(count // columns, columns, height, width, channels)
    return grid.transpose(0, 2, 1, 3, 4).reshape(count // columns * height, columns * width, channels)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
