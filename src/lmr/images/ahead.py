"""Read ahead: worker threads prepare the next items while the caller computes; results keep their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, TypeVar

from lmr.images.files import muted_pillow

T = TypeVar("T")
R = TypeVar("R")

THREAD_NAME = "lmr-read-ahead"


class ReadAhead(Generic[T, R]):
    """An iterator over ``work(item)`` of every item, in the order of ``items``, computed by threads inside ``with``.

    At most ``ahead`` results wait or are being computed. Items are taken one at a time, and each thread holds one, so
    that ``items`` may itself read something large. An exception of ``items`` or ``work`` is raised in the caller, at
    the position of its result. No thread is left when ``with`` ends, however it ends; for that, an iterator of slow
    items should end when the event ``ended`` is set.
    """

    def __init__(
        self,
        items: Iterable[T],
        work: Callable[[T], R],
        *,
        ahead: int,
        workers: int = 1,
        ended: threading.Event | None = None,
    ) -> None:
        self._items, self._work, self._ahead = iter(items), work, ahead
        self._results: deque[Future[R]] = deque()
        self._taking = threading.Lock()  # items are taken in order
        self._changed = threading.Condition()  # guards everything below
        self._busy = 0  # threads that take or work on an item
        self._held = False
        self._ended = ended or threading.Event()
        # Warning filters are one list per process: threads that decode must not change it while the caller computes.
        self._muted = muted_pillow()
        # Daemons, because a Ctrl-C during a start must not keep the process alive; otherwise they are joined.
        self._threads = [threading.Thread(target=self._run, name=THREAD_NAME, daemon=True) for _ in range(workers)]

    def __enter__(self) -> ReadAhead[T, R]:
        self._muted.__enter__()
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # ``with`` has not begun and would not call it
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        for thread in self._threads:
            if thread.is_alive():  # not every one has been started
                thread.join()
        self._muted.__exit__(None, None, None)
        close = getattr(self._items, "close", None)  # a generator may hold a file open
        if close is not None:
            close()

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if not self.has_more():
            raise StopIteration
        with self._changed:
            result = self._results.popleft()
            self._changed.notify_all()
        return result.result()

    def has_more(self) -> bool:
        """Return True if another result follows; waits until the next item is taken, not until its work is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._ended.is_set())
            return bool(self._results)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the work that has begun, and begin no other inside ``with``: for a measurement."""
        with self._changed:
            self._held = True
            self._changed.wait_for(lambda: not self._busy)
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            item, result = taken
            try:
                result.set_result(self._work(item))
            except BaseException as error:  # whatever it is, it belongs to the caller
                result.set_exception(error)
            self._finish()

    def _take(self) -> tuple[T, Future[R]] | None:
        """Return the next item and the future of its result; None when there is nothing more to do."""
        with self._taking:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended.is_set() or (not self._held and len(self._results) < self._ahead)
                )
                if self._ended.is_set():
                    return None
                self._busy += 1
            result: Future[R] = Future()
            try:
                item = next(self._items)
            except StopIteration:
                self._end()
            except BaseException as error:
                result.set_exception(error)
                self._end(result)
            else:
                with self._changed:
                    self._results.append(result)
                    self._changed.notify_all()
                return item, result
            self._finish()
            return None

    def _end(self, last: Future[R] | None = None) -> None:
        with self._changed:
            self._results += [] if last is None else [last]
            self._ended.set()
            self._changed.notify_all()

    def _finish(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()
