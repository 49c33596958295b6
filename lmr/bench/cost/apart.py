"""The peak memory of one contender above the loaded model, measured in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

from lmr.bench.cost.entries import Entry
from lmr.bench.cost.measured_model import Source
from lmr.core.errors import LmrError


def measure_apart(source: Source, entry: Entry, batch_size: int, classes: int, threads: int) -> int | None:
    """Bytes by which one step raises the peak of a fresh process; None if the system ended it for want of memory."""
    sizes = {"batch_size": batch_size, "classes": classes, "threads": threads}
    order = {"source": dataclasses.asdict(source), "entry": dataclasses.asdict(entry), **sizes}
    command = [sys.executable, "-m", "lmr.bench.cost.child", json.dumps(order)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == -9:
        return None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LmrError(f"The process that measures the memory of {entry.name} failed: {last}")
    return int(json.loads(done.stdout.splitlines()[-1])["peak"])
