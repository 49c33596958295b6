"""Locks of towers: one thread at a time runs a tower, or lends parameters to its norms.

A tower is in use for as long as a step needs it, forward and backward: its norms may hold the parameters of one stream,
and its buffers are reused by the next call. The locks are kept outside of the modules, so that modules can be copied
and pickled.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
        yield


def _find_locks(tower: nn.Module) -> tuple[_Lock, ...]:
    """Return the locks of the tower's norms, or of the tower itself where it has none.

    Towers that overlap share norms. What a thread needs inside a tower it holds, a part of it, is among its locks.
    """
    with _REGISTRY:
        if tower not in _SETS:
            norms: list[nn.Module] = [module for module in tower.modules() if isinstance(module, nn.LayerNorm)]
            _SETS[tower] = tuple(_LOCKS.setdefault(module, _Lock()) for module in norms or [tower])
        return _SETS[tower]
