from __future__ import annotations

import socket
import sys

import pytest

from lmr import LmrError
from lmr.cluster import ray_connection
from lmr.cluster.ray_connection import connect, import_ray


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LmrError, match=r"Ray is not installed; install it with: pip install 'lmr\[ray\]'"):
        import_ray()


@pytest.mark.ray
def test_cluster_that_cannot_be_reached_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")

    def refuse(**given: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nmore")

    monkeypatch.setattr(ray, "init", refuse)
    with (
        pytest.raises(LmrError, match=r"Cannot reach a Ray cluster at 'auto': Could not find .* 'ray start --head'"),
        connect("auto"),
    ):
        pass


@pytest.mark.ray
def test_machine_that_is_too_busy_for_a_cluster_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives up after half a minute, with an exception of no kind."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")

    def give_up(**given: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because of load.")

    monkeypatch.setattr(ray, "init", give_up)
    with pytest.raises(LmrError, match=r"'local': The current node timed out .* too busy to start one.*; try it again"):
        connect().__enter__()


@pytest.mark.ray
def test_port_that_does_not_answer_is_an_error_at_once() -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    with socket.socket() as taken:  # bound, and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LmrError, match=rf"Cannot reach a Ray cluster at '{address}': .*; check the address\."):
            connect(address).__enter__()


@pytest.mark.ray
def test_machine_that_is_no_node_is_told_to_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")

    def refuse(**given: object) -> None:
        raise RuntimeError("Can't find a `node_ip_address.json` file. Waited for 60 seconds.")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray_connection, "_try_port", lambda address: None)
    message = r"Waited for 60 seconds; check the address\. Give the command on a machine of the cluster; 'ray start"
    with pytest.raises(LmrError, match=message):
        connect("192.168.1.10:6379").__enter__()
    with pytest.raises(LmrError, match=r"Ray Client .* Give the command on a machine of the cluster"):
        connect("ray://192.168.1.10:10001").__enter__()


@pytest.mark.ray
def test_cluster_of_other_versions_is_told_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is Ray's own: what differs is in the lines after the first."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    from ray._private.utils import check_version_info

    def refuse(**given: object) -> None:
        check_version_info({"ray_version": "1.0.0", "python_version": "3.6.1"}, "node 127.0.0.1")

    monkeypatch.setattr(ray, "init", refuse)
    message = r"different versions of Ray or Python: .* Ray: 1\.0\.0 Python: 3\.6\.1 This process .*Install the same"
    with pytest.raises(LmrError, match=message):
        connect("auto").__enter__()
