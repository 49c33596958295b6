"""A lock for each method: threads that share one take turns. Towers need none, as nothing ever changes them."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from weakref import WeakKeyDictionary

# Kept outside of their owners, which can thus be copied and pickled.
_LOCKS: WeakKeyDictionary[object, threading.RLock] = WeakKeyDictionary()
_REGISTRY = threading.Lock()


def hold(owner: object) -> AbstractContextManager[bool]:
    """Return a context within which no other thread holds ``owner``; a thread may hold it several times."""
    with _REGISTRY:
        return _LOCKS.setdefault(owner, threading.RLock())


def _forget_locks() -> None:
    """Let a forked process begin without locks: the threads that held them exist in its parent alone."""
    global _REGISTRY
    _REGISTRY = threading.Lock()
    _LOCKS.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_forget_locks)
