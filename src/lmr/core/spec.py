"""The spec string, the textual form of a configuration: ``tent(lr=2.5e-4, optimizer="sgd")``."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import numbers
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.foreign_text import shorten

_SHOWN = 100  # characters of an unknown name in a message
_HINTS: dict[type, dict[str, Any]] = {}


def list_arguments(method: type[Any]) -> list[str]:
    """Return the names of a method's own arguments, in order."""
    given = (field.name for field in dataclasses.fields(method) if field.init)
    return [name for name in given if name not in ("classifier", "streams", "unknown")]


def find_hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a class by name, found once, as that takes longer than making an object."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name(key=literal, ...)`` into its name and arguments. Literals only: nothing is ever evaluated."""
    example = 'write it as name or name(key=value), for example "lmr(lr=1e-3)"'
    if not isinstance(text, str):
        raise LmrError(f"Cannot read the method {text!r}: {example}.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise LmrError(f"Cannot read the method {text!r}: {example}.") from error
    if isinstance(tree, ast.Name):
        return tree.id, {}
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        raise LmrError(f"Cannot read the method {text!r}: {example}.")
    values: dict[str, Any] = {}
    for keyword in tree.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise LmrError(f"Cannot read the method {text!r}: give every argument once, with its name; {example}.")
        try:
            values[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, MemoryError, RecursionError) as error:
            raise LmrError(f"The argument {keyword.arg!r} in {text!r} must be a plain value; {example}.") from error
    return tree.func.id, values


def format_spec(name: str, values: Mapping[str, Any]) -> str:
    """Return the canonical string of a configuration; parsing it gives the same configuration."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"


def suggest(word: str, known: Iterable[str]) -> str:
    """`` Did you mean ...?`` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def find_near(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names that are spelt most like one."""
    names = {simplify_name(one): one for one in known}
    return [names[near] for near in difflib.get_close_matches(simplify_name(name), names, n=count)]


def list_unknown(unknown: Sequence[str], known: Collection[str], most: int = 20) -> str:
    """Return unknown names as a list for an error message, each with the known names nearest to it."""
    parts = [
        f"{name!r} (did you mean {' or '.join(map(repr, near))}?)" if (near := find_near(name, known)) else repr(name)
        for name in (shorten(one, _SHOWN) for one in unknown[:most])
    ]
    return ", ".join(parts) + (f" and {len(unknown) - most} more" if len(unknown) > most else "")


def simplify_name(name: str) -> str:
    """Return one form for all spellings of a class name: "Great_white  shark" becomes "great white shark"."""
    return " ".join(name.replace("_", " ").casefold().split())


def convert(value: Any, hint: Any, where: str) -> Any:
    """Return ``value`` in Python's own type if it fits the hint, otherwise raise an LmrError.

    A whole number is accepted for a float. NumPy's numbers and strings become Python's, so that spec strings stay
    plain. A list, or an array or tensor [n], becomes a tuple.
    """
    if isinstance(value, list) or getattr(value, "ndim", 0) == 1:
        value = tuple(value if isinstance(value, list) else value.tolist())
    if not _fits(value, hint):
        raise LmrError(f"Expected {_describe(hint)} for {where}, got {value!r}.")
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return convert(value, next(h for h in typing.get_args(hint) if _fits(value, h)), where)
    if isinstance(value, tuple):
        return tuple(convert(v, h, where) for v, h in zip(value, _list_hints(value, hint), strict=True))
    if hint is float:
        return float(value)
    if hint is int:
        return int(value)
    return str(value) if isinstance(value, str) else value


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return isinstance(value, str | numbers.Number | None) and value in inner
    if origin is tuple:
        hints = _list_hints(value, hint) if isinstance(value, tuple) else ()
        return bool(hints) and len(value) == len(hints) and all(map(_fits, value, hints))
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, h) for h in inner)
    if hint is float:
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return number and (not isinstance(value, int) or abs(value) < 2**1023) and bool(value == value)
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return isinstance(value, hint)


def _list_hints(value: tuple[Any, ...], hint: Any) -> tuple[Any, ...]:
    """Return the hint of every entry of a tuple, as given or, for ``tuple[X, ...]``, X for all."""
    inner = typing.get_args(hint)
    return inner[:1] * len(value) if inner[-1] is Ellipsis else inner


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        count = "" if inner[-1] is Ellipsis else f"{len(inner)} "
        return f"{count}values in brackets, each {_describe(inner[0])},"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, typing.get_args(hint)))
    words = {float: "a number", int: "a whole number", bool: "True or False", str: "a string", type(None): "None"}
    return words.get(hint, str(hint))
