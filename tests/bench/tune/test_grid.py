"""The candidates of a tuning."""

from __future__ import annotations

import pytest

import lmr
from lmr.bench.tune.grid import list_candidates, read_values


def test_values_are_numbers_or_words() -> None:
    assert read_values("lr=3e-4, 1e-3") == ("lr", (3e-4, 1e-3))
    assert read_values("emit=after,before") == ("emit", ("after", "before"))
    assert read_values("am=True,False") == ("am", (True, False))


@pytest.mark.parametrize("text", ["lr", "lr=", "lr=1,,2", "=1", "l r=1,2"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(lmr.LmrError, match="Cannot read the values"):
        read_values(text)


def test_a_value_or_an_argument_that_comes_twice_is_refused() -> None:
    with pytest.raises(lmr.LmrError, match="every value once"):
        read_values("lr=1e-3,0.001")
    with pytest.raises(lmr.LmrError, match="every argument once"):
        list_candidates("lmr", ["lr=1", "lr=2"])


def test_the_method_as_it_is_comes_first() -> None:
    assert list_candidates("lmr(am=False)", ["lr=1e-4,1e-3", "delta=0.02,0.05"]) == [
        "lmr(am=False)",
        "lmr(am=False, lr=0.0001, delta=0.02)",
        "lmr(am=False, lr=0.0001, delta=0.05)",
        "lmr(am=False, lr=0.001, delta=0.02)",
        "lmr(am=False, lr=0.001, delta=0.05)",
    ]
    assert list_candidates("./mine.py:mine", ["x=1"]) == ["./mine.py:mine()", "./mine.py:mine(x=1)"]
