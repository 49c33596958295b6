from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_ray import FakeFuture, FakeRay

import lmr
from lmr import LmrError
from lmr.cluster import nodes
from lmr.cluster.nodes import Node, check_nodes, count_free_places, describe_mismatch, list_versions, probe


def make_node(name: str = "b", clock: float = 0.0, **versions: str) -> Node:
    return Node("id", name, 2, 8_000_000_000, list_versions() | versions, clock)


def test_equal_nodes_are_accepted_without_a_word() -> None:
    assert check_nodes([make_node("a"), make_node("b")], list_versions()) == []


def test_node_with_another_version_is_refused_by_name() -> None:
    with pytest.raises(LmrError, match=r"The node b has torch 1\.0 \(here .*\); rows of different versions"):
        check_nodes([make_node("a"), make_node("b", torch="1.0")], list_versions())


@pytest.mark.parametrize("name", ["sources of lmr", "Pillow", "OpenCV"])
def test_what_decides_the_numbers_beside_torch_is_compared(name: str) -> None:
    with pytest.raises(LmrError, match=rf"The node b has {name} 0 \(here .+\); rows of different versions"):
        check_nodes([make_node("b", **{name: "0"})], list_versions())


def test_changed_source_changes_the_digest(tmp_path: Path) -> None:
    assert Path(lmr.__file__).parent == nodes.SOURCES
    found = []
    for name, content in (("__init__.py", ""), ("part/a.py", "x = 1"), ("part/a.py", "x = 2"), ("notes.txt", "none")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        found.append(nodes.digest_sources.__wrapped__(tmp_path))
    assert len(set(found)) == 3
    assert found[2] == found[3]  # what is no source does not count
    assert all(len(digest) == 12 for digest in found)


def test_missing_package_is_a_mismatch() -> None:
    assert describe_mismatch({}, {"numpy": "2"}) == "numpy missing (here 2)"


def test_clock_that_is_off_is_told_and_harmless() -> None:
    (words,) = check_nodes([make_node("a"), make_node("late", clock=-3600.0)], list_versions())
    assert words == "The clock of the node late is off by -3600 s; results do not depend on it."


@pytest.mark.parametrize(("time", "ahead"), [(1045.0, 0.0), (1690.0, 600.0), (400.0, -600.0)])
def test_clocks_are_compared_with_the_moments_of_asking_and_hearing(
    time: float, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a node takes to answer is not an error of its clock."""
    ray, now = FakeRay(lambda node, run: None, a=2), iter((1000.0, 1090.0))
    said = FakeFuture(probe() | {"time": time})
    task = SimpleNamespace(options=lambda **place: SimpleNamespace(remote=lambda: said))
    monkeypatch.setattr(ray, "remote", lambda **given: lambda function: task)
    monkeypatch.setattr(nodes, "time", SimpleNamespace(time=lambda: next(now)))
    (node,) = nodes.find_nodes(ray)
    assert node.clock == ahead
    assert len(check_nodes([node], list_versions())) == (abs(ahead) > 60)


def test_probe_tells_what_rows_carry() -> None:
    said = probe()
    assert said["versions"] == list_versions()
    assert said["memory"] > 0


def test_free_places_are_those_of_single_nodes() -> None:
    ray = FakeRay(lambda node, run: None, a=1, b=3)
    assert list(count_free_places(ray, 2.0).values()) == [0, 1]
    assert list(count_free_places(ray, 0.1).values()) == [10, 30]
    assert list(count_free_places(ray, 1.0, 1.0).values()) == [0, 0]
