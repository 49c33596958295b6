"""``lmr list``: all methods and models, and the arguments and presets of one method."""

from __future__ import annotations

import inspect
import io
import textwrap
import typing
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lmr.core.errors import LmrError
from lmr.core.explain import explain_fields
from lmr.core.method import Method
from lmr.core.registry import AUTO, find_method, list_methods, sort_methods
from lmr.core.spec import format_spec, list_arguments
from lmr.models import list_models
from lmr.models.catalog import DEFAULT_MODEL

WIDTH = 100  # columns
FEW = 2  # the smallest number of classes


def describe_everything() -> str:
    """Return every method and every model, each in a line or two."""
    methods = [find_method(name) for name in sort_methods(list_methods())]
    models = [(name, f"{line}; the default" if name == DEFAULT_MODEL else line) for name, line in list_models().items()]
    return "\n".join(
        [
            "METHODS",
            *_write_columns([(method.name, _read_line(method), method.card.source) for method in methods]),
            "",
            _fill("'lmr list NAME' shows the arguments and presets of one. Use a method as --method NAME, "
                  "--method \"NAME(argument=value)\" or in lmr.create. A method of your own is ./FILE.py:NAME."),
            "",
            "MODELS",
            *_write_columns(models),
            "",
            _fill("Use a model as --model NAME or in lmr.load. Any folder, file or hub name of a CLIP or "
                  "SigLIP model works as well. 'lmr doctor NAME' describes and checks one."),
        ]
    )  # fmt: skip


def describe_name(name: str) -> str:
    """Return the description of one method, by its name or by ``FILE.py:name``."""
    if name in list_models() and name not in list_methods():
        raise LmrError(f"{name!r} is a model, not a method; 'lmr doctor {name}' describes it.")
    return describe_method(find_method(name))


def describe_method(method: type[Method]) -> str:
    """Return what a method does, its arguments with defaults, types and explanations, and its presets."""
    defaults = {key: getattr(method, key) for key in list_arguments(method)}
    hints = typing.get_type_hints(method)
    spec = format_spec(method.name, defaults)
    meanings = explain_fields(method)
    arguments = [(key, repr(value), _name_type(hints[key]), meanings.get(key, "")) for key, value in defaults.items()]
    return "\n".join(
        [
            _fill(f"{method.card.label}: {_read_line(method)}"),
            *(_fill(line) for line in _describe_traits(method)),
            "",
            "ARGUMENTS" if arguments else "It has no arguments.",
            *_write_columns([("name", "default", "type", "meaning"), *arguments] if arguments else []),
            "",
            "PRESETS",
            *_write_columns([("name", "batch size", "values", "source"), *_list_presets(method)]),
            "",
            "WITH ALL DEFAULTS",
            textwrap.fill(spec, WIDTH, initial_indent="  ", subsequent_indent="      "),
        ]
    )  # fmt: skip


def _read_line(method: type[Method]) -> str:
    return next(iter((inspect.getdoc(method) or "").splitlines()), "")


def _name_type(hint: Any) -> str:
    """Return a type as Python writes it, or the values and types of a choice."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if any(typing.get_origin(part) is typing.Literal for part in typing.get_args(hint)):
        return " or ".join(map(_name_type, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _describe_traits(method: type[Method]) -> list[str]:
    towers = " and ".join(f"the {tower.value} tower" for tower in method.towers)
    adapts = f"Adapts the {method.trained} of {towers}." if towers else "Adapts no weights."
    reason = method.single_stream_reason
    streams = f"Serves one stream: {reason}." if reason else "Serves many streams in one batch."
    views = "Uses several views of each image, which can also be given." * method.takes_views
    span = method.memory_span
    state = "" if span == "stream" else f"Keeps nothing of {'an image' if span == 'image' else 'a batch'} for the next."
    traits = " ".join(part for part in (adapts, streams, views, state) if part)
    return [f"Source: {method.card.source}."] * bool(method.card.source) + [traits]


def _list_presets(method: type[Method]) -> list[tuple[str, str, str, str]]:
    found = []
    for name, preset in method.card.presets.items():
        values = ", ".join(f"{key}={value!r}" for key, value in preset.values.items()) or "the defaults"
        found.append((name, str(preset.batch_size), values, preset.source))
    if chosen := method.choose_values(FEW):
        values = ", ".join(f"{key}={value!r}" for key, value in chosen.items())
        size = str(method.card.presets["default"].batch_size)
        found.append((AUTO, size, f"{values} with few classes, else the defaults", "docs/choosing.md"))
    return found


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH)


def _write_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows in columns that together fit the width; a cell that is too long wraps over several lines."""
    if not rows:
        return []
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in zip(*rows, strict=True):
        longest = max(map(len, column))
        table.add_column(overflow="fold", min_width=min(longest, 8), no_wrap=longest <= 14)
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=WIDTH - 2, markup=False, emoji=False, highlight=False, color_system=None).print(table)
    return [f"  {line}".rstrip() for line in text.getvalue().splitlines()]
