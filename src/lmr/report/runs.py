"""Folders of runs: their rows, and the answers to every image."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from lmr.bench.running.pack import read_answers
from lmr.bench.running.row import Row, read_rows
from lmr.core.errors import LmrError
from lmr.core.extras import require
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
            first = rows.get(row.run)
            if first is not None and first.device != row.device:
                notes.append(f"Runs on {row.device} in {str(folder)!r} were left out: the same ones on {first.device} "
                    f"are in {str(places[row.run])!r}.")  # fmt: skip
                continue
            rows[row.run] = row
            places[row.run] = Path(folder)
    if not rows:
        raise LmrError(f"There is no finished run in {', '.join(map(str, folders))}; run 'lmr bench PLAN' first.")
    if len(devices := sorted({row.versions.get("device", "cpu") for row in rows.values()})) > 1:
        notes.append(f"Runs are from {'; '.join(devices)}: do not compare their times and memory.")
    return Runs(tuple(rows.values()), places, list(dict.fromkeys(notes)))


def write_answers(runs: Runs, path: Path) -> int:
    """Write the answers of all runs as one table, a line for each image of each run; return the number of lines.

    Columns say which run and method, on what, the place of the image in its stream, and what a run's samples hold. The
    kind of file is that of the ending: .parquet or .csv.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise LmrError(f"Expected a name that ends with .parquet or .csv for the answers, got {str(path)!r}.")
    if path.suffix == ".parquet":
        require("pyarrow", "parquet", "A parquet file")
    parts = []
    for row in runs.rows:
        if (samples := runs.samples(row)) is not None:
            facts = {"run": row.run, "method": row.method, "label": row.label, "dataset": row.dataset}
            facts |= {"severity": row.severity, "batch_size": row.batch_size, "seed": row.seed}  # type: ignore[dict-item]
            names = list(row.domains) if row.domains else [row.domain]
            domain = samples.get("domain")
            part = pd.DataFrame({key: value for key, value in samples.items() if key != "domain"})
            part.insert(0, "place", range(len(part)))
            part.insert(0, "domain", row.domain if domain is None else [names[k % len(names)] for k in domain.tolist()])
            parts.append(part.assign(**facts)[[*facts, *part.columns]])
    if not parts:
        raise LmrError("There are no answers to write: none of the runs has its samples.")
    table = pd.concat(parts, ignore_index=True)
    try:
        table.to_parquet(path, index=False) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    except OSError as error:
        raise LmrError(f"Cannot write the answers to {str(path)!r}: {error.strerror or error}.") from error
    return len(table)
