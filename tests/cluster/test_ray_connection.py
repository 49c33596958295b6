from __future__ import annotations

import socket
import sys

import pytest

from lmr import LmrError
from lmr.cluster.ray_connection import connect, import_ray


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LmrError, match=r"Ray is not installed; install it with: pip install 'lmr\[ray\]'"):
        import_ray()


@pytest.mark.ray
def test_port_that_does_not_answer_is_an_error_at_once() -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    with socket.socket() as taken:  # bound, and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LmrError, match=rf"Cannot reach a Ray cluster at '{address}': .*; check the address\."):
            connect(address).__enter__()
