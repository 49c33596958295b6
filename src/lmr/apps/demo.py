"""``lmr demo``: the plan ``demo``, run by the bench, with its tables printed and its figures drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.plans.plan import Part, Plan, read_plan
from lmr.bench.running.bench import run_bench
from lmr.bench.running.metrics import running_accuracy, running_top_share
from lmr.bench.running.row import Row, read_samples
from lmr.bench.table import format_table
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.files import check_folder
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import CLEAN
from lmr.report.drawing import remove_markers, style_lines
from lmr.report.statistics import Difference, compare_answers
from lmr.report.traits import LineKind, kind_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLAN = "demo"
FIGURES = ("demo.png", "ablation.png")  # of the comparisons of the plan, in their order
SHOWN = 4  # images above every column


@dataclass(frozen=True)
class StreamResult:
    """The row of one method on one stream, and where its answers are."""

    row: Row
    folder: Path

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.row.metrics["accuracy"] or 0.0

    @cached_property
    def samples(self) -> dict[str, NDArray[Any]]:
        """The answers to all images, in the order of the stream: [N] each."""
        return read_samples(self.folder, self.row.run)

    @cached_property
    def curves(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Running accuracy and running share of the most predicted class: [N] each."""
        samples, classes = self.samples, int(self.row.protocol["classes"])
        return running_accuracy(samples["predicted"], samples["true"]), running_top_share(samples["predicted"], classes)


@dataclass(frozen=True)
class Comparison:
    """One table and one figure: results by the label of the entry and by the domain of the stream."""

    title: str
    dataset: str
    severity: int
    results: dict[str, dict[str, StreamResult]]

    @property
    def domains(self) -> list[str]:
        """The streams that all entries answered."""
        return list(next(iter(self.results.values())))

    @property
    def baseline(self) -> str:
        """The label of the entry that does not adapt, which the others are compared with."""
        for label, by_domain in self.results.items():
            if kind_of(next(iter(by_domain.values())).row) is LineKind.BASELINE:
                return label
        raise LmrError(f"No method of {self.title!r} is a baseline to compare with; add one to the plan.")


@dataclass(frozen=True)
class Demo:
    """The comparisons of the plan, and the accuracy of the frozen model on clean images."""

    comparisons: list[Comparison]
    clean: float


def run_demo(out: Path, images: int | None = None) -> Demo:
    """Run the plan in the folder ``out``, print its tables and write its figures; finished runs are not run again.

    At most all images of the set are used; how many is as the plan says if it is not given.
    """
    plan = read_plan(PLAN, {"images": images})
    check_folder(out, ("rows.jsonl", *FIGURES))
    _load_pyplot()  # or a missing package would be noticed after minutes
    first = plan.parts[0]
    dataset = open_dataset(first.datasets[0])
    available = dataset.count(CLEAN)
    plan, count = _limit_images(plan, available)
    print(f"The {first.backbones[0]} model answers photographs of {len(dataset.classes)} classes:")
    print(f"{', '.join(dataset.classes)}.")
    print(
        f"Streams of {count} images in batches of {first.batch_sizes[0]}, severity {first.severities[0]} of 5; no "
        "labels are used."
    )
    outcome = run_bench(plan, out, brief=True)
    if outcome.failures:
        raise LmrError(outcome.describe())
    demo = gather_results(plan.parts, outcome.rows, out)
    for comparison in demo.comparisons:
        print(f"\n{comparison.title}, accuracy in %:\n")
        print(format_comparison(comparison))
    threads = outcome.rows[0].versions["threads"]
    fair = 100 / len(dataset.classes)
    print(f"\nOn clean images the frozen model has an accuracy of {100 * demo.clean:.1f} %.")
    print("gain: of the mean, in points, with its 95 % interval over images (one in all streams is one).")
    print(f"top class: share of the most predicted class in % (fair: {fair:.3g}); ms: per image, threads: {threads}.")
    for comparison, name in zip(demo.comparisons, FIGURES, strict=True):
        draw_comparison(comparison, demo.clean, out / name)
    print(f"\nRan for {outcome.seconds:.0f} s. Files:")
    for comparison, name in zip(demo.comparisons, FIGURES, strict=True):
        print(f"  {out / name}  {comparison.title.partition(' (')[0]}: accuracy and concentration over each stream")
    print(f"  {out / 'rows.jsonl'}  all results with their protocol; 'lmr report {out}' makes tables and figures")
    print(f"\n{_advise_longer(count, available)}")
    return demo


def _limit_images(plan: Plan, available: int) -> tuple[Plan, int]:
    """Return the plan with at most the available images, and their number; print a note if more were wanted."""
    wanted = plan.parts[0].images or available
    if wanted > available:
        print(f"{wanted} images were requested, but the set has {available}; all of them are used.")
    count = min(wanted, available)
    return replace(plan, parts=tuple(replace(part, images=count) for part in plan.parts)), count


