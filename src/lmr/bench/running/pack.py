"""Packs: finished runs in few small files, small enough for a repository.

A pack is a folder with the rows of a bench in ``rows.jsonl.xz``, one file ``answers/*.npz.xz`` for every dataset,
domain and severity, and ``streams.npz.xz``. A stream is the order of the images with their labels; runs on the same
images in the same order share it, whatever the domain. Predictions are sorted by image, so that those of other methods
and orders are nearly the same bytes. The rest of the samples (confidence, gap, margin, recovery) is not kept, and reads
as NaN.

Runs are only ever added to a pack. A row is written after its answers, so that a kill leaves a pack without the row.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import lzma
import re
import shlex
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import PACKED_ROWS, SAMPLES, Row, append_row, read_rows, read_samples, write_samples
from lmr.core.errors import LmrError
from lmr.core.files import hold_lock, write_atomically

Samples = Mapping[str, NDArray[Any]]
ANSWERS, STREAMS = "answers", "streams.npz.xz"
STREAM_KEYS = ("index", "true", "domain")
LOCK_SECONDS = 5.0


class PackedRun(NamedTuple):
    """The predictions of a run, sorted by image, and the digest of its stream."""

    stream: str
    predicted: NDArray[np.int64]


@dataclass(frozen=True)
class PackResult:
    """The number of runs in a pack and of new ones, and notes on runs that were left out."""

    runs: int
    added: int
    notes: tuple[str, ...]


def pack_runs(sources: Sequence[Path], target: Path) -> PackResult:
    """Add the finished runs of folders of runs, or of packs, to a pack, which is made if needed.

    A run that is already in the pack is not replaced, but its row learns if its values were chosen since;
    if several sources have a run, the first is taken.
    """
    files: dict[str, dict[str, tuple[Row, Path]]] = {}
    notes: list[str] = []
    for source in sources:
        rows, messages = read_rows(source)
        notes += messages
        for row in rows:
            files.setdefault(name_file(row), {}).setdefault(row.run, (_leave_out_root(row), source))
    if not files:
        raise LmrError(f"There is no finished run in {', '.join(map(str, sources))} to pack.")
    with _open_pack(target):
        choices = {row.run: row.selected for runs in files.values() for row, _ in runs.values() if row.selected}
        kept = [replace(row, selected=row.selected or choices.get(row.run, {})) for row in _read_kept(target)]
        added: list[Row] = []
        for name, runs in files.items():
            new, left_out = _pack_file(target, name, list(runs.values()), {row.run for row in kept})
            added += new
            notes += left_out
        lines = "".join(row.to_json() for row in kept + added).encode()
        write_atomically(target / PACKED_ROWS, lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME))
        return PackResult(len(kept) + len(added), len(added), tuple(notes))


def _leave_out_root(row: Row) -> Row:
    """Return a row whose command names no folder of this machine: datasets are in DATA."""
    words = shlex.split(row.command)
    if "--root" not in words[:-1]:
        return row
    words[words.index("--root") + 1] = "DATA"
    return replace(row, command=shlex.join(words))


def _pack_file(
    target: Path, name: str, runs: Sequence[tuple[Row, Path]], known: Collection[str]
) -> tuple[list[Row], list[str]]:
    """Add runs to one file of a pack; return the rows of the new ones, and notes on the others."""
    path, notes = target / ANSWERS / name, list[str]()
    packed, streams = read_packed(path), read_streams(target)
    new: list[Row] = []
    for row, folder in runs:
        try:
            samples = read_answers(folder, row)
        except LmrError as error:
            notes.append(f"The run {row.run} was left out. {error}")
            continue
        run, stream = pack_samples(samples)
        if row.run not in known:
            packed[row.run], streams[run.stream] = run, stream
            new.append(row)
        elif not _are_same(packed.get(row.run), run):
            notes.append(f"The run {row.run} has other answers in {str(folder)!r}; the pack keeps its own.")
    if new:  # streams, then answers, then rows: a kill leaves something that no row refers to
        write_streams(target, streams)
        write_packed(path, packed)
    return new, notes


def _are_same(one: PackedRun | None, other: PackedRun) -> bool:
    return one is not None and one.stream == other.stream and np.array_equal(one.predicted, other.predicted)


def _read_kept(target: Path) -> list[Row]:
    """Return the rows of a pack, all of which must be valid, since the file is rewritten."""
    if not (target / PACKED_ROWS).exists():
        return []
    rows, messages = read_rows(target)
    if messages:
        raise LmrError(f"{messages[0]} Restore the rows of {str(target)!r}, or delete the pack and make it again.")
    return rows


@contextlib.contextmanager
def _open_pack(target: Path) -> Iterator[None]:
    """Create the folder, lock it, and remove files that a kill left incomplete."""
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
    """Copy the ``wanted`` runs that are finished in ``source``, a folder of runs or a pack, to a folder of runs.

    Returns their rows, and messages about runs that cannot be read.
    """
    rows, messages = read_rows(source)
    taken: dict[str, Row] = {}
    for row in rows:
        if row.run not in wanted:
            continue
        try:
            samples = read_answers(source, row)
        except LmrError as error:
            messages.append(f"{error} The run {row.run} is not taken from there.")
            continue
        write_samples(folder, row.run, samples)
        append_row(folder, row)
        taken[row.run] = row
    return taken, messages


def is_pack(folder: Path) -> bool:
    """Return whether a folder is a pack, complete or not."""
    return (folder / STREAMS).exists() or (folder / ANSWERS).is_dir()


def read_answers(folder: Path, row: Row) -> dict[str, NDArray[Any]]:
    """Return the samples of a run, from a folder of runs or from a pack."""
    if not is_pack(folder):
        return read_samples(folder, row.run)
    run = read_packed(folder / ANSWERS / name_file(row)).get(row.run)
    if run is None:
        raise LmrError(f"There are no answers of the run {row.run} in the pack {str(folder)!r}; pack it again.")
    stream = read_streams(folder).get(run.stream)
    if stream is None or len(stream["index"]) != len(run.predicted):
        raise LmrError(f"The pack {str(folder)!r} has no stream {run.stream} of the run {row.run}; pack it again.")
    predicted = np.empty_like(run.predicted)
    predicted[_sort_images(stream)] = run.predicted
    known = {**stream, "predicted": predicted}
    nothing = np.full(len(predicted), np.nan)
    return {name: known[name].copy() if name in known else nothing for name in (*SAMPLES, "domain")}


def pack_samples(samples: Samples) -> tuple[PackedRun, Samples]:
    """Return a run for a pack, and its stream."""
    stream = {key: samples[key] for key in STREAM_KEYS if key in samples}
    stream.setdefault("domain", np.zeros(len(samples["index"]), np.int64))
    digest = hashlib.sha256(b"".join(stream[key].astype("<i8").tobytes() for key in STREAM_KEYS)).hexdigest()[:16]
    return PackedRun(digest, samples["predicted"][_sort_images(stream)]), stream


def _sort_images(stream: Samples) -> NDArray[np.intp]:
    return np.lexsort((stream["index"], stream["domain"]))  # stable: an image that comes twice keeps its order


def name_file(row: Row) -> str:
    """Return the name of the file with the answers of a run; two kinds of runs may share one."""
    name = re.sub(r"[^a-z0-9_.]+", "-", f"{row.dataset}-{row.domain}-{row.severity}".lower()).strip("-.")
    return f"{name[-80:]}.npz.xz"


def read_packed(path: Path) -> dict[str, PackedRun]:
    """Return the runs in a file of answers, by their hashes; none if there is no file."""
    arrays = _read(path)
    try:
        runs, streams = (arrays[key].astype(str).tolist() for key in ("runs", "streams")) if arrays else ([], [])
        pieces = np.split(arrays["predicted"], np.cumsum(arrays["lengths"])[:-1]) if runs else []
        return {run: PackedRun(*found) for run, *found in zip(runs, streams, pieces, strict=True)}
    except (KeyError, ValueError, TypeError) as error:
        raise _complain(path, error) from error


def write_packed(path: Path, runs: Mapping[str, PackedRun]) -> None:
    """Write a file of answers, atomically."""
    arrays = {
        "runs": np.array(list(runs), "S16"),
        "streams": np.array([run.stream for run in runs.values()], "S16"),
        "lengths": np.array([len(run.predicted) for run in runs.values()]),
        "predicted": np.concatenate([run.predicted for run in runs.values()]),
    }
    _write(path, arrays)


def read_streams(folder: Path) -> dict[str, Samples]:
    """Return the streams of a pack, by their digests."""
    streams: dict[str, dict[str, NDArray[Any]]] = {}
    for name, values in _read(folder / STREAMS).items():
        digest, _, key = name.partition("-")
        streams.setdefault(digest, {})[key] = values
    if any(set(stream) != set(STREAM_KEYS) for stream in streams.values()):
        raise _complain(folder / STREAMS, "a part of a stream is missing")
    return {**streams}


def write_streams(folder: Path, streams: Mapping[str, Samples]) -> None:
    """Write all streams of a pack, atomically."""
    _write(folder / STREAMS, {f"{digest}-{key}": stream[key] for digest, stream in streams.items() for key in stream})


def _read(path: Path) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a file, whole numbers as int64; none if there is no file."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LmrError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    return _decode(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(64)  # a report reads every run several times
def _decode(path: Path, changed: int, size: int) -> Mapping[str, NDArray[Any]]:
    try:
        content = io.BytesIO(lzma.decompress(path.read_bytes()))
        with np.load(content, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, KeyError, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise _complain(path, error) from error
    return {name: values.astype(np.int64) if values.dtype.kind in "iu" else values for name, values in arrays.items()}


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays, whole numbers in the smallest type that holds them."""
    content = io.BytesIO()
    small = {name: _shrink(values) if values.dtype.kind in "iu" else values for name, values in arrays.items()}
    np.savez(content, **small)  # type: ignore[arg-type]  # names are never allow_pickle
    write_atomically(path, lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def _shrink(values: NDArray[Any]) -> NDArray[Any]:
    smallest, largest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return values.astype(np.result_type(np.min_scalar_type(smallest), np.min_scalar_type(largest)))


def _complain(path: Path, reason: object) -> LmrError:
    return LmrError(f"{str(path)!r} is damaged ({reason}); restore it, or delete the pack and make it again.")
