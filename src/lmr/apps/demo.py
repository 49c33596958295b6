"""``lmr demo``: the plan ``demo``, run by the bench, with its tables printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from lmr.bench.plans.plan import Part, Plan, read_plan
from lmr.bench.running.bench import run_bench
from lmr.bench.running.row import Row, read_samples
from lmr.bench.table import format_table
from lmr.core.errors import LmrError
from lmr.core.files import check_folder
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import CLEAN
from lmr.report.statistics import Difference, compare_answers
from lmr.report.traits import LineKind, kind_of

PLAN = "demo"


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


@dataclass(frozen=True)
class Comparison:
    """One table: results by the label of the entry and by the domain of the stream."""

    title: str
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


def run_demo(out: Path, images: int | None = None, batch_size: int | None = None, severity: int | None = None) -> None:
    """Run the plan in the folder ``out`` and print its tables; finished runs are not run again.

    What is not given is as the plan says. At most all images of the set are used.
    """
    plan = read_plan(PLAN, {"images": images, "batch_sizes": batch_size, "severities": severity})
    check_folder(out, ("rows.jsonl",))
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
    comparisons, clean = gather_results(plan.parts, outcome.rows, out)
    for comparison in comparisons:
        print(f"\n{comparison.title}, accuracy in %:\n")
        print(format_comparison(comparison))
    threads = outcome.rows[0].versions["threads"]
    fair = 100 / len(dataset.classes)
    print(f"\nOn clean images the frozen model has an accuracy of {100 * clean:.1f} %.")
    print("gain: of the mean, in points, with its 95 % interval over images (one in all streams is one).")
    print(f"top class: share of the most predicted class in % (fair: {fair:.3g}); ms: per image, threads: {threads}.")
    print(f"\nRan for {outcome.seconds:.0f} s. {out / 'rows.jsonl'} has all results with their protocol;")
    print(f"'lmr report {out}' makes tables and figures of them.")
    print(f"\n{_advise_longer(count, available)}")


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


def gather_results(parts: Sequence[Part], rows: Sequence[Row], folder: Path) -> tuple[list[Comparison], float]:
    """Return the comparisons on corrupted streams, and the accuracy of the frozen model on clean images."""
    found = {(row.spec, row.domain): StreamResult(row, folder) for row in rows}
    comparisons, clean = [], float("nan")
    for part in parts:
        results = {
            entry.label: {domain: found[entry.spec, domain] for domain in part.corruptions} for entry in part.methods
        }
        if part.corruptions == (CLEAN,):
            clean = next(iter(results.values()))[CLEAN].accuracy
        else:
            comparisons.append(Comparison(part.title, results))
    return comparisons, clean


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
