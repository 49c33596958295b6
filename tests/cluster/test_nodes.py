from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import lmr
from fake_ray import FakeFuture, FakeRay
from lmr import LmrError
from lmr.cluster import nodes
from lmr.cluster.nodes import (
    Node,
    check_nodes,
    count_free_places,
    describe_mismatch,
    describe_workers,
    digest_method,
    list_versions,
    place_workers,
    probe,
)


def make_node(name: str = "b", clock: float = 0.0, **versions: str) -> Node:
    return Node("id", name, 2, 8_000_000_000, list_versions() | versions, clock)


def make_ray(said: object) -> FakeRay:
    """A cluster of one node, which says this of itself, or fails with it."""
    ray = FakeRay(lambda node, run: None, a=2)
    task = SimpleNamespace(options=lambda **place: SimpleNamespace(remote=lambda: FakeFuture(said)))
    ray.remote = lambda **given: lambda function: task  # type: ignore[method-assign,assignment]
    return ray


def test_equal_machinesare_accepted_without_a_word() -> None:
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


def test_file_of_a_method_is_told_by_its_content(tmp_path: Path) -> None:
    assert digest_method("lmr(lr=1e-3)") == {}
    file, found = tmp_path / "own.py", []
    for content in ("x = 1", "x = 2"):
        file.write_text(content)
        found.append(digest_method(f"{file}:own"))
    assert describe_mismatch(*found).startswith(f"content of {file} ")


def test_missing_package_is_a_mismatch() -> None:
    assert describe_mismatch({}, {"numpy": "2"}) == "numpy missing (here 2)"


def test_clock_that_is_off_is_told_and_harmless() -> None:
    (message,) = check_nodes([make_node("a"), make_node("late", clock=-3600.0)], list_versions())
    assert message == "The clock of the node late is off by -3600 s; results do not depend on it."


@pytest.mark.parametrize(("time", "ahead"), [(1045.0, 0.0), (1690.0, 600.0), (400.0, -600.0)])
def test_clocks_are_compared_with_the_moments_of_asking_and_hearing(
    time: float, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a node takes to answer is not an error of its clock."""
    ray, now = make_ray(probe() | {"time": time}), iter((1000.0, 1090.0))
    monkeypatch.setattr(nodes, "time", SimpleNamespace(time=lambda: next(now)))
    (node,) = nodes.find_nodes(ray)
    assert node.clock == ahead
    assert len(check_nodes([node], list_versions())) == (abs(ahead) > 60)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("GetTimeoutError", r"The node a+ does not answer \(GetTimeoutError\); it may lack memory .*'ray stop'"),
        ("WorkerCrashedError", r"does not answer \(WorkerCrashedError\); it may lack memory"),
        ("RuntimeEnvSetupError", r"The node a+ cannot run lmr \(.*\); install the same version of lmr on every node"),
    ],
)
def test_node_that_does_not_answer_is_told_by_its_cause(error: str, message: str) -> None:
    """Installing lmr again would not help a node without memory."""
    exceptions = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'").exceptions
    with pytest.raises(LmrError, match=message):
        nodes.find_nodes(make_ray(getattr(exceptions, error)("Some message.")))


def test_probe_tells_what_rows_carry() -> None:
    said = probe()
    assert said["versions"] == list_versions()
    assert said["memory"] > 0


def test_workers_are_placed_by_the_cores_of_nodes() -> None:
    machines = [Node(name, name, cores, 0, {}, 0.0) for name, cores in (("a", 4), ("b", 2), ("c", 1))]
    assert place_workers(machines, 3, 1) == {"a": 1, "b": 1, "c": 1}
    assert place_workers(machines, 9, 1) == {"a": 4, "b": 2, "c": 1}
    assert place_workers(machines, 9, 2) == {"a": 2, "b": 1, "c": 0}
    lines = describe_workers(machines, 3, 2)
    assert lines[0] == "Node a: 4 cores, 0.0 GB free, 2 workers"
    assert lines[1:3] == ["Node b: 2 cores, 0.0 GB free, 1 worker", "Node c: 1 cores, 0.0 GB free, 0 workers"]


def test_free_places_are_those_of_single_nodes() -> None:
    ray = FakeRay(lambda node, run: None, a=1, b=3)
    assert list(count_free_places(ray, 2.0).values()) == [0, 1]
    assert list(count_free_places(ray, 0.1).values()) == [10, 30]
    assert list(count_free_places(ray, 1.0, 1.0).values()) == [0, 0]
