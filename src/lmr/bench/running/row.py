"""Rows: one JSON line per finished run with its whole protocol; the answers to its images are in a separate file.

A folder of runs holds ``rows.jsonl`` and ``samples/<run>.npz``. Rows are only ever appended, each flushed to the disk,
so that a killed bench loses at most the line it was writing; an incomplete line is dropped with a message. A pack holds
the same lines in ``rows.jsonl.xz``.
"""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError, MissingFile
from lmr.core.files import write_atomically
from lmr.core.spec import format_spec, parse_spec
from lmr.data.names import describe_order
from lmr.watch.settings import WatchSettings, read_watch

ROWS, PACKED_ROWS = "rows.jsonl", "rows.jsonl.xz"
METRICS = (
    "accuracy", "macro_recall", "accuracy_second_half", "macro_recall_second_half", "ece", "nll", "classes_predicted",
    "effective_classes", "top_share", "late_top_share", "gate_share", "protected_size", "drift",
    "clean_accuracy", "forwards", "ms_per_image", "peak_mb", "trainable", "state_kb",
)  # fmt: skip
MEASURED = ("ms_per_image", "peak_mb")  # these depend on the machine and differ when a run is repeated
UNCOMPARED = ("finished", "versions", "command", "method_file", "selected")  # when, where, with what and why
# Per image, in the order of the stream. gap: score of the best class minus score of the true one. margin: lowest score
# inside the protected set minus highest outside. recovery: score of the true class minus score of the class that
# zero-shot predicts, where that is wrong. Scores are emitted logits in cosine units, without bias correction; NaN where
# undefined.
SAMPLES = ("index", "true", "predicted", "confidence", "gap", "margin", "recovery")


@dataclass(frozen=True)
class Row:
    """A finished run: what was run, on what, how, and the results."""

    run: str  # hash of everything that determines the numbers
    method: str
    spec: str  # every argument with its value
    label: str  # in tables
    backbone: dict[str, str]  # name, weights (digest), dtype
    dataset: str
    data_digest: str
    domain: str  # a corruption, "clean", or "continual" or "mixed" for several in one stream
    severity: int
    prompts: dict[str, Any]  # name, count (prompts of all classes), digest
    batch_size: int
    seed: int  # of the order
    order: dict[str, str]  # kind, what it depends on, hash
    reset: str  # "domain": reset before every domain; "never": one stream through all
    images: int
    emit: str  # answers are those "before" or "after" the batch's own update
    metrics: dict[str, float | None]
    curve: dict[str, list[float]]  # images, accuracy: the running accuracy at some 200 places
    versions: dict[str, str]
    command: str  # repeats this run
    finished: str  # when, ISO 8601
    protocol: dict[str, str] = field(default_factory=dict)  # the origin of the data
    domains: dict[str, float] = field(default_factory=dict)  # accuracy on each domain of a stream with several
    method_file: dict[str, str] = field(default_factory=dict)  # path and digest of the user's file it is from, if any
    watch: dict[str, Any] = field(default_factory=dict)  # of a watched run: the spec of the watch, and what it did
    # Of a run whose values were chosen on other corruptions (plan field "select"): the spec with its published values
    # ("published"), how many values there were, on what, and both accuracies there. If the choice fell on the published
    # values, the run is both.
    selected: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the row as one line; values that are not finite become null."""
        content = dataclasses.asdict(self)
        for key in ("method_file", "watch", "selected"):
            if not content[key]:
                del content[key]
        known = {key: value for key, value in self.metrics.items() if value is not None and math.isfinite(value)}
        content["metrics"] = {key: known.get(key) for key in METRICS}
        return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, line: str | bytes) -> Row:
        """Read a line; raise ValueError, TypeError or KeyError if it is not a row."""
        content = json.loads(line)
        return cls(**content | {"metrics": {key: content["metrics"].get(key) for key in METRICS}})

    @property
    def watch_text(self) -> str:
        """The end of the label of a watched run; empty for a plain one.

        Old rows have settings that a watch no longer has: these are left out.
        """
        if "spec" not in self.watch:
            return ""
        name, values = parse_spec(self.watch["spec"])
        usual = parse_spec(WatchSettings().spec)[1]
        settings = read_watch(format_spec(name, {key: value for key, value in values.items() if key in usual}))
        return f", {settings.label}" if settings else ""

    @property
    def device(self) -> str:
        """The kind of device that it was made on, such as cpu or cuda."""
        return self.versions.get("device", "cpu").partition(" ")[0]

    @property
    def order_text(self) -> str:
        """The order for people: its kind and what that depends on."""
        return describe_order(self.order)

    def compare(self) -> dict[str, Any]:
        """Return what must be equal when the run is repeated: everything but times, memory and where it was run."""
        content = dataclasses.asdict(self)
        content["metrics"] = {key: value for key, value in self.metrics.items() if key not in MEASURED}
        return {key: value for key, value in content.items() if key not in UNCOMPARED}


def read_rows(folder: str | os.PathLike[str]) -> tuple[list[Row], list[str]]:
    """Return the rows of a folder of runs, or of a pack, as they were finished, and messages about dropped lines.

    If a run was finished twice, the later row is kept.
    """
    packed = Path(folder) / PACKED_ROWS
    path = packed if packed.exists() else Path(folder) / ROWS
    try:
        content = path.read_bytes()
        lines = (lzma.decompress(content) if path is packed else content).split(b"\n")
    except FileNotFoundError as error:
        raise MissingFile(
            f"There are no runs in {str(folder)!r} (no rows.jsonl); run 'lmr bench PLAN' first."
        ) from error
    except OSError as error:
        raise LmrError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    except lzma.LZMAError as error:
        raise LmrError(f"{str(path)!r} is damaged ({error}); restore it, or make the pack again.") from error
    rows: dict[str, Row] = {}
    messages = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = Row.from_json(line.decode())
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            last = "The last line" if number == len(lines) else f"Line {number}"
            messages.append(f"{last} of {str(path)!r} is damaged and was left out ({error}).")
        else:
            rows.pop(row.run, None)
            rows[row.run] = row
    return list(rows.values()), messages


def append_row(folder: str | os.PathLike[str], row: Row) -> None:
    """Add a row and flush it to the disk; an incomplete last line, left by a kill, is cut off first."""
    path = Path(folder) / ROWS
    try:
        with open(path, "a+b") as file:
            _cut_incomplete_line(file)
            file.write(row.to_json().encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LmrError(f"Cannot add a row to {str(path)!r}: {error.strerror or error}.") from error


def _cut_incomplete_line(file: io.BufferedRandom) -> None:
    """Make the file end with a complete line."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    file.seek(0)
    content = file.read()
    if not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)


def write_samples(folder: str | os.PathLike[str], run: str, samples: Mapping[str, NDArray[Any]]) -> None:
    """Write the answers to all images of a run, atomically."""
    target = Path(folder) / "samples"
    target.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **dict(samples))  # type: ignore[arg-type]  # names are never allow_pickle
    write_atomically(target / f"{run}.npz", content.getvalue())


def read_samples(folder: str | os.PathLike[str], run: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a run, [N] each, by the names in SAMPLES."""
    path = Path(folder) / "samples" / f"{run}.npz"
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise MissingFile(f"There are no samples of the run {run} in {str(folder)!r}; run the bench again.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise LmrError(f"{str(path)!r} is damaged; delete it and its row and run the bench again. ({error})") from error
    if missing := [name for name in SAMPLES if name not in found]:
        raise LmrError(f"{str(path)!r} does not hold {', '.join(missing)}; run the bench again.")
    return found
