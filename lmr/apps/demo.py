"""``lmr demo``: the plan ``demo``, run by the bench, with its tables printed and its figures drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmr.bench.columns import align
from lmr.bench.plans.plan import Part, read_plan
from lmr.bench.running.bench import run_bench
from lmr.bench.running.metrics import running_accuracy, running_top_share
from lmr.bench.running.row import Row, read_samples
from lmr.core.errors import LmrError
from lmr.core.files import check_folder
from lmr.data.sets.catalogue import open_dataset
from lmr.data.sets.dataset import CLEAN

PLAN = "demo"
FIGURES = ("demo.png", "ablation.png")  # of the comparisons of the plan, in their order
WORLD = "world.png"
LONG = 5000  # images after which the methods differ clearly


@dataclass(frozen=True)
class StreamResult:
    """The row of one method on one stream, and where its answers are."""

    row: Row
    folder: Path

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.row.metrics["accuracy"] or 0.0

    @property
    def top_share(self) -> float:
        """Share of the most predicted class."""
        return self.row.metrics["top_share"] or 0.0

    @property
    def ms_per_image(self) -> float:
        """Milliseconds of a step per image."""
        return self.row.metrics["ms_per_image"] or 0.0

    @cached_property
    def curves(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Running accuracy and running share of the most predicted class: [N] each."""
        samples, classes = read_samples(self.folder, self.row.run), int(self.row.protocol["classes"])
        return running_accuracy(samples["predicted"], samples["true"]), running_top_share(samples["predicted"], classes)


@dataclass(frozen=True)
class Comparison:
    """One table and one figure: results by the label of the contender and by the domain of the stream."""

    title: str
    dataset: str
    severity: int
    results: dict[str, dict[str, StreamResult]]

    @property
    def domains(self) -> list[str]:
        """The streams that all contenders answered."""
        return list(next(iter(self.results.values())))


@dataclass(frozen=True)
class Demo:
    """The comparisons of the plan, and the accuracy of the frozen model on clean images."""

    comparisons: list[Comparison]
    clean: float


def run_demo(out: Path, images: int = 1280, batch_size: int = 64, severity: int = 5) -> Demo:
    """Run the plan in the folder ``out``, print its tables and write its figures; finished runs are not run again."""
    plan = read_plan(PLAN, {"images": images, "batch_sizes": batch_size, "severities": severity})
    check_folder(out, ("rows.jsonl", *FIGURES, WORLD))
    from lmr.apps.demo_figures import draw_comparison, draw_world  # matplotlib takes a second to import

    dataset = open_dataset(plan.parts[0].datasets[0])
    count = min(images, len(dataset.labels(CLEAN)))
    first, last = dataset.classes[0], dataset.classes[-1]
    print(f"The {plan.parts[0].backbones[0]} model knows {len(dataset.classes)} classes, from {first!r} to {last!r}.")
    print(f"Streams of {count} images in batches of {batch_size}, severity {severity} of 5; no labels are used.")
    outcome = run_bench(plan, out, brief=True)
    if outcome.failures:
        raise LmrError(outcome.describe())
    demo = gather_results(plan.parts, outcome.rows, out)
    for comparison in demo.comparisons:
        print(f"\n{comparison.title}, accuracy in %:\n")
        print(format_table(comparison))
    threads = outcome.rows[0].versions["threads"]
    fair = 100 / len(dataset.classes)
    print(f"\nOn clean images the frozen model has an accuracy of {100 * demo.clean:.1f} %.")
    print(f"top class: share of the most predicted class in % (fair: {fair:.3g}); ms: per image, threads: {threads}.")
    for comparison, name in zip(demo.comparisons, FIGURES, strict=True):
        draw_comparison(comparison, demo.clean, out / name)
    draw_world(out / WORLD)
    print(f"\nRan for {outcome.seconds:.0f} s. Files:")
    for comparison, name in zip(demo.comparisons, FIGURES, strict=True):
        print(f"  {out / name}  {comparison.title.partition(' (')[0]}: accuracy and concentration over each stream")
    print(f"  {out / WORLD}  the images the model was made for")
    print(f"  {out / 'rows.jsonl'}  all results with their protocol; 'lmr report {out}' makes tables and figures")
    if count < LONG:
        print(f"\nMethods need a longer stream to differ: lmr demo --images {LONG} takes a few minutes.")
    return demo


def gather_results(parts: Sequence[Part], rows: Sequence[Row], folder: Path) -> Demo:
    """Sort the rows into the parts of the plan: comparisons on corrupted streams, and one part on clean images."""
    found = {(row.spec, row.domain): StreamResult(row, folder) for row in rows}
    comparisons, clean = [], float("nan")
    for part in parts:
        results = {
            contender.label: {domain: found[contender.spec, domain] for domain in part.corruptions}
            for contender in part.methods
        }
        if part.corruptions == (CLEAN,):
            clean = next(iter(results.values()))[CLEAN].accuracy
        else:
            comparisons.append(Comparison(part.title, part.datasets[0], part.severities[0], results))
    return Demo(comparisons, clean)


def format_table(comparison: Comparison) -> str:
    """Accuracy of the contenders on each stream, their mean, concentration and cost, as aligned text."""
    lines = [["", *(name.replace("_", " ") for name in comparison.domains), "mean", "top class", "ms"]]
    for label, by_domain in comparison.results.items():
        results = list(by_domain.values())
        mean = sum(result.accuracy for result in results) / len(results)
        share = sum(result.top_share for result in results) / len(results)
        cost = sum(result.ms_per_image for result in results) / len(results)
        numbers = [*(f"{100 * result.accuracy:.1f}" for result in results), f"{100 * mean:.1f}", f"{100 * share:.1f}"]
        lines.append([label, *numbers, f"{cost:.2f}"])
    return align(lines)
