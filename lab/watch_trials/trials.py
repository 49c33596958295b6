"""Run trials: each method alone, watched, and reset every N steps, and the frozen model, on the same images.

Every finished trial is a line of a JSON file; trials that have a line are not run again. The signals of every step can
be written to a CSV file for each trial, for choosing thresholds.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.watch_trials.streams import (
    DOMAIN,
    SEVERITY,
    WatchBatch,
    WatchTrial,
    find_onset,
    list_domains,
    list_trials,
    show,
)
from lmr.bench.inputs import describe_backbone, find_dataset, load_backbone, load_classifier
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.core.progress import show_progress
from lmr.core.registry import create
from lmr.data.dataset import Dataset
from lmr.models.backbone import DEFAULT_TEMPLATES
from lmr.version import RESULTS_VERSION
from lmr.watch.health import Action, Level
from lmr.watch.settings import WatchSettings
from lmr.watch.signals import Signals
from lmr.watch.watched import Watched

WINDOW = 20  # steps of an accuracy that is compared with zero-shot's
NEAR = 0.01  # a stream is back when it is within a point of zero-shot
HEAD = """\
| stream | method | zero-shot | plain | watched | reset | noticed | acted \
| below: plain | watched | reset | alarms | rollbacks |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


@dataclass(frozen=True)
class TrialSettings:
    """The settings that all trials of a table share."""

    dataset: str = "pocket-c"
    model: str = "pocket"
    steps: int = 400
    batch_size: int = 64
    seed: int = 1
    reset_every: int = 100
    watch: WatchSettings = dataclasses.field(default_factory=WatchSettings)
    domain: str = DOMAIN
    dominant: int | None = None  # the class that dominates, where one does; None: drawn from the seed


@dataclass(frozen=True)
class TrialResult:
    """The effect of a watch on a stream: accuracies from 0 to 1, times in steps, None if nothing occurred."""

    trial: WatchTrial
    run: str  # hash of all that determines it
    steps: int
    zero_shot: float
    plain: float
    watched: float
    reset: float  # with ``reset_every`` alone
    detected: int | None  # from the onset to the first suspicion
    acted: int | None  # to the first rollback or reset
    below: int  # steps from the onset after which the watched stream is never again a point below zero-shot
    plain_below: int
    reset_below: int
    suspicions: int  # on a healthy stream each is a false alarm, ...
    rollbacks: int  # ... and each of these, resets included, a harmful one; those it would have made if it only reports
    causes: dict[str, int]  # name of an alarm -> suspicions that began with it
    largest: dict[str, float]  # of each signal; of concentration, entropy and canaries the smallest

    @property
    def healthy(self) -> bool:
        """Return whether it was meant to be healthy and was: without a watch not a point below zero-shot."""
        return self.trial.healthy and self.plain >= self.zero_shot - NEAR


def run_trials(
    settings: TrialSettings,
    out: str | os.PathLike[str],
    names: Sequence[str] = (),
    root: str | None = None,
    log: Callable[[str], object] = lambda message: None,
    traces: str | os.PathLike[str] | None = None,
) -> list[TrialResult]:
    """Run the named trials, or all, that have no line in ``out`` yet, and return the results of all of them.

    ``traces``: a folder for the signals of every step, one CSV file for each trial.
    """
    trials = [trial for trial in list_trials() if not names or trial.name in names]
    if unknown := set(names) - {trial.name for trial in trials}:
        known = ", ".join(repr(trial.name) for trial in list_trials())
        raise LmrError(f"There is no trial {sorted(unknown)[0]!r}; choose from: {known}.")
    path, found, dataset = Path(out), {}, find_dataset(settings.dataset, root)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = {json.loads(line)["run"]: json.loads(line) for line in lines}
    for trial in trials:
        run = _hash(trial, settings, dataset)
        trace = None if traces is None else Path(traces) / f"{trial.name}, seed {settings.seed}, {run}.csv"
        if run not in kept or (trace is not None and not trace.exists()):
            log(f"{trial.name}: {settings.steps} steps")
            result, steps = run_trial(trial, settings, root)
            kept[run] = dataclasses.asdict(result)
            if trace is not None:
                trace.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(trace, _format_trace(steps).encode())
            write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept.values()).encode())
        found[run] = TrialResult(**{**kept[run], "trial": WatchTrial(**kept[run]["trial"])})
    return list(found.values())


