"""``python -m lab.watch_trials``: measure what a watch notices, how soon, and what it costs."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.command import build_parser, run_command
from lmr.bench.inputs import find_dataset, load_backbone, load_classifier
from lmr.core.errors import LmrError
from lmr.core.progress import show_progress
from lmr.core.registry import create
from lmr.data.dataset import Dataset
from lmr.models.backbone import DEFAULT_TEMPLATES
from lmr.watch.health import Level
from lmr.watch.settings import WatchSettings, read_watch
from lmr.watch.watched import Watched

DESCRIPTION = """\
Try the watch on streams that make a method collapse (a rate ten times too high, one class for a long time, noise
instead of images, a sudden change of corruption), on one where the answers of the published LMR spread (80 % of the
images are of one class), and on healthy ones (steady, long runs of one class, a change).
Each stream is answered by the frozen model, by the method alone, by the watched method and by the method that is
reset every N steps. The table gives accuracies in %, the steps from the onset of the trouble until it was noticed and
until something was done, the steps after which the stream is never again a point below zero-shot (plain, watched and
reset), and the numbers of alarms, with their names, and of rollbacks, which must be 0 where the stream is healthy."""

EXAMPLES = """\
examples:
  python -m lab.watch_trials --steps 200                              a short form, on drawings
  python -m lab.watch_trials --data photo-c --model photo --seed 2    confirm thresholds on photographs
  python -m lab.watch_trials majority --data photo-c --model photo --domain clean --dominant 5 --batch-size 8
                                                                      80 % dogs: the answers of LMR spread
  python -m lab.watch_trials --watch "watch(drift=0.1)"               other thresholds
  python -m lab.watch_trials --watch report --traces signals          the signals of every step, without acting"""

CHANGED, SEVERITY = "gaussian_noise", 5  # the corruption after a sudden change; the severity of all
RUN = 50  # steps of one class in a row, in the stream of long runs
IMAGES = 1000  # of the set that are shown
MAJORITY = 0.8  # of the images are of the dominant class, in the stream with a majority
KINDS = ("steady", "one class", "noise", "change", "runs", "majority")
WINDOW, NEAR = 20, 0.01  # steps of an accuracy that is compared with zero-shot's; a stream within a point is back
HEAD = """\
| stream | method | zero-shot | plain | watched | reset | noticed | acted \
| below: plain | watched | reset | alarms | rollbacks |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


@dataclass(frozen=True)
class WatchTrial:
    """A method on a kind of stream; a healthy one must be left alone."""

    name: str
    method: str
    kind: str
    healthy: bool = False


# Rates that nobody would choose are meant to collapse. The preset "auto" takes the values for the number of classes.
_FAST, _LMR = "tent(lr=2.5e-3)", "lmr(preset='auto')"
TRIALS = (
    WatchTrial("rate ten times too high", _FAST, "steady"),
    WatchTrial("rate ten times too high, margins", "lmr(preset='auto', lr=1e-2)", "steady"),
    WatchTrial("one class, then all", _FAST, "one class"),
    WatchTrial("noise instead of images", _FAST, "noise"),
    WatchTrial("sudden change of corruption", _FAST, "change"),
    WatchTrial("majority", _LMR, "majority"),
    WatchTrial("steady", _LMR, "steady", healthy=True),
    WatchTrial("one class, then all, margins", _LMR, "one class", healthy=True),
    WatchTrial("long runs of one class", _LMR, "runs", healthy=True),
    WatchTrial("long runs of one class, paced", "lmr_variants(preset='auto', pace='image')", "runs", healthy=True),
    WatchTrial("change of corruption, margins", _LMR, "change", healthy=True),
    WatchTrial("steady, published rate", "tent", "steady", healthy=True),  # it may fall below zero-shot by itself
)


@dataclass(frozen=True)
class WatchBatch:
    """uint8 images [B, H, W, 3] and their labels [B]; -1 where an image shows nothing."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def find_onset(kind: str, steps: int) -> int:
    """Return the step at which the trouble of a stream begins."""
    return {"noise": steps // 4, "one class": steps // 2, "change": steps // 2}.get(kind, 0)


def show(
    dataset: Dataset, kind: str, steps: int, batch_size: int, seed: int, domain: str, dominant: int | None = None
) -> Iterator[WatchBatch]:
    """Yield the batches of a stream under the corruption ``domain``, or "clean"; images repeat.

    One class: a single class for half of the steps, then all classes. Majority: 80 % of the images are of one class,
    the rest of all others. ``dominant`` is the first single class or the majority; None draws it from the seed.
    """
    random, onset = np.random.default_rng(seed), find_onset(kind, steps)
    labels = dataset.labels(domain)[:IMAGES]
    kept: dict[str, NDArray[Any]] = {}
    chosen = int(random.choice(labels))
    if dominant is not None:
        if dominant not in labels:
            raise LmrError(f"The images that are shown have no class {dominant}; choose from 0 to {labels.max()}.")
        chosen = dominant
    for step in range(steps):
        if kind == "runs" and step % RUN == 0 and (step or dominant is None):
            chosen = int(random.choice(labels))
        single = kind == "runs" or (kind == "one class" and step < onset)
        places = np.flatnonzero(labels == chosen) if single else np.arange(len(labels))
        index = random.choice(places, batch_size)
        if kind == "majority":
            own, other = (
                random.choice(np.flatnonzero(mask), batch_size) for mask in (labels == chosen, labels != chosen)
            )
            index = np.where(random.random(batch_size) < MAJORITY, own, other)
        shown = CHANGED if kind == "change" and step >= onset else domain
        if shown not in kept:
            kept[shown] = np.stack(dataset.read(shown, SEVERITY, range(len(labels))))
        images, truth = kept[shown][index], labels[index]
        if kind == "noise" and onset <= step < steps // 2:
            images = random.integers(0, 256, images.shape, np.uint8)
            truth = np.full_like(truth, -1)
        yield WatchBatch(images, truth)


def run_trial(trial: WatchTrial, watch: WatchSettings, options: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Run all methods on one stream; return the row of the table and the measurements of every step."""
    dataset = find_dataset(options.data, options.root)
    classifier = load_classifier(options.model, "float32", "cpu", dataset.classes, DEFAULT_TEMPLATES)
    preprocess = load_backbone(options.model, "float32", "cpu").preprocess
    watched, plain = Watched(create(trial.method, classifier), watch), create(trial.method, classifier)
    simplest = WatchSettings(signals=False, reset_every=options.reset_every)
    methods = (plain, watched, Watched(create(trial.method, classifier), simplest))
    right: list[list[float]] = []
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []  # of all steps: the watch keeps only the last ones
    stream = show(
        dataset, trial.kind, options.steps, options.batch_size, options.seed, options.domain, options.dominant
    )
    with show_progress(trial.name, options.steps, "steps", delay=2.0) as bar:
        for batch in stream:
            images, truth = preprocess(batch.images), torch.from_numpy(batch.labels)
            with torch.no_grad():
                labels = [classifier(images).argmax(1)]
            answers = [method.step(images) for method in methods]
            events += answers[1].info["events"]
            labels += [answer.labels for answer in answers]
            shown = bool((truth >= 0).all())
            right.append([float((one == truth).double().mean()) if shown else np.nan for one in labels])
            accuracies = dict(zip(("zero_shot", "plain", "watched", "reset"), right[-1], strict=True))
            health = {"step": len(right), "health": str(watched.health[0])}
            steps.append(health | accuracies | dataclasses.asdict(watched.signals()))
            bar.advance()
    scores = np.array(right)
    return describe(trial, scores, events, find_onset(trial.kind, options.steps)), steps


