"""Choose a method's arguments on unlabelled images; with labels, measure afterwards how good the choice was.

Every finished stream is kept as a file, an unfinished one as a checkpoint: the same call again continues.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmr.apps.tune.results import (
    EntryResult,
    TuneResult,
    describe_result,
    format_csv,
    format_judgement,
    format_result,
    hide_nan,
    read_result,
    write_result,
)
from lmr.apps.tune.sources import TuneSource
from lmr.bench.tune.criteria import RULE
from lmr.bench.tune.judge import StreamJudgement, judge
from lmr.bench.tune.trials import SAVE_SECONDS, Trials
from lmr.core.files import check_folder, hold_lock, write_atomically
from lmr.core.progress import ProgressBar, show_progress

TUNE_FOLDER = "lmr-tune"
JSON_FILE, CSV_FILE = "scores.json", "scores.csv"
SHOWN = 3  # streams whose scores are printed; of more, only the summary


@dataclass(frozen=True)
class TuneReport:
    """The result of every stream, and the quality of the choices if it was requested."""

    results: list[TuneResult]
    judgements: list[StreamJudgement]
    folder: Path

    def describe(self) -> str:
        """Return scores and recommendations of a few streams, how good they were, and where the files are."""
        parts = []
        if len(self.results) <= SHOWN:
            parts += [format_result(one, judged) for one, judged in _pair(self.results, self.judgements)]
        if self.judgements:
            parts.append(format_judgement(self.judgements))
        parts.append(f"All scores are in {self.folder / JSON_FILE} and {self.folder / CSV_FILE}.")
        return "\n\n".join(parts)


def tune_images(
    sources: Sequence[TuneSource],
    out: str | os.PathLike[str] = TUNE_FOLDER,
    *,
    judged: bool = False,
    save_seconds: float = SAVE_SECONDS,
) -> TuneReport:
    """Try the entries of every source, recommend one for each, and write all scores to the folder ``out``.

    With ``judged`` the labels are read afterwards, and the choices are compared with the accuracies.
    """
    folder = Path(out)
    check_folder(folder / "streams")
    check_folder(folder, (JSON_FILE, CSV_FILE))
    message = f"Another 'lmr tune' is running in {str(folder)!r}; wait for it, or give another --out."
    with hold_lock(folder / ".lock", message):
        with show_progress("", sum(one.count for one in sources)) as bar:
            try:
                results = [_find_result(source, folder / "streams", bar, save_seconds) for source in sources]
            except KeyboardInterrupt:
                raise KeyboardInterrupt("Interrupted. To continue, give the same command again.") from None
        _write_scores(folder, results, [])  # before the labels are looked up: there may be none
        judgements = [_judge(*pair) for pair in zip(sources, results, strict=True)] if judged else []
        if judgements:
            _write_scores(folder, results, judgements)
    return TuneReport(results, judgements, folder)


def _write_scores(folder: Path, results: Sequence[TuneResult], judgements: Sequence[StreamJudgement]) -> None:
    described = [describe_result(one, judgement) for one, judgement in _pair(results, judgements)]
    content = json.dumps(hide_nan({"rule": RULE, "streams": described}), indent=1)
    write_atomically(folder / JSON_FILE, f"{content}\n".encode())
    write_atomically(folder / CSV_FILE, format_csv(described).encode())


def _find_result(source: TuneSource, folder: Path, bar: ProgressBar, save_seconds: float) -> TuneResult:
    """Return the result of a source: of an earlier call if that finished it, else of trials now."""
    kept = folder / f"{source.key}.json"
    if kept.exists():
        bar.advance(source.count)
        return read_result(kept)
    trials = Trials(source.create_methods(), source.key, folder / f"{source.key}.state")
    trials.run(source.read, bar.advance, save_seconds)
    entries = [
        EntryResult(trial.method.spec, scores, evidence.probabilities.argmax(1).tolist())
        for trial, scores, evidence in zip(trials.trials, trials.score(), trials.collect(), strict=True)
    ]
    places, classes = trials.places.tolist(), trials.classifier.classes
    result = TuneResult(source.name, entries, places, source.count - len(places), classes)
    write_result(kept, result)
    trials.delete_checkpoint()
    return result


def _judge(source: TuneSource, result: TuneResult) -> StreamJudgement:
    truth = source.find_labels()[result.places]
    accuracies = [float((np.array(one.labels) == truth).mean()) * 100 for one in result.entries]
    return judge(result.scores, accuracies, result.recommended)


def _pair(
    results: Sequence[TuneResult], judgements: Sequence[StreamJudgement]
) -> list[tuple[TuneResult, StreamJudgement | None]]:
    return list(zip(results, judgements or itertools.repeat(None, len(results)), strict=True))
