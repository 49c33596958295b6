"""The spec string: every configuration comes back from it, and nothing else gets in."""

from __future__ import annotations

import contextlib
import keyword
import math
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmr
from lmr.core.spec import convert, format_spec, list_unknown, parse_spec, suggest

WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True).filter(lambda word: not keyword.iskeyword(word))
NUMBERS = st.one_of(st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False))
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20))
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3), st.tuples(PLAIN, st.tuples(PLAIN)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WORDS, st.dictionaries(WORDS, VALUES, max_size=5))
def test_every_configuration_comes_back(name: str, values: dict[str, Any]) -> None:
    text = format_spec(name, values)
    assert parse_spec(text) == (name, values)
    assert format_spec(*parse_spec(text)) == text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(max_size=20), st.text("lmr(=,) 1'[]{}-*:\"", max_size=20)))
def test_any_text_is_read_or_answered_with_a_sentence(text: str) -> None:
    with contextlib.suppress(lmr.LmrError):
        name, values = parse_spec(text)
        assert name.isidentifier()
        assert all(key.isidentifier() for key in values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lmr", ("lmr", {})),
        ("  lmr  ", ("lmr", {})),
        ("lmr()", ("lmr", {})),
        ("lmr( lr = 1e-3 , )", ("lmr", {"lr": 1e-3})),
        ("lmr(\n  lr=1,\n  pmr=False\n)", ("lmr", {"lr": 1, "pmr": False})),
        ("tent(lr=-2.5e-4, optimizer='sgd')", ("tent", {"lr": -2.5e-4, "optimizer": "sgd"})),
        ('a(b="c(d=1)")', ("a", {"b": "c(d=1)"})),
        ("a(b=(1, 2), c=None)", ("a", {"b": (1, 2), "c": None})),
    ],
)
def test_people_may_write_it_as_they_like(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert parse_spec(text) == expected


CODE = [
    "lmr(lr=__import__('os'))",
    "lmr(lr=__import__('os').system('touch {mark}'))",
    "lmr(lr=open({mark!r}, 'w'))",
    "lmr(lr=[open({mark!r}, 'w') for _ in (1,)])",
    "lmr(lr=(lambda: open({mark!r}, 'w'))())",
    "lmr(lr=f'{{open({mark!r}, \"w\")}}')",
    "lmr(**{{'lr': open({mark!r}, 'w')}})",
    "__import__('os').system('touch {mark}')",
    "(open({mark!r}, 'w') or lmr)(lr=1)",
]


@pytest.mark.parametrize("code", CODE)
def test_code_is_never_run(code: str, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    with pytest.raises(lmr.LmrError):
        parse_spec(code.format(mark=mark))
    assert not os.path.exists(mark)


REFUSED = [
    "", " ", "()", "lmr(", "lmr)", "lmr(lr)", "lmr(1e-3)", "lmr(*[1])", "lmr(**{'lr': 1})", "lmr(lr=1, lr=2)",
    "lmr(lr=1 lr=2)", "lmr.step", "lmr.step()", "lmr.lmr(lr=1)", "lmr(lr=1).step", "lmr(lr=1)(lr=2)", "lmr[0]",
    "lmr(lr=x)", "lmr(lr=os.path)", "lmr(lr=1+1)", "lmr(lr=1 if 2 else 3)", "lmr(lr=2**3)", "lmr(lr=not 1)",
    "lmr(lr=nan)", "lmr(lr={[]: 1})", "lmr(lr={{}})", "'lmr'", "1", "lmr; tent", "lmr\ntent", "lmr = 1", "lmr(lr:=1)",
    "import os", "lambda: 1", "lmr(lr=…)", "lmr-2", "tent or lmr", "lmr(class=1)", "\0", "lmr(lr='\0')", "\ud800",
    "lmr(" * 300, "lmr(lr=" + "(" * 5000 + "1", "lmr(lr=" + "-" * 100_000 + "1)", "lmr(lr=1" + "0" * 5000 + ")",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text)[:30])
def test_what_is_not_a_spec_gets_a_sentence(text: str) -> None:
    with pytest.raises(lmr.LmrError, match=r'for example "lmr\(lr=1e-3\)"'):
        parse_spec(text)


# Types.

FITTING = [
    (1, float, 1.0), (1e-3, float, 1e-3), (-2, float, -2.0), (5, int, 5), (True, bool, True), ("x", str, "x"),
    (None, float | None, None), (0.5, float | None, 0.5), ((1, 2), tuple[int, int], (1, 2)),
    ("a", Literal["a", "b"], "a"), (np.float64(0.1), float, 0.1), (np.str_("a"), Literal["a", "b"], "a"),
    (np.str_("a"), str, "a"), (math.inf, float, math.inf), (np.int64(4), int, 4), (np.float32(0.5), float, 0.5),
    ((0.5,), tuple[float, ...], (0.5,)), ((1, 0.5, np.float32(2)), tuple[float, ...], (1.0, 0.5, 2.0)),
    ([1, 2], tuple[int, int], (1, 2)), ([0.5, 1], tuple[float, ...], (0.5, 1.0)),
    (np.array([0.5, 1]), tuple[float, ...], (0.5, 1.0)), (torch.tensor([0.5, 1]), tuple[float, ...], (0.5, 1.0)),
    ((1, 2), Literal["a"] | tuple[float, ...], (1.0, 2.0)), ("a", Literal["a"] | tuple[float, ...], "a"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "hint", "expected"), FITTING)
def test_value_that_fits_comes_as_pythons_own_type(value: Any, hint: Any, expected: Any) -> None:
    """A NumPy number would print as a call, and the spec string could not be read again."""
    made = convert(value, hint, "here")
    assert made == expected
    assert type(made) is type(expected)
    if isinstance(expected, tuple):
        assert list(map(type, made)) == list(map(type, expected))


MISFITS = [
    ("x", float, "a number"), (True, float, "a number"), (None, float, "a number"), (math.nan, float, "a number"),
    (10**400, float, "a number"), (1j, float, "a number"), ([1.0], float, "a number"), (1.0, int, "a whole number"),
    (True, int, "a whole number"), ("1", int, "a whole number"), (1, bool, "True or False"),
    ("True", bool, "True or False"),
    (0.0, bool, "True or False"), (1, str, "a string"), (None, str, "a string"), ("c", Literal["a", "b"], "'a' or 'b'"),
    (["a"], Literal["a", "b"], "'a' or 'b'"), ({}, Literal["a", "b"], "'a' or 'b'"),
    ((1,), tuple[int, int], "2 values in brackets"),
    ([1], tuple[int, int], "2 values in brackets"), ([1, 2], float, "a number"),
    ((), tuple[float, ...], "values in brackets, each a number,"), ((1, "x"), tuple[float, ...], "each a number,"),
    ((1, math.nan), tuple[float, ...], "each a number,"), (0.5, tuple[float, ...], "values in brackets"),
    ("b", Literal["a"] | tuple[float, ...], "'a' or values in brackets, each a number,"),
    (np.zeros((2, 2)), Literal["a"] | tuple[float, ...], "'a' or values in brackets"),
    ((1, "x"), tuple[int, int], "2 values in brackets"), ("x", float | None, "a number or None"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "hint", "words"), MISFITS)
def test_value_that_does_not_fit_gets_a_sentence(value: Any, hint: Any, words: str) -> None:
    with pytest.raises(lmr.LmrError, match=f"Expected .*{words}.* for 'k' of m, got"):
        convert(value, hint, "'k' of m")


def test_nearest_word_is_suggested() -> None:
    assert suggest("deltta", ["lr", "delta", "eta"]) == " Did you mean 'delta'?"
    assert suggest("zzz", ["lr", "delta"]) == ""
    assert suggest("x", []) == ""


def test_all_unknown_names_are_listed_with_near_ones() -> None:
    known = ["cat", "dog", "truck"]
    assert list_unknown(["dgo", "zebra", "trucks"], known) == (
        "'dgo' (did you mean 'dog'?), 'zebra', 'trucks' (did you mean 'truck'?)"
    )
    assert list_unknown(["z" * 10_000], known) == repr("z" * 100 + "...")
    assert list_unknown([f"{k}{k}{k}" for k in range(10, 40)], known, most=3).endswith("'121212' and 27 more")
