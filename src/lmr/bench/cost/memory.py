"""The peak memory of this process, and how far a piece of work raises it."""

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

    Memory that was freed but not returned to the system would hide a part of what the work needs, so it is returned
    first. Where the system can reset the peak, what happened before the call does not count. Elsewhere, loading the
    model may have reached a higher peak than the work does, and the answer is then too small.
    """
    gc.collect()
    _give_back()
    reset_peak()
    before = read_peak()
    work()
    return read_peak() - before


def read_peak() -> int:
    """The peak memory of this process in bytes.

    Linux keeps ``ru_maxrss`` across exec, so a process started by a large one would begin with the peak of its parent;
    its own peak is in /proc.
    """
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError as error:
        raise LmrError("Peak memory can be measured on Linux and macOS only.") from error
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak() -> bool:
    """Reset the peak of this process to its present size; returns whether the system allowed it."""
    try:
        _CLEAR.write_text("5")  # proc(5): 5 resets the peak resident set size
    except OSError:
        return False
    return True


def read_available() -> int | None:
    """Bytes that a new process could take without swapping; None where the system does not report it."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return None


def estimate_prompt(tokens: int, depth: int, width: int) -> int:
    """About how many bytes a graph keeps for one prompt: 12 widths of float32 per token and block.

    They are two norms, q, k, v, attention, four of the perceptron, and the sums.
    """
    return tokens * depth * width * 4 * 12


def _give_back() -> None:
    """Let glibc return freed pages to the system; other C libraries have no such call."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