def run_trial(
    trial: WatchTrial, settings: TrialSettings, root: str | None = None
) -> tuple[TrialResult, list[dict[str, Any]]]:
    """Run all methods on one stream; return the result and the measurements of every step."""
    dataset = find_dataset(settings.dataset, root)
    classifier = load_classifier(settings.model, "float32", "cpu", dataset.classes, DEFAULT_TEMPLATES)
    backbone = load_backbone(settings.model, "float32", "cpu")
    watched = Watched(create(trial.method, classifier), settings.watch)
    # Methods that must give the same answers are run once: a watch that only reports is the plain method, and so is
    # one whose reset would come after the end.
    plain = watched if settings.watch.mode == "report" else create(trial.method, classifier)
    resetting = plain
    if settings.reset_every < settings.steps:
        simplest = WatchSettings(signals=False, reset_every=settings.reset_every)
        resetting = Watched(create(trial.method, classifier), simplest)
    methods = (plain, watched, resetting)
    right: list[list[float]] = []
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []  # of all steps: the watch keeps only the last ones
    stream = show(
        dataset,
        trial.kind,
        settings.steps,
        settings.batch_size,
        settings.seed,
        settings.domain,
        settings.dominant,
    )
    for batch in _show_progress(stream, trial.name, settings.steps):
        images = backbone.preprocess(batch.images).to(classifier.device)
        truth = torch.from_numpy(batch.labels)
        with torch.no_grad():
            frozen = classifier.cosines(classifier.features(images)).argmax(1)
        answers = {method: method.step(images) for method in dict.fromkeys(methods)}
        events += answers[watched].info["events"]
        shown = bool((truth >= 0).all())
        labels = [frozen, *(answers[method].labels for method in methods)]
        right.append([float((one.cpu() == truth).double().mean()) if shown else np.nan for one in labels])
        accuracies = dict(zip(("zero_shot", "plain", "watched", "reset"), right[-1], strict=True))
        health = {"step": len(right), "health": str(watched.health[0])}
        steps.append(health | accuracies | dataclasses.asdict(watched.signals()))
    scores, onset = np.array(right), find_onset(trial.kind, settings.steps)
    zero_shot, alone, with_watch, reset = (float(value) for value in np.nanmean(scores, 0))
    gains = scores[onset:] - scores[onset:, :1]
    alone_below, watched_below, reset_below = (count_below(gains[:, k]) for k in (1, 2, 3))
    # A watch that only reports would act where it puts a stream on the level "alarm".
    acting = [
        event["step"]
        for event in events
        if Action(event["action"]) in (Action.ROLL_BACK, Action.RESET) or Level(event["after"]) is Level.ALARM
    ]
    suspicions = [
        event for event in events if (Level(event["before"]), Level(event["after"])) == (Level.OK, Level.WATCH)
    ]
    noticing = [event["step"] for event in suspicions]
    result = TrialResult(
        trial,
        run=_hash(trial, settings, dataset),
        steps=settings.steps,
        zero_shot=zero_shot,
        plain=alone,
        watched=with_watch,
        reset=reset,
        detected=_find_first(noticing, onset),
        acted=_find_first(acting, onset),
        below=watched_below,
        plain_below=alone_below,
        reset_below=reset_below,
        suspicions=len(noticing),
        rollbacks=len(acting),
        causes=dict(Counter(alarm for event in suspicions for alarm in event["alarms"])),
        largest=_find_extremes(steps),
    )
    return result, steps


def _show_progress(stream: Iterator[WatchBatch], name: str, steps: int) -> Iterator[WatchBatch]:
    with show_progress(name, steps, "steps", delay=2.0) as bar:
        for batch in stream:
            yield batch
            bar.advance()


def _find_first(steps: Sequence[int], onset: int) -> int | None:
    """Return the first of the steps after the onset, counted from there."""
    return next((step - onset for step in steps if step > onset), None)


def count_below(gain: NDArray[np.float64]) -> int:
    """Return the end of the last window of 20 steps with a mean gain over zero-shot below -1 point; 0 without one."""
    means = [float(np.nanmean(part)) for part in _windows(gain)]
    ends = [k + WINDOW for k, mean in enumerate(means) if mean < -NEAR]
    return ends[-1] if ends else 0


def _windows(values: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    parts = (values[k : k + WINDOW] for k in range(len(values) - WINDOW + 1))
    return [part if np.isfinite(part).any() else np.zeros(1) for part in parts]


def _find_extremes(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the largest value of each signal in all steps; the smallest of signals whose fall is the trouble."""
    extremes: dict[str, float] = {}
    for item in dataclasses.fields(Signals):
        choose = min if item.name in ("concentration", "entropy", "canaries", "agreement") else max
        if known := [step[item.name] for step in steps if step[item.name] is not None]:
            extremes[item.name] = choose(known)
    return extremes


def _format_trace(steps: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(steps[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(steps)
    return text.getvalue()


def _hash(trial: WatchTrial, settings: TrialSettings, dataset: Dataset) -> str:
    data = dataset.digest_part(list_domains(trial.kind, settings.domain), SEVERITY)
    content: list[Any] = [RESULTS_VERSION, data, dataclasses.asdict(trial), dataclasses.asdict(settings)]
    content.append({"weights": describe_backbone(settings.model, "float32", "cpu")})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def format_results(results: Sequence[TrialResult]) -> str:
    """Return a Markdown table with accuracies in %, and below it the false alarms of all healthy streams."""
    lines = [HEAD]
    for one in results:
        accuracies = [f"{100 * value:.1f}" for value in (one.zero_shot, one.plain, one.watched, one.reset)]
        times = ["–" if value is None else str(value) for value in (one.detected, one.acted)]
        alarms = f"{one.suspicions} ({', '.join(one.causes)})" if one.causes else str(one.suspicions)
        counts = (one.plain_below, one.below, one.reset_below, alarms, one.rollbacks)
        name = one.trial.name + (" (healthy)" if one.healthy else "")
        lines.append(_join([name, one.trial.method, *accuracies, *times, *(str(value) for value in counts)]))
    healthy = [one for one in results if one.healthy]
    if healthy:
        steps, lost = sum(one.steps for one in healthy), max(one.plain - one.watched for one in healthy)
        lines += ["", (
            f"Healthy streams, {steps} steps: {sum(one.suspicions for one in healthy)} false alarms, "
            f"{sum(one.rollbacks for one in healthy)} false rollbacks, at most {max(100 * lost, 0):.1f} points lost."
        )]  # fmt: skip
    return "\n".join(lines)


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
