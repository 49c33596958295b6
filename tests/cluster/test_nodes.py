from __future__ import annotations

import pytest

from lmr import LmrError
from lmr.cluster.nodes import Node, check_nodes, describe_mismatch, list_versions, probe


def make_node(name: str = "b", clock: float = 0.0, **versions: str) -> Node:
    return Node("id", name, 2, 8_000_000_000, list_versions() | versions, clock)


def test_equal_nodes_are_accepted_without_a_word() -> None:
    assert check_nodes([make_node("a"), make_node("b")], list_versions()) == []


def test_node_with_another_version_is_refused_by_name() -> None:
    with pytest.raises(LmrError, match=r"The node b has torch 1\.0 \(here .*\); rows of different versions"):
        check_nodes([make_node("a"), make_node("b", torch="1.0")], list_versions())


def test_missing_package_is_a_mismatch() -> None:
    assert describe_mismatch({}, {"numpy": "2"}) == "numpy missing (here 2)"


def test_clock_that_is_off_is_told_and_harmless() -> None:
    (words,) = check_nodes([make_node("a"), make_node("late", clock=-3600.0)], list_versions())
    assert words == "The clock of the node late is off by -3600 s; results do not depend on it."


def test_probe_tells_what_rows_carry() -> None:
    said = probe()
    assert said["versions"] == list_versions()
    assert said["memory"] > 0