def describe(trial: WatchTrial, scores: NDArray[np.float64], events: Sequence[dict[str, Any]], onset: int) -> str:
    """Return the row of the accuracies [steps, 4] of the frozen model, and of the method alone, watched and reset."""
    means = np.nanmean(scores, 0)
    below = [count_below(scores[onset:, k] - scores[onset:, 0]) for k in (1, 2, 3)]
    # A watch that only reports would act where it puts a stream on the level "alarm".
    acting = [
        event["step"] for event in events if event["action"] in ("roll back", "reset") or event["after"] == "alarm"
    ]
    suspicions = [event for event in events if (event["before"], event["after"]) == ("ok", Level.SUSPECTED)]
    causes = Counter(str(alarm) for event in suspicions for alarm in event["alarms"])
    times = [
        next((str(step - onset) for step in found if step > onset), "–")
        for found in ([event["step"] for event in suspicions], acting)
    ]
    healthy = " (healthy)" if trial.healthy and means[1] >= means[0] - NEAR else ""
    alarms = f"{len(suspicions)} ({', '.join(causes)})" if causes else str(len(suspicions))
    cells = [trial.name + healthy, trial.method, *(f"{100 * mean:.1f}" for mean in means), *times, *map(str, below)]
    return f"| {' | '.join([*cells, alarms, str(len(acting))])} |"


def count_below(gain: NDArray[np.float64]) -> int:
    """Return the end of the last window of 20 steps with a mean gain over zero-shot below -1 point; 0 without one."""
    parts = [gain[k : k + WINDOW] for k in range(len(gain) - WINDOW + 1)]
    ends = [k + WINDOW for k, part in enumerate(parts) if np.isfinite(part).any() and np.nanmean(part) < -NEAR]
    return ends[-1] if ends else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials and print the table; return the exit code."""
    parser = build_parser("watch_trials", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("trials", nargs="*", metavar="NAME", help="trials to run (default: all)")
    add("--data", default="photo-c", metavar="NAME", help="a corrupted dataset (default: %(default)s)")
    add("--model", default="photo", metavar="MODEL", help="the model (default: %(default)s)")
    add("--steps", type=int, default=400, metavar="N", help="steps of each stream (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="images per step (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="seed of the streams (default: %(default)s)")
    add("--domain", default="fog", metavar="NAME", help="the corruption, or clean (default: %(default)s)")
    add("--dominant", type=int, metavar="CLASS", help="number of the class that dominates (default: from the seed)")
    add("--reset-every", type=int, default=100, metavar="N", help="steps of the simplest guard (default: %(default)s)")
    add("--watch", default="on", metavar="SPEC", help='the watch, as in "watch(every=8)" (default: %(default)s)')
    add("--traces", type=Path, metavar="DIR", help="where the signals of every step go, a CSV file for each trial")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> str | None:
    """Run the trials and print a row for each."""
    watch = read_watch(options.watch)
    if watch is None or min(options.steps, options.batch_size) < 1:
        return "Give a watch other than off, and at least one step and one image per step."
    if unknown := set(options.trials) - {trial.name for trial in TRIALS}:
        known = ", ".join(repr(trial.name) for trial in TRIALS)
        raise LmrError(f"There is no trial {sorted(unknown)[0]!r}; choose from: {known}.")
    print(HEAD)
    for trial in TRIALS:
        if not options.trials or trial.name in options.trials:
            row, steps = run_trial(trial, watch, options)
            print(row, flush=True)
            if options.traces is not None:
                options.traces.mkdir(parents=True, exist_ok=True)
                with open(options.traces / f"{trial.name}.csv", "w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, fieldnames=list(steps[0]))
                    writer.writeheader()
                    writer.writerows(steps)
    return None


if __name__ == "__main__":
    sys.exit(main())
