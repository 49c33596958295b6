"""Folders of runs: their rows, and the answers to every image."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from lmr.bench.running.pack import read_answers
from lmr.bench.running.row import Row, read_rows
from lmr.core.errors import LmrError
from lmr.report.traits import read_spec

Samples = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Runs:
    """Rows of one or several folders, the folder of each run, and notes for the reader of a report."""

    rows: tuple[Row, ...]
    folders: Mapping[str, Path]
    notes: list[str] = field(default_factory=list)

    def note(self, *texts: str) -> None:
        """Add notes, each once."""
        self.notes.extend(text for text in dict.fromkeys(texts) if text not in self.notes)

    def samples(self, row: Row) -> Samples | None:
        """Return the answers to every image of a run; None, and a note, where they are missing or damaged."""
        try:
            return read_answers(self.folders[row.run], row)
        except LmrError as error:
            self.note(str(error))
            return None


def read_runs(folders: Iterable[str | os.PathLike[str]]) -> Runs:
    """Read folders of runs; a run that is in several counts once."""
    folders = list(folders)
    rows: dict[str, Row] = {}
    places: dict[str, Path] = {}
    notes: list[str] = []
    for folder in folders:
        found, dropped = read_rows(folder)
        notes += dropped
        for row in found:
            try:
                _ = read_spec(row.spec), row.watch_text  # labels are made of these
            except LmrError as error:
                notes.append(f"The run {row.run} in {str(folder)!r} was left out. {error}")
                continue
            rows[row.run] = row
            places[row.run] = Path(folder)
    if not rows:
        raise LmrError(f"There is no finished run in {', '.join(map(str, folders))}; run 'lmr bench PLAN' first.")
    return Runs(tuple(rows.values()), places, notes)
