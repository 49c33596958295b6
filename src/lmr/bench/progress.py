"""A progress bar for work in counted steps, drawn by rich on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """One bar with a description; a context manager. Nothing is drawn where standard error is not a terminal.

    Args:
        total: The number of steps, or None while it is not known.
        unit: The name of a step, such as "image".
    """

    def __init__(self, total: int | None, unit: str) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total)
        self.done = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def describe(self, text: str) -> None:
        """Show what is being done."""
        self._bar.update(self._task, description=text)

    def advance(self, steps: int = 1) -> None:
        """Count finished steps."""
        self.done += steps
        self._bar.update(self._task, advance=steps)

    def set_total(self, total: int) -> None:
        """Change the number of steps."""
        self._bar.update(self._task, total=total)
