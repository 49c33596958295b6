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
        pytest.raises(LmrError, match="--head"),
        connect("auto"),
    ):
        pass


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
    with pytest.raises(LmrError, match="command"):
        connect("ray://192.168.1.10:10001").__enter__()
