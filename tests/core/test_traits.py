"""Traits of methods: switches are read from the table beside the method's file."""

from __future__ import annotations

from pathlib import Path

import lmr
from lmr.core.traits import Switch, read_switches


def test_switches_are_in_the_table_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'source = "a trial"\n'
        "switches = [{ kept = 1.0, values = {} }, { kept = 0.5, values = { k = 2 }, depth = 0.25 }]\n"
    )
    switches, source = read_switches(str(tmp_path / "mine.py"))
    assert switches == (Switch({}, 1.0), Switch({"k": 2}, 0.5, 0.25))
    assert source == "a trial"
    assert switches[1].list_keys() == {"k", "blocks"}


def test_switches_of_a_method_are_arguments_that_it_has() -> None:
    method = lmr.find_method("lmr")
    clip = lmr.load("pocket").classifier(["red ring", "blue star"])
    assert method.switches[0] == Switch({}, 1.0)  # the method as published keeps its gain
    for switch in method.switches:
        lmr.create("lmr", clip, **switch.values)
        assert 0 <= switch.kept <= 1.1
