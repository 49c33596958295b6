from __future__ import annotations

from pathlib import Path

import pytest

import lmr
from lmr import LmrError
from lmr.cluster import nodes
from lmr.cluster.nodes import (
    Node,
    check_nodes,
    choose_threads,
    describe_mismatch,
    digest_method,
    list_versions,
)


def make_node(name: str = "b", **versions: str) -> Node:
    return Node(name, 2, 8_000_000_000, list_versions() | versions)


def test_node_with_another_version_is_refused_by_name() -> None:
    with pytest.raises(LmrError, match="different"):
        check_nodes([make_node("a"), make_node("b", torch="1.0")], list_versions())


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


def test_threads_are_those_of_the_smallest_node_unless_the_model_is_small() -> None:
    machines = [Node(name, cores, 0, {}) for name, cores in (("a", 8), ("b", 4))]
    assert [choose_threads(small, machines) for small in (True, False)] == [1, 4]
