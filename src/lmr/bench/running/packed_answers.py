"""Packed answers: what tables need of finished runs, small enough for a repository.

A pack is a folder with the rows of a bench in ``rows.jsonl.xz``, one file ``answers/*.npz.xz`` for every dataset,
domain and severity, and ``streams.npz.xz``. A stream is the order of the images with their labels; runs on the same
images in the same order share it, whatever the domain. Predictions are sorted by image, so that those of other methods
and orders are nearly the same bytes. The rest of the samples (confidence, gap, margin, recovery) is not kept, and reads
as NaN.

Runs are only ever added to a pack. A row is written after its answers, so that a kill leaves a pack without the row.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import zipfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import PACKED_ROWS, SAMPLES, Row, read_samples
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

Samples = Mapping[str, NDArray[Any]]
ANSWERS, STREAMS = "answers", "streams.npz.xz"
STREAM_KEYS = ("index", "true", "domain")


class PackedRun(NamedTuple):
    """The predictions of a run, sorted by image, and the digest of its stream."""

    stream: str
    predicted: NDArray[np.int64]


def is_pack(folder: Path) -> bool:
    """Whether a folder is a pack, complete or not."""
    return (folder / STREAMS).exists() or (folder / ANSWERS).is_dir()


def read_answers(folder: Path, row: Row) -> dict[str, NDArray[Any]]:
    """The samples of a run, from a folder of runs or from a pack."""
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
    """A run for a pack, and its stream."""
    stream = {key: samples[key] for key in STREAM_KEYS if key in samples}
    stream.setdefault("domain", np.zeros(len(samples["index"]), np.int64))
    digest = hashlib.sha256(b"".join(stream[key].astype("<i8").tobytes() for key in STREAM_KEYS)).hexdigest()[:16]
    return PackedRun(digest, samples["predicted"][_sort_images(stream)]), stream


def _sort_images(stream: Samples) -> NDArray[np.intp]:
    return np.lexsort((stream["index"], stream["domain"]))  # stable: an image that comes twice keeps its order


def name_file(row: Row) -> str:
    """The file that has the answers of a run; two kinds of runs may share one."""
    words = re.sub(r"[^a-z0-9_.]+", "-", f"{row.dataset}-{row.domain}-{row.severity}".lower()).strip("-.")
    return f"{words[-80:]}.npz.xz"


def read_packed(path: Path) -> dict[str, PackedRun]:
    """The runs in a file of answers, by their hashes; none if there is no file."""
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
    """The streams of a pack, by their digests."""
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


def measure_pack(folder: Path) -> int:
    """The bytes of a pack."""
    return sum(path.stat().st_size for path in _list_files(folder))


def _list_files(folder: Path) -> Iterable[Path]:
    return [folder / PACKED_ROWS, folder / STREAMS, *(folder / ANSWERS).glob("*.npz.xz")]


def _read(path: Path) -> Mapping[str, NDArray[Any]]:
    """The arrays of a file, whole numbers as int64; none if there is no file."""
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
    """Whole numbers are written in the smallest type that holds them; names of runs and streams as they are."""
    content = io.BytesIO()
    small = {name: _shrink(values) if values.dtype.kind in "iu" else values for name, values in arrays.items()}
    np.savez(content, **small)  # type: ignore[arg-type]  # names are never allow_pickle
    write_atomically(path, lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def _shrink(values: NDArray[Any]) -> NDArray[Any]:
    smallest, largest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return values.astype(np.result_type(np.min_scalar_type(smallest), np.min_scalar_type(largest)))


def _complain(path: Path, reason: object) -> LmrError:
    return LmrError(f"{str(path)!r} is damaged ({reason}); restore it, or delete the pack and make it again.")
