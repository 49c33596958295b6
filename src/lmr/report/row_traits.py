"""What a row is in a table, asked from the traits of its method: reports know no method by its name.

Methods that are not loaded (a user's file, a package that is no longer installed) have the traits of any other method.
"""

from __future__ import annotations

import enum
from typing import Any

from lmr.bench.running.row import Row
from lmr.core.card import Role
from lmr.core.method import Method, list_arguments
from lmr.core.registry import find_method, list_methods, split_address
from lmr.core.spec import parse_spec


class LineKind(enum.Enum):
    """What a line of a table shows."""

    BASELINE = enum.auto()  # the frozen classifier
    OTHER = enum.auto()  # any method, also one of ours that is watched or has changed arguments
    OURS = enum.auto()  # the method that others are compared with, as published
    PART = enum.auto()  # a method with some of its parts switched off and nothing else changed
    STEP = enum.auto()  # a step of a sweep: only the arguments of the sweep are changed


class StreamKind(enum.Enum):
    """How a run goes through the domains; the values are the words that rows keep."""

    DOMAIN = "domain"  # the method is reset for every domain
    NEVER = "never"  # it is never reset
    CONTINUAL = "continual"  # one stream through all domains, one after the other
    MIXED = "mixed"  # one stream with all domains shuffled

    @property
    def several(self) -> bool:
        """Whether one run covers several domains."""
        return self in (StreamKind.CONTINUAL, StreamKind.MIXED)


def stream_of(row: Row) -> StreamKind:
    """How the run of a row goes through its domains."""
    for kind in StreamKind:
        if kind.several and row.domain == kind.value:
            return kind
    return StreamKind.DOMAIN if row.reset == StreamKind.DOMAIN.value else StreamKind.NEVER


def read_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a spec; the file in front of ``FILE.py:name(...)`` is ignored, never imported."""
    return parse_spec(split_address(spec)[1])


def find_known(name: str) -> type[Method] | None:
    """The class of a method, None for one that is not loaded."""
    return find_method(name) if name in list_methods() else None


def role_of(row: Row) -> Role:
    """The role of a row's method; unknown methods are others."""
    method = find_known(row.method)
    return method.card.role if method else Role.OTHER


def label_of(row: Row) -> str:
    """What tables call a row's method, whatever its plan called this run."""
    method = find_known(row.method)
    return method.card.label if method else row.method.upper()


def place_of(row: Row) -> tuple[int, bool, bool, int, str]:
    """Sorts rows as tables list methods: baseline, without training, by year, unknown ones, ours."""
    method = find_known(row.method)
    if method is None:
        return Role.OTHER, True, False, 0, row.method
    return method.card.role, False, bool(method.towers), method.card.year, row.method


def kind_of(row: Row) -> LineKind:
    """What a row is in a table."""
    changes, role = find_changes(row.spec), role_of(row)
    if role is Role.BASELINE:
        return LineKind.BASELINE
    if changes:
        method = find_known(row.method)
        if method and set(changes) <= set(method.card.parts):
            return LineKind.PART
        return LineKind.OTHER if find_sweep(row) is None else LineKind.STEP
    return LineKind.OURS if role is Role.OURS and not row.watch else LineKind.OTHER


def find_sweep(row: Row) -> str | None:
    """The sweep of its method that a row is a step of: only the arguments of the sweep are changed."""
    method, changes = find_known(row.method), find_changes(row.spec)
    if method is None or not changes:
        return None
    return next((name for name, arguments in method.card.swept.items() if set(changes) <= set(arguments)), None)


def list_parts_off(spec: str) -> tuple[str, ...]:
    """The parts of the method that a spec switches off."""
    name, values = read_spec(spec)
    method = find_known(name)
    return tuple(part for part in method.card.parts if not values.get(part, True)) if method else ()


def expand_spec(spec: str, preset: str | None = None) -> dict[str, Any]:
    """Every argument of a spec with its value: what it says, else what its preset says, else the default."""
    name, values = read_spec(spec)
    method = find_method(name)
    preset = values.pop("preset", None) or preset
    chosen = method.card.presets[preset].values if preset in method.card.presets else {}
    return {key: getattr(method, key) for key in list_arguments(method)} | chosen | values


def find_changes(spec: str) -> dict[str, Any]:
    """Where a spec differs from the nearest preset of its method (or its defaults); nothing for an unknown method."""
    name, _ = read_spec(spec)
    method = find_known(name)
    if method is None:
        return {}
    values = expand_spec(spec)
    bases = [expand_spec(name), *(expand_spec(name, preset) for preset in method.card.presets)]
    changes = [{key: value for key, value in values.items() if base.get(key) != value} for base in bases]
    return min(changes, key=len)
