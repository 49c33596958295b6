"""The look of figures: a drawing in two formats, colours and line styles.

Made for print: one column wide, text of 8 points, Okabe and Ito's colours (safe for colour-blind readers), a different
line style for each line, names at the lines rather than in a legend.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmr.core.extras import require
from lmr.report.traits import LineKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    "lines.markersize": 3.5, "svg.fonttype": "none", "svg.hashsalt": "figure", "figure.constrained_layout.use": True,
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A drawn figure: the name of its files, its number, its caption, and both formats of it."""

    name: str
    number: str
    caption: str
    svg: str
    png: bytes

    def write(self, folder: Path) -> None:
        """Write both formats into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.svg").write_text(self.svg, encoding="utf-8")
        (folder / f"{self.name}.png").write_bytes(self.png)


Draw = Callable[["Axes"], str]  # draws and returns the caption; empty if there are no numbers


def style_lines(kinds: Mapping[str, LineKind]) -> dict[str, dict[str, Any]]:
    """Return a style for each line: our method in its own colour, the baseline in grey, others in turn."""
    styles: dict[str, dict[str, Any]] = {}
    others = 0
    for name, kind in kinds.items():
        if kind is LineKind.OURS:
            styles[name] = OURS
        elif kind is LineKind.BASELINE:
            styles[name] = PLAIN
        else:
            styles[name] = {
                "color": PALETTE[others % 6], "linestyle": DASHES[1 + others % 5], "marker": MARKERS[others % 6],
            }  # fmt: skip
            others += 1
    return styles


def remove_markers(styles: Mapping[str, Mapping[str, Any]], **more: Any) -> dict[str, dict[str, Any]]:
    """Return the styles for lines without markers, with ``more`` properties."""
    return {name: {key: v for key, v in style.items() if key != "marker"} | more for name, style in styles.items()}


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
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


def render(number: str, draw: Draw) -> Drawing | None:
    """Draw one figure in both formats; no date and no random ids, so that the same runs give the same files."""
    require("matplotlib", "bench", "A figure")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE)
        FigureCanvasAgg(figure)
        if not (caption := draw(figure.add_subplot())):
            return None
        content = {"svg": io.BytesIO(), "png": io.BytesIO()}
        figure.savefig(content["svg"], format="svg", metadata={"Date": None})
        figure.savefig(content["png"], format="png", dpi=DPI, metadata={"Software": None})
    return Drawing(f"figure-{number}", number, caption, content["svg"].getvalue().decode(), content["png"].getvalue())
