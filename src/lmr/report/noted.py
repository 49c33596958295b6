"""A result together with what a reader must know about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Noted(Generic[T]):
    """A value and notes on how it came about; callers join the notes and show them once."""

    value: T
    notes: tuple[str, ...] = ()


def join_notes(*groups: Iterable[str]) -> tuple[str, ...]:
    """All notes in their order, each once."""
    return tuple(dict.fromkeys(note for group in groups for note in group))
