"""The candidates of a tuning: a method with every combination of some of its arguments' values."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.registry import split_address
from lmr.core.spec import format_spec, parse_spec


def read_values(text: str) -> tuple[str, tuple[Any, ...]]:
    """``"lr=3e-4,1e-3"`` as an argument and its values; a word that is no Python literal is a string."""
    key, equals, values = text.partition("=")
    words = [word.strip() for word in values.split(",")]
    if not key.strip().isidentifier() or not equals or not all(words):
        raise LmrError(f'Cannot read the values {text!r}; write them as in "lr=3e-4,1e-3,3e-3".')
    found = tuple(_read_literal(word) for word in words)
    if len(set(map(repr, found))) < len(found):
        raise LmrError(f"Expected every value once in {text!r}.")
    return key.strip(), found


def list_candidates(method: str, over: Sequence[str]) -> list[str]:
    """The method as it is, then with every combination of the values in ``over``: addresses for ``create``.

    Equal ones are not removed here: only a created method tells its values.
    """
    file, spec = split_address(method)
    name, given = parse_spec(spec)
    axes = [read_values(text) for text in over]
    keys = [key for key, _ in axes]
    if len(set(keys)) < len(keys):
        raise LmrError(f"Expected every argument once in --over, got {', '.join(keys)}.")
    made = [format_spec(name, given | dict(zip(keys, chosen, strict=True)))
            for chosen in itertools.product(*(values for _, values in axes))]  # fmt: skip
    return [address if file is None else f"{file}:{address}" for address in (format_spec(name, given), *made)]


def _read_literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
