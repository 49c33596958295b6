"""The role of a row in tables and figures, from the traits of its method: reports know no method by name.

Rows are reported even if their method cannot be loaded, for example because its file or package is missing.
"""

from __future__ import annotations

import enum
from typing import Any

from lmr.bench.running.row import Row
from lmr.core.card import Card, Role
from lmr.core.method import Method
from lmr.core.registry import find_method, list_methods, split_address
from lmr.core.spec import list_arguments, parse_spec


class LineKind(enum.Enum):
    """The role of a line in a table."""

    BASELINE = enum.auto()  # the frozen classifier
    OTHER = enum.auto()  # any method, also ours if it is watched or has changed arguments
    OURS = enum.auto()  # the method that others are compared with, as published
    PART = enum.auto()  # a method with some of its parts switched off and nothing else changed
    STEP = enum.auto()  # a step of a sweep: only the arguments of the sweep are changed


class StreamKind(enum.Enum):
    """The way a run goes through the domains; the values are those of a row's ``domain`` or ``reset``."""

    DOMAIN = "domain"  # the method is reset for every domain
    NEVER = "never"  # it is never reset
    CONTINUAL = "continual"  # one stream through all domains, one after the other
    MIXED = "mixed"  # one stream with all domains shuffled

    @property
    def several(self) -> bool:
        """True if one run covers several domains."""
        return self in (StreamKind.CONTINUAL, StreamKind.MIXED)


def stream_of(row: Row) -> StreamKind:
    """Return the way the run of a row goes through its domains."""
    if row.domain in (StreamKind.CONTINUAL.value, StreamKind.MIXED.value):
        return StreamKind(row.domain)
    return StreamKind.DOMAIN if row.reset == StreamKind.DOMAIN.value else StreamKind.NEVER


def read_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a spec; the file of ``FILE.py:name(...)`` is never imported.

    Arguments that the method no longer has are left out where they changed nothing.
    """
    name, values = parse_spec(split_address(spec)[1])
    former = find_card(name).former
    return name, {key: value for key, value in values.items() if key not in former or former[key] != value}


def find_known(name: str) -> type[Method] | None:
    """Return the class of a method, None for one that is not loaded."""
    return find_method(name) if name in list_methods() else None


def find_card(name: str) -> Card:
    """Return the card of a method; one that is not loaded has its name and nothing else."""
    method = find_known(name)
    return method.card if method else Card(label=name.upper(), presets={})


def label_of(row: Row) -> str:
    """Return the label of a row's method, whatever its plan called the run."""
    return find_card(row.method).label


def place_of(row: Row) -> tuple[int, bool, bool, int, str]:
    """Return a key that sorts rows as tables do: baseline, methods without training, by year, unknown ones, ours."""
    method, card = find_known(row.method), find_card(row.method)
    return card.role, method is None, bool(method and method.towers), card.year, row.method


def kind_of(row: Row) -> LineKind:
    """Return the role of a row in a table."""
    changes, card = find_changes(row.spec), find_card(row.method)
    if card.role is Role.BASELINE:
        return LineKind.BASELINE
    if changes and row.selected:  # by the plan, whatever was changed
        return LineKind.OTHER
    if changes:
        step = LineKind.OTHER if find_sweep(row) is None else LineKind.STEP
        return LineKind.PART if set(changes) <= set(card.parts) else step
    return LineKind.OURS if card.role is Role.OURS and not row.watch else LineKind.OTHER


def is_variant(row: Row) -> bool:
    """Return True if the method is one of this project that no paper has: tables say that it is ours."""
    card = find_card(row.method)
    return card.role is Role.OURS and not card.in_paper


def find_sweep(row: Row) -> str | None:
    """Return the sweep that a row is a step of: no other arguments are changed."""
    changes, sweeps = set(find_changes(row.spec)), find_card(row.method).swept
    return next((name for name, keys in sweeps.items() if changes and changes <= set(keys)), None)


def identify_parts(spec: str) -> tuple[str, tuple[str, ...]]:
    """Return the method of a spec and the parts that it switches off."""
    name, values = read_spec(spec)
    return name, tuple(part for part in find_card(name).parts if not values.get(part, True))


def expand_spec(spec: str, preset: str | None = None) -> dict[str, Any]:
    """Return every argument of a spec with its value: as given, else from the preset, else the default."""
    name, values = read_spec(spec)
    method = find_method(name)
    preset = values.pop("preset", None) or preset
    chosen = method.card.presets[str(preset)].values if preset in method.card.presets else {}
    return {key: getattr(method, key) for key in list_arguments(method)} | chosen | values


def find_changes(spec: str) -> dict[str, Any]:
    """Return the arguments in which a spec differs from the nearest preset of its method, or its defaults."""
    name, _ = read_spec(spec)
    if find_known(name) is None:
        return {}
    values = expand_spec(spec)
    bases = [expand_spec(name), *(expand_spec(name, preset) for preset in find_card(name).presets)]
    changes = [{key: value for key, value in values.items() if base.get(key) != value} for base in bases]
    return min(changes, key=len)
