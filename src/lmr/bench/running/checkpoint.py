"""The checkpoint of a run: the answers so far in one growing file, the state of the method in another.

The answers are written first, then the state, which holds the number of answers that belong to it. A kill at any moment
leaves a state whose answers are complete; answers after those are cut off. A damaged checkpoint is ignored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from lmr.bench.inputs import AnyMethod
from lmr.bench.running.answers import RECORD, Records
from lmr.core.errors import LmrError
from lmr.core.files import hold_lock

WAIT = 20.0  # seconds for the processes of a killed bench to end


class Checkpoint:
    """The progress of a run; a context manager, within which no other process can open the checkpoint."""

    def __init__(self, folder: Path, run: str, device: str = "cpu") -> None:
        self.device = device  # a run is not resumed on another one
        self.folder = folder / "checkpoints"
        self.answers, self.state, self.lock = (self.folder / f"{run}.{end}" for end in ("answers", "state", "lock"))
        self.batches = self.images = self.peak = 0
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Checkpoint:
        self.folder.mkdir(parents=True, exist_ok=True)
        message = f"Another process is writing {str(self.answers)!r}; wait for it to end."
        with contextlib.ExitStack() as held:
            held.enter_context(hold_lock(self.lock, message, WAIT))
            self.file = held.enter_context(open(self.answers, "a+b"))
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def restore(self, method: AnyMethod, log: Callable[[str], object]) -> None:
        """Load the saved state into the method, if there is one, and drop the answers to later batches."""
        method.reset()
        if self.state.exists():
            try:
                notes = method.load(self.state)
                batches, images, peak = (int(notes[key]) for key in ("batches", "images", "peak"))
                if notes.get("device", "cpu") != self.device:
                    raise ValueError(f"it was made on {notes.get('device', 'cpu')}, not on {self.device}")
                if os.fstat(self.file.fileno()).st_size < images * RECORD.itemsize:
                    raise ValueError("answers are missing")
                self.batches, self.images, self.peak = batches, images, peak
            except (LmrError, KeyError, ValueError) as error:
                log(f"A checkpoint cannot be used, its run starts again: {error}")
                method.reset()
        self.file.truncate(self.images * RECORD.itemsize)
        self.file.seek(0, os.SEEK_END)

    def add(self, records: Records, peak: int) -> None:
        """Add the answers to one batch."""
        records["batch"] = self.batches
        self.file.write(records.tobytes())
        self.batches += 1
        self.images += len(records)
        self.peak = max(self.peak, peak)

    def save(self, method: AnyMethod) -> None:
        """Write everything so far to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        notes = {"batches": str(self.batches), "images": str(self.images), "peak": str(self.peak)}
        notes["device"] = self.device
        method.save(self.state, notes=notes)

    def read(self) -> Records:
        """Return all answers so far: [N]."""
        self.file.flush()
        self.file.seek(0)
        return np.frombuffer(self.file.read(), RECORD)

    def delete(self) -> None:
        """Remove the files of a run that is finished."""
        for path in (self.state, self.answers, self.lock):
            path.unlink(missing_ok=True)
