"""Cards of methods: what tables say about them is valid."""

from __future__ import annotations

import pytest

import lmr
from lmr.core.card import Switch


def test_switches_of_a_method_are_arguments_that_it_has() -> None:
    card = lmr.find_method("lmr").card
    clip = lmr.load("pocket").classifier(["red ring", "blue star"])
    assert card.switches[0] == Switch({}, 1.0)  # the method as published keeps its gain
    for switch in card.switches:
        lmr.create("lmr", clip, **switch.values)
        assert 0 <= switch.kept <= 1.1


@pytest.mark.parametrize("name", lmr.list_methods())
def test_every_card_names_label_source_and_presets(name: str) -> None:
    card = lmr.find_method(name).card
    assert card.label
    assert str(card.year) in card.source
    assert "default" in card.presets
    assert all(preset.source and preset.batch_size > 0 for preset in card.presets.values())
