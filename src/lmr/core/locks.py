"""Locks of towers: one thread at a time runs a tower, or lends parameters to its norms.

A tower is in use for as long as a step needs it, forward and backward: its norms may hold the parameters of one stream,
and its buffers are reused by the next call. The locks are kept outside of the modules, so that modules can be copied
and pickled.

A process that is forked has the thread that forked it alone. If another thread held a tower, the child would wait for
it forever, and its norms would keep the parameters of a stream. So a fork waits until no other thread holds anything.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn


class _Lock:
    """A re-entrant lock with a place in the one order in which locks are acquired."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.inner = threading.RLock()


_LOCKS: WeakKeyDictionary[nn.Module, _Lock] = WeakKeyDictionary()  # of single modules
_SETS: WeakKeyDictionary[nn.Module, tuple[_Lock, ...]] = WeakKeyDictionary()  # of towers: all that belong to one
_REGISTRY = threading.Lock()
_THREAD = threading.local()  # ``depth``: how many times a thread is inside of ``hold``
_LEAVES = [_REGISTRY]  # locks inside of which no other is acquired
_FORKING: list[Any] = []  # the locks that are held from before a fork until it is done


@contextmanager
def hold(*towers: nn.Module) -> Iterator[None]:
    """Within this context no other thread holds these towers, or any tower that shares a norm with them.

    A thread may hold a tower, and parts of it, several times. A thread that needs two towers holds them in one call:
    locks are acquired in one order, so that two threads cannot wait for each other.
    """
    locks = {lock for tower in towers for lock in _find_locks(tower)}
    with ExitStack() as stack:
        for lock in sorted(locks, key=lambda lock: lock.number):
            stack.enter_context(lock.inner)
        _THREAD.depth = getattr(_THREAD, "depth", 0) + 1
        try:
            yield
        finally:
            _THREAD.depth -= 1


def _find_locks(tower: nn.Module) -> tuple[_Lock, ...]:
    """Return the locks of the tower's norms, or of the tower itself where it has none.

    Towers that overlap share norms. What a thread needs inside a tower it holds, a part of it, is among its locks.
    """
    with _REGISTRY:
        if tower not in _SETS:
            norms: list[nn.Module] = [module for module in tower.modules() if isinstance(module, nn.LayerNorm)]
            _SETS[tower] = tuple(_LOCKS.setdefault(module, _Lock()) for module in norms or [tower])
        return _SETS[tower]


def make_leaf() -> threading.Lock:
    """Return a lock for values of this process that a fork copies whole. No other lock is acquired inside of it."""
    lock = threading.Lock()
    _LEAVES.append(lock)
    return lock


def _begin_fork() -> None:
    """Acquire all locks before a fork: those of towers in their order, then the leaves.

    A thread that forks inside of ``hold`` does not wait, as it could be waited for. Its child can use that tower.
    """
    while not getattr(_THREAD, "depth", 0):
        with _REGISTRY:
            known = sorted(_LOCKS.values(), key=lambda lock: lock.number)
        locks: list[Any] = [*(lock.inner for lock in known), *_LEAVES]
        for lock in locks:
            lock.acquire()
        _FORKING.extend(locks)
        if set(_LOCKS.values()) <= set(known):  # no tower is new since
            return
        _end_fork()


def _end_fork() -> None:
    """Release what is held since before a fork, in the parent and in the child."""
    while _FORKING:
        _FORKING.pop().release()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork)
