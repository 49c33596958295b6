"""The checkpoint of a run: answers so far in one growing file, the method's state and the position in another.

Answers are written first and the state second, which says how many answers belong to it. A kill at any moment leaves a
state whose answers are all there; what stands behind them is cut off. A checkpoint that is damaged counts as none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from lmr.bench.running.answers import RECORD, Records
from lmr.core.errors import LmrError
from lmr.core.files import acquire_lock
from lmr.core.method import Method

WAIT = 20.0  # seconds for the process of a killed bench to go


class Checkpoint:
    """Where a run stands; for a ``with`` block, during which no other process can open it."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder / "checkpoints"
        self.answers, self.state = self.folder / f"{run}.answers", self.folder / f"{run}.state"
        self.batches = self.images = self.peak = 0

    def __enter__(self) -> Checkpoint:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = open(self.answers, "a+b")
        if not acquire_lock(self.file, WAIT):
            self.file.close()
            raise LmrError(f"Another process is writing {str(self.answers)!r}; wait for it to end.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def restore(self, method: Method, say: Callable[[str], object]) -> None:
        """Bring the method to where it was saved, if it was; answers of batches after that are dropped."""
        method.reset()
        if self.state.exists():
            try:
                notes = method.load(self.state)
                batches, images, peak = (int(notes[key]) for key in ("batches", "images", "peak"))
                if os.fstat(self.file.fileno()).st_size < images * RECORD.itemsize:
                    raise ValueError("answers are missing")
                self.batches, self.images, self.peak = batches, images, peak
            except (LmrError, KeyError, ValueError) as error:
                say(f"A checkpoint cannot be used and its run starts anew: {error}")
                method.reset()
        self.file.truncate(self.images * RECORD.itemsize)
        self.file.seek(0, os.SEEK_END)

    def add(self, records: Records, peak: int) -> None:
        """Take the answers to one batch."""
        records["batch"] = self.batches
        self.file.write(records.tobytes())
        self.batches += 1
        self.images += len(records)
        self.peak = max(self.peak, peak)

    def save(self, method: Method) -> None:
        """Make everything so far survive."""
        self.file.flush()
        os.fsync(self.file.fileno())
        notes = {"batches": str(self.batches), "images": str(self.images), "peak": str(self.peak)}
        method.save(self.state, notes=notes)

    def read(self) -> Records:
        """All answers so far: [N]."""
        self.file.flush()
        self.file.seek(0)
        return np.frombuffer(self.file.read(), RECORD)

    def delete(self) -> None:
        """Remove the files of a run that is finished."""
        for path in (self.state, self.answers):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
