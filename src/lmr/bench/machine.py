"""The machine that a measurement runs on: cores, threads, peak memory, and measurements in a fresh process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import multiprocessing
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lmr.core.errors import LmrError
from lmr.version import __version__

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Use this number of torch threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_machine() -> dict[str, str | int]:
    """Return the processor, cores, memory, load of the last minute, and versions of the libraries."""
    facts: dict[str, str | int] = {"machine": _name_processor(), "cores": count_cores()}
    with contextlib.suppress(ValueError, OSError, AttributeError):
        facts["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    with contextlib.suppress(OSError, AttributeError):
        facts["load_before"] = f"{os.getloadavg()[0]:.2f}"
    facts |= {"system": platform.platform(), "python": platform.python_version(), "torch": torch.__version__}
    facts["transformers"] = importlib.metadata.version("transformers")
    return facts | {__name__.partition(".")[0]: __version__}


def _name_processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_device(device: torch.device) -> str:
    """Return the kind of a device, and for a GPU its name and how it multiplies float32 numbers."""
    if device.type != "cuda":
        return device.type
    convolutions = "TF32" if torch.backends.cudnn.allow_tf32 else "float32"
    return (
        f"cuda ({torch.cuda.get_device_name(device)}, products of {torch.get_float32_matmul_precision()} precision, "
        f"convolutions in {convolutions})"
    )


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished its work, for a measurement."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_peak(work: Callable[[], object], device: torch.device | None = None) -> int:
    """Return the bytes by which ``work`` raises the peak memory of this process, or what torch allocates on a GPU.

    The process should be fresh, with the model loaded and warmed up. Memory that was freed but not returned to the
    system would hide a part of what the work needs, so it is returned first. Where the system can reset the peak,
    earlier work does not count. Elsewhere, loading the model may have reached a higher peak than the work does, and the
    result is then too small.
    """
    gc.collect()
    if device is not None and device.type == "cuda":
        wait_for(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # of glibc; other C libraries have no such call
    reset_peak()
    before = read_peak()
    work()
    return read_peak() - before


def read_peak() -> int:
    """Return the peak memory of this process in bytes.

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
    """Reset the peak of this process to its present size; return whether the system allowed it."""
    try:
        _CLEAR.write_text("5")  # proc(5): 5 resets the peak resident set size
    except OSError:
        return False
    return True


def call_fresh(function: Callable[..., int], what: str, *arguments: Any) -> int | None:
    """Return ``function(*arguments)``, called in a fresh process; None if the system killed it for lack of memory.

    For measurements that must not depend on what this process did before. ``what`` names the measurement in errors.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_call_and_send, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = None
    process.join()
    if isinstance(answer, int):
        return answer
    if process.exitcode == -signal.SIGKILL:  # how Linux ends a process for lack of memory
        return None
    reason = answer or f"it ended with code {process.exitcode}"
    raise LmrError(f"The process that measures {what} failed: {reason}")


def _call_and_send(connection: Connection, function: Callable[..., int], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send(function(*arguments))
    except Exception as error:
        connection.send(str(error) or type(error).__name__)
