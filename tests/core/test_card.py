"""Cards of methods: what tables say about them is valid."""

from __future__ import annotations

import pytest

import lmr
from lmr.core.method import list_arguments


@pytest.mark.parametrize("name", lmr.list_methods())
def test_parts_of_a_method_are_arguments_that_it_has(name: str) -> None:
    method = lmr.find_method(name)
    assert set(method.card.parts) <= set(list_arguments(method))
