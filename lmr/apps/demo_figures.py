"""Pictures of results: matplotlib without a display, one function per picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmr.data.corruptions import corrupt_batch
from lmr.data.sets.pocket_world import CLASSES, SHAPES, draw

if TYPE_CHECKING:
    from lmr.apps.demo import Demo

STYLES: dict[str, dict[str, Any]] = {
    "zero-shot": {"color": "#333333", "linestyle": "--"},
    "TDA": {"color": "#7fb3d5"},
    "ECALP": {"color": "#2471a3"},
    "TENT": {"color": "#f0b27a"},
    "ETA": {"color": "#b9770e"},
    "BATCLIP": {"color": "#82c99d"},
    "MINT": {"color": "#1e8449"},
    "BITTA": {"color": "#af7ac5"},
    "BC alone": {"color": "#8c9fb5"},
    "PMR": {"color": "#e8a33d"},
    "PMR+AM": {"color": "#4a9d5b"},
    "PMR+BC": {"color": "#9467bd"},
    "LMR": {"color": "#d1343a", "linewidth": 2.4},
}


def draw_demo(demo: Demo, labels: Sequence[str], path: Path, severity: int, seed: int) -> None:
    """One column per corruption: what it does to pictures, running accuracy, share of the most predicted class."""
    figure, axes = plt.subplots(
        3, len(demo.runs), figsize=(3.3 * len(demo.runs), 8.2), squeeze=False, height_ratios=(0.55, 1, 0.8)
    )
    curves = {domain: {label: runs[label].curves() for label in labels} for domain, runs in demo.runs.items()}
    top = max(share[len(share) // 20 :].max() for pairs in curves.values() for _, share in pairs.values())
    for column, (domain, pairs) in enumerate(curves.items()):
        pictures, accuracy, share = axes[:, column]
        _show_pictures(pictures, domain, severity, seed)
        pictures.set_title(domain.replace("_", " "), fontsize=12)
        for label, (right, crowded) in pairs.items():
            start = max(1, len(right) // 20)  # the first answers alone say little
            seen = np.arange(start, len(right) + 1)
            style: dict[str, Any] = {"linewidth": 1.5, **STYLES.get(label, {})}
            accuracy.plot(seen, 100 * right[start - 1 :], label=label, **style)
            share.plot(seen, 100 * crowded[start - 1 :], **style)
        # Every panel has its own scale: what a method gains is small beside what the corruptions differ in.
        low, high = accuracy.get_ylim()
        accuracy.set_ylim(max(0, low - 1), min(100, high + 1))
        share.axhline(100 / len(CLASSES), color="#bbbbbb", linewidth=1)
        share.set_ylim(0, 105 * top)
        share.set_xlabel("pictures seen")
    axes[1, 0].set_ylabel(f"accuracy so far, %\n(clean pictures: {100 * demo.clean.accuracy:.1f})")
    axes[2, 0].set_ylabel("most predicted class, %\n(grey: its fair share)")
    handles, names = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False, fontsize=11)
    figure.suptitle(f"A small vision-language model on streams of corrupted pictures, severity {severity} of 5", y=0.99)
    figure.tight_layout(rect=(0, 0.045, 1, 0.99))
    _save(figure, path)


def draw_world(path: Path, seed: int) -> None:
    """A contact sheet with one picture of every class, one row per shape."""
    pictures, scene = draw(range(4000), seed)
    first = [int(np.flatnonzero(scene.label == label)[0]) for label in range(len(CLASSES))]
    columns = len(CLASSES) // len(SHAPES)
    sheet = _tile(pictures[first], columns)
    figure, axis = plt.subplots(figsize=(8.6, 8.2))
    axis.imshow(sheet, interpolation="nearest")
    size = pictures.shape[1]
    axis.set_yticks([size * (k + 0.5) for k in range(len(SHAPES))], SHAPES)
    finishes = [name.rsplit(" ", 1)[0] for name in CLASSES[:columns]]
    axis.set_xticks([size * (k + 0.5) for k in range(columns)], finishes, rotation=40, ha="right")
    axis.tick_params(length=0)
    axis.set_title("The pocket world: one picture of each of the 100 classes")
    figure.tight_layout()
    _save(figure, path)


def _show_pictures(axis: Axes, domain: str, severity: int, seed: int) -> None:
    clean, _ = draw(range(4), seed)
    changed = corrupt_batch(clean, domain, severity, seed=seed, constants="cifar")
    axis.imshow(_tile(np.concatenate([clean, changed]), 4), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([clean.shape[1] * 0.5, clean.shape[1] * 1.5], ["clean", "changed"], fontsize=8)
    axis.tick_params(length=0)


def _tile(pictures: np.ndarray, columns: int) -> np.ndarray:
    """[N, H, W, 3] to one picture with ``columns`` in a row."""
    count, height, width, channels = pictures.shape
    grid = pictures.reshape(count // columns, columns, height, width, channels)
    return grid.transpose(0, 2, 1, 3, 4).reshape(count // columns * height, columns * width, channels)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
