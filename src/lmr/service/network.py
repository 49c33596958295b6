"""Addresses of this machine, and files that hold the token of a service."""

from __future__ import annotations

import ipaddress
import os
import socket

from lmr.core.errors import LmrError
from lmr.core.files import read_text


def is_loopback(host: str) -> bool:
    """Return True if a host is this machine, as seen from itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def read_secret(path: str | os.PathLike[str], name: str) -> str:
    """Return the token or password in a file, without the white space around it; LmrError if there is none."""
    secret = read_text(path, f"the {name} in").strip()
    if not secret:
        raise LmrError(f"The {name} file {os.fspath(path)!r} is empty; write one with: openssl rand -hex 32")
    return secret
