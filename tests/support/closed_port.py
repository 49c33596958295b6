"""An address at which nobody listens, for sure: its port is taken, so that no other program can open it meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hold_closed_port() -> Iterator[str]:
    """Host and port, as in 127.0.0.1:12345; connections to it are refused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and never listens
        yield f"127.0.0.1:{held.getsockname()[1]}"
