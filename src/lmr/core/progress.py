"""Progress bars on standard error, for the whole package; nothing is printed where it is not a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass
class ProgressBar:
    """A bar that counts finished units; one without a screen counts and shows nothing."""

    unit: str = "images"
    total: float | None = None
    done: float = 0
    delay: float = 0.0  # seconds before it appears, so that short work shows none
    _screen: Progress | None = None
    _task: TaskID | None = None

    def __post_init__(self) -> None:
        self._begun = time.monotonic()

    def advance(self, count: float = 1) -> None:
        """Count ``count`` more units as finished."""
        self.done += count
        self._update()

    def describe(self, text: str) -> None:
        """Set the text to the left of the bar."""
        if self._screen is not None and self._task is not None:
            self._screen.update(self._task, description=text)

    def set_total(self, total: float) -> None:
        """Set the number of units, where it becomes known later."""
        self.total = total
        self._update()

    def _update(self) -> None:
        if self._screen is not None and self._task is not None:
            late = time.monotonic() - self._begun >= self.delay
            self._screen.update(self._task, completed=self.done, total=self.total, visible=late)


@contextlib.contextmanager
def show_progress(
    text: str = "", total: float | None = None, unit: str = "images", *, done: float = 0, shown: bool | None = None,
    delay: float = 0.0,
) -> Iterator[ProgressBar]:  # fmt: skip
    """Show a bar for ``total`` units, of which ``done`` are finished, until the end of the context.

    The unit "bytes" is shown as kB, MB and GB, with the speed. A bar with a ``delay`` appears after that many seconds
    and is removed at the end. ``shown`` is True on a terminal by default.
    """
    bar = ProgressBar(unit, total, done, delay)
    if not (_is_terminal() if shown is None else shown):
        yield bar
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeElapsedColumn(), TimeRemainingColumn())
    # Standard output may be a pipe: rich must not send it to the terminal.
    screen = Progress(
        *columns, console=Console(file=sys.stderr), transient=delay > 0, redirect_stdout=False, refresh_per_second=4
    )
    with screen:
        bar._screen, bar._task = screen, screen.add_task(text, total=total, completed=int(done), visible=delay == 0)
        yield bar


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
