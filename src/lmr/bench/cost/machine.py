"""The machine that a measurement ran on, as far as the system describes it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from lmr.version import __version__


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """So many threads of torch within this context, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_machine() -> dict[str, str | int]:
    """Processor, cores, memory, the load of the last minute, and the versions of the libraries."""
    facts: dict[str, str | int] = {"machine": _name_processor(), "cores": count_cores()}
    with contextlib.suppress(ValueError, OSError, AttributeError):
        facts["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    with contextlib.suppress(OSError, AttributeError):
        facts["load_before"] = f"{os.getloadavg()[0]:.2f}"
    facts |= {"system": platform.platform(), "python": platform.python_version(), "torch": torch.__version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts["transformers"] = importlib.metadata.version("transformers")
    return facts | {__name__.partition(".")[0]: __version__}


def _name_processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()
