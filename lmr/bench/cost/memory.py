"""The peak memory of this process: how far a piece of work raises it above what was there before."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

from lmr.core.errors import LmrError

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_peak(work: Callable[[], object]) -> int:
    """Bytes by which ``work`` raises the peak of this process; for a fresh process with the model loaded and warm.

    What was freed but not given back would hide a part of the work's own memory, so it is given back first. Where the
    system lets the peak be set back, what happened before the call does not count; elsewhere the loading of a model
    may have reached higher than the work does, and the answer is then too small.
    """
    gc.collect()
    _give_back()
    reset_peak()
    before = read_peak()
    work()
    return read_peak() - before


def read_peak() -> int:
    """The peak memory of this process in bytes.

    Linux keeps ``ru_maxrss`` across exec, so a process started by a large one would begin with that one's peak; its own
    is in /proc.
    """
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError as error:
        raise LmrError("This measurement reads the peak memory of a process as Linux and macOS count it.") from error
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak() -> bool:
    """Set the peak of this process back to what it holds now; says whether the system allowed it."""
    try:
        _CLEAR.write_text("5")  # proc(5): 5 resets the peak resident set size
    except OSError:
        return False
    return True


def read_available() -> int | None:
    """Bytes that a new process could take without swapping; None where the system does not say."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return None


def estimate_prompt(tokens: int, depth: int, width: int) -> int:
    """About how many bytes a graph keeps of one prompt: per token and block 12 widths of float32.

    Two norms, q, k, v, attention, four of the perceptron, and the sums.
    """
    return tokens * depth * width * 4 * 12


def _give_back() -> None:
    """Let glibc return freed pages to the system; other C libraries have no such call."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
