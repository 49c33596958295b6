"""Packing finished runs, and taking finished runs of a pack or of another folder into a bench."""

from __future__ import annotations

import contextlib
import lzma
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmr.bench.running.packed_answers import (
    ANSWERS,
    PackedRun,
    Samples,
    measure_pack,
    name_file,
    pack_samples,
    read_answers,
    read_packed,
    read_streams,
    write_packed,
    write_streams,
)
from lmr.bench.running.row import PACKED_ROWS, ROWS, Row, append_row, read_rows, write_samples
from lmr.core.errors import LmrError
from lmr.core.files import hold_lock, write_atomically

LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class PackOutcome:
    """How many runs a pack has, how many of them are new, its size in bytes, and notes on what was left out."""

    runs: int
    added: int
    size: int
    notes: tuple[str, ...]


def pack_runs(sources: Sequence[Path], target: Path) -> PackOutcome:
    """Add the finished runs of folders of runs, or of packs, to a pack, which is made if needed.

    A run that is in the pack stays as it is there; of one that several sources have, the first counts. A row is
    written only if its answers, read from the pack again, are those of its samples to the bit.
    """
    files: dict[str, dict[str, tuple[Row, Path]]] = {}
    notes: list[str] = []
    for source in sources:
        rows, words = read_rows(source)
        notes += words
        for row in rows:
            files.setdefault(name_file(row), {}).setdefault(row.run, (row, source))
    if not files:
        raise LmrError(f"There is no finished run in {', '.join(map(str, sources))} to pack.")
    with _open_pack(target):
        kept = _read_kept(target)
        added: list[Row] = []
        for name, members in files.items():
            new, words = _pack_file(target, name, list(members.values()), {row.run for row in kept})
            added += new
            notes += words
        lines = "".join(row.to_json() for row in kept + added).encode()
        write_atomically(target / PACKED_ROWS, lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME))
        (target / ROWS).unlink(missing_ok=True)  # packs of earlier versions have the rows as they are
        return PackOutcome(len(kept) + len(added), len(added), measure_pack(target), tuple(notes))


def _pack_file(
    target: Path, name: str, members: Sequence[tuple[Row, Path]], known: Collection[str]
) -> tuple[list[Row], list[str]]:
    """Add runs to one file of a pack; gives the rows of the new ones, and notes on the others."""
    path, notes = target / ANSWERS / name, list[str]()
    packed, streams = read_packed(path), read_streams(target)
    new: dict[str, tuple[Row, Samples]] = {}
    for row, folder in members:
        try:
            samples = read_answers(folder, row)
        except LmrError as error:
            notes.append(f"The run {row.run} was left out. {error}")
            continue
        run, stream = pack_samples(samples)
        if row.run not in known:
            packed[row.run], streams[run.stream] = run, stream
            new[row.run] = row, samples
        elif not _are_same(packed.get(row.run), run):
            notes.append(f"The run {row.run} has other answers in {str(folder)!r}; the pack keeps its own.")
    if new:  # streams, then answers, then rows: a kill leaves something that no row refers to
        write_streams(target, streams)
        write_packed(path, packed)
    for row, given in new.values():
        again = read_answers(target, row)
        if any(not np.array_equal(again[key], given[key]) for key in ("index", "true", "predicted")):
            raise LmrError(f"The answers of the run {row.run} cannot be packed without loss; nothing was added.")
    return [row for row, _ in new.values()], notes


def _are_same(one: PackedRun | None, other: PackedRun) -> bool:
    return one is not None and one.stream == other.stream and np.array_equal(one.predicted, other.predicted)


def _read_kept(target: Path) -> list[Row]:
    """The rows of a pack, all of which must be sound: it is rewritten."""
    if not any((target / name).exists() for name in (PACKED_ROWS, ROWS)):
        return []
    rows, words = read_rows(target)
    if words:
        raise LmrError(f"{words[0]} Restore the rows of {str(target)!r}, or delete the pack and make it again.")
    return rows


@contextlib.contextmanager
def _open_pack(target: Path) -> Iterator[None]:
    """Create the folder, keep other processes out of it, and remove what a kill left incomplete."""
    if (target / "samples").exists():
        raise LmrError(f"{str(target)!r} is a folder of runs; give another folder for the pack.")
    try:
        (target / ANSWERS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot use the folder {str(target)!r} for a pack: {error.strerror}.") from error
    with hold_lock(target / ".lock", f"Another process is writing the pack {str(target)!r}.", LOCK_SECONDS):
        for path in target.rglob(".*.part"):
            path.unlink(missing_ok=True)
        yield


def take_runs(source: Path, folder: Path, wanted: Collection[str]) -> tuple[dict[str, Row], list[str]]:
    """Add those of the ``wanted`` runs that are finished elsewhere, in a folder of runs or a pack, to a folder of runs.

    Gives their rows, and messages about those that cannot be read.
    """
    rows, words = read_rows(source)
    taken: dict[str, Row] = {}
    for row in rows:
        if row.run not in wanted:
            continue
        try:
            samples = read_answers(source, row)
        except LmrError as error:
            words.append(f"{error} The run {row.run} is not taken from there.")
            continue
        write_samples(folder, row.run, samples)
        append_row(folder, row)
        taken[row.run] = row
    return taken, words