def _advise_longer(count: int, available: int) -> str:
    """Return how to get longer streams, on which methods differ more."""
    lines = ["Methods need a longer stream to differ:"]
    if count < available:
        lines.append(f"  lmr demo --images {available}           every photograph that comes with lmr")
    lines.append("  lmr bench photo --root FOLDER    the whole test sets, once 'lmr fetch' has put them there")
    return "\n".join(lines)


def gather_results(parts: Sequence[Part], rows: Sequence[Row], folder: Path) -> Demo:
    """Sort the rows into the parts of the plan: comparisons on corrupted streams, and one part on clean images."""
    found = {(row.spec, row.domain): StreamResult(row, folder) for row in rows}
    comparisons, clean = [], float("nan")
    for part in parts:
        results = {
            entry.label: {domain: found[entry.spec, domain] for domain in part.corruptions} for entry in part.methods
        }
        if part.corruptions == (CLEAN,):
            clean = next(iter(results.values()))[CLEAN].accuracy
        else:
            comparisons.append(Comparison(part.title, part.datasets[0], part.severities[0], results))
    return Demo(comparisons, clean)


def format_comparison(comparison: Comparison) -> str:
    """Return a table of accuracy on each stream, its mean and gain, concentration and cost."""
    names, baseline = (name.replace("_", " ") for name in comparison.domains), comparison.baseline
    lines = [["", *names, "mean", f"gain over {baseline} (95 %)", "top class", "ms"]]
    for label, by_domain in comparison.results.items():
        results = list(by_domain.values())
        mean, share, cost = (
            sum(result.row.metrics[key] or 0.0 for result in results) / len(results)
            for key in ("accuracy", "top_share", "ms_per_image")
        )
        gain = "" if label == baseline else format_gain(compare_entries(comparison, label, baseline))
        numbers = [*(f"{100 * result.accuracy:.1f}" for result in results), f"{100 * mean:.1f}", gain]
        lines.append([label, *numbers, f"{100 * share:.1f}", f"{cost:.2f}"])
    return format_table(lines)


def compare_entries(comparison: Comparison, label: str, other: str) -> Difference:
    """Return the mean accuracy of one entry minus that of another, with its 95 % interval over images.

    The same image under several corruptions counts as one; every stream has the same weight, as in the mean.
    """
    ours, theirs = comparison.results[label], comparison.results[other]
    gain = compare_answers((ours[domain].samples, theirs[domain].samples, 0) for domain in comparison.domains)
    if gain is None:
        raise LmrError(f"{label} and {other} answered no image in common.")
    return gain


def format_gain(gain: Difference) -> str:
    """Return points of accuracy with their interval, such as "+4.8 (+3.9 to +5.7)"."""
    mean, low, high = (f"{100 * value:+.1f}" for value in (gain.mean, gain.low, gain.high))
    return f"{mean} ({low} to {high})"


def draw_comparison(comparison: Comparison, clean: float, path: Path) -> None:
    """Draw one column per stream: corrupted images, running accuracy, share of the most predicted class.

    ``clean`` is the accuracy of the frozen model on clean images, for the label of the axis.
    """
    domains, labels = comparison.domains, list(comparison.results)
    figure, axes = _load_pyplot().subplots(
        3, len(domains), figsize=(3.6 * len(domains), 8.4), squeeze=False, height_ratios=(0.6, 1, 0.8)
    )
    kinds = {label: kind_of(comparison.results[label][domains[0]].row) for label in labels}
    styles = remove_markers(style_lines(kinds))
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
        # Every panel has its own scale: a method gains little compared with the differences between corruptions.
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
    figure.savefig(path, dpi=110)
    _load_pyplot().close(figure)


def _skip_start(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values without those of the first images, whose accuracy alone says little."""
    return values[max(1, len(values) // 20) - 1 :]


def _show_images(axis: Axes, dataset: str, domain: str, severity: int, named: bool) -> None:
    """Show one image of each of the first classes in the set, clean above and corrupted below."""
    opened = open_dataset(dataset)
    places = np.sort(np.unique(opened.labels(CLEAN), return_index=True)[1])[:SHOWN]
    arrays = np.stack([*opened.read(CLEAN, severity, places), *opened.read(domain, severity, places)])
    axis.imshow(_tile(arrays, len(places)), interpolation="nearest")
    axis.set_xticks([])
    height = arrays.shape[1]
    axis.set_yticks([height * 0.5, height * 1.5], ["clean", "corrupted"] if named else ["", ""], fontsize=9)
    axis.tick_params(length=0)


def _tile(arrays: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Return images [N, H, W, 3] as one image with ``columns`` in a row."""
    count, height, width, channels = arrays.shape
    grid = arrays.reshape(count // columns, columns, height, width, channels)
    return grid.transpose(0, 2, 1, 3, 4).reshape(count // columns * height, columns * width, channels)


def _load_pyplot() -> Any:
    """Return matplotlib's pyplot without a display; its import takes a second."""
    require("matplotlib", "bench", "lmr demo").use("agg")
    return require("matplotlib.pyplot", "bench", "lmr demo")
