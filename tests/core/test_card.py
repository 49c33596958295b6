"""Cards of methods: what tables say about them is valid."""

from __future__ import annotations

import pytest

import lmr
from lmr.core.method import list_arguments


@pytest.mark.parametrize("name", lmr.list_methods())
def test_parts_of_a_method_are_arguments_that_it_has(name: str) -> None:
    method = lmr.find_method(name)
    assert set(method.card.parts) <= set(list_arguments(method))


@pytest.mark.parametrize("name", lmr.list_methods())
def test_every_card_names_label_source_and_presets(name: str) -> None:
    card = lmr.find_method(name).card
    assert card.label
    assert str(card.year) in card.source
    assert "default" in card.presets
    assert all(preset.source and preset.batch_size > 0 for preset in card.presets.values())
