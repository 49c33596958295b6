"""Choose a method's arguments on unlabelled images.

Every finished stream is kept as a file, an unfinished one as a checkpoint: the same call again continues.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lmr.apps.tune.results import (
    EntryResult,
    TuneResult,
    describe_result,
    format_csv,
    format_result,
    read_result,
    write_json,
)
from lmr.apps.tune.sources import TuneSource
from lmr.bench.tune.criteria import RULE
from lmr.bench.tune.trials import SAVE_SECONDS, Trials
from lmr.core.files import check_folder, hold_lock, write_atomically
from lmr.core.progress import ProgressBar, show_progress

TUNE_FOLDER = "lmr-tune"
JSON_FILE, CSV_FILE = "scores.json", "scores.csv"
SHOWN = 3  # streams whose scores are printed; those of more are in the files only


@dataclass(frozen=True)
class TuneReport:
    """The result of every stream, and the folder with all scores."""

    results: list[TuneResult]
    folder: Path

    def describe(self) -> str:
        """Return scores and recommendations, unless there are many streams, and where the files are."""
        parts = [format_result(result) for result in self.results] if len(self.results) <= SHOWN else []
        return "\n\n".join([*parts, f"All scores are in {self.folder / JSON_FILE} and {self.folder / CSV_FILE}."])


def tune_images(
    sources: Sequence[TuneSource], out: str | os.PathLike[str] = TUNE_FOLDER, *, save_seconds: float = SAVE_SECONDS
) -> TuneReport:
    """Try the entries of every source, recommend one for each, and write all scores to the folder ``out``."""
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
        described = [describe_result(result) for result in results]
        write_json(folder / JSON_FILE, {"rule": RULE, "streams": described}, indent=1)
        write_atomically(folder / CSV_FILE, format_csv(described).encode())
    return TuneReport(results, folder)


def _find_result(source: TuneSource, folder: Path, bar: ProgressBar, save_seconds: float) -> TuneResult:
    """Return the result of a source: of an earlier call if that finished it, else of trials now."""
    kept = folder / f"{source.key}.json"
    if kept.exists():
        bar.advance(source.count)
        return read_result(kept)
    trials = Trials(source.create_methods(), source.key, folder / f"{source.key}.state")
    trials.run(source.read, bar.advance, save_seconds)
    entries = [
        EntryResult(method.spec, scores, evidence.probabilities.argmax(1).tolist())
        for method, scores, evidence in zip(trials.methods, trials.score(), trials.collect(), strict=True)
    ]
    places, classes = trials.places.tolist(), trials.classifier.classes
    result = TuneResult(source.name, entries, places, source.count - len(places), classes)
    write_json(kept, asdict(result))
    trials.delete_checkpoint()
    return result
