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
    """A bar that counts finished units; one that is not ``shown`` counts and prints nothing."""

    text: str = ""
    total: float | None = None
    unit: str = "images"
    done: float = 0
    shown: bool = False
    delay: float = 0.0  # seconds before it appears, so that short work shows none

    def __post_init__(self) -> None:
        self._begun = time.monotonic()
        self._screen: Progress | None = None
        self._task: TaskID | None = None

    def advance(self, count: float = 1) -> None:
        """Count ``count`` more units as finished."""
        self.done += count
        self._update()

    def describe(self, text: str) -> None:
        """Set the text to the left of the bar."""
        self.text = text
        self._update()

    def close(self) -> None:
        """Leave the bar as it is; one with a delay disappears."""
        if self._screen is not None:
            self._screen.stop()

    def _update(self) -> None:
        if self.shown and self._screen is None and time.monotonic() - self._begun >= self.delay:
            self._screen = _open_screen(self.unit, transient=self.delay > 0)
            self._task = self._screen.add_task(self.text, total=self.total, completed=int(self.done))
        if self._screen is not None and self._task is not None:
            self._screen.update(self._task, description=self.text, completed=self.done, total=self.total)


@contextlib.contextmanager
def show_progress(
    text: str = "", total: float | None = None, unit: str = "images", *, done: float = 0, shown: bool | None = None,
    delay: float = 0.0,
) -> Iterator[ProgressBar]:  # fmt: skip
    """Show a bar for ``total`` units, of which ``done`` are finished, until the end of the context.

    The unit "bytes" is shown as kB, MB and GB, with the speed. A bar with a ``delay`` appears after that many seconds
    and is removed at the end. ``shown`` is True on a terminal by default.
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    with contextlib.closing(ProgressBar(text, total, unit, done, terminal if shown is None else shown, delay)) as bar:
        bar._update()
        yield bar


def _open_screen(unit: str, transient: bool) -> Progress:
    from rich import progress
    from rich.console import Console

    columns: list[progress.ProgressColumn] = [progress.TextColumn("{task.description}"), progress.BarColumn()]
    if unit == "bytes":
        columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    else:
        columns += [progress.MofNCompleteColumn(), progress.TextColumn(unit)]
    columns += [progress.TimeElapsedColumn(), progress.TimeRemainingColumn()]
    # Standard output may be a pipe: rich must not send it to the terminal.
    console = Console(file=sys.stderr)
    screen = progress.Progress(
        *columns, console=console, transient=transient, redirect_stdout=False, refresh_per_second=4
    )
    screen.start()
    return screen
