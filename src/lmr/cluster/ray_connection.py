"""The connection to Ray: a cluster that runs, or one that is started on this machine and ends with the command."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from lmr.bench.machine import count_cores
from lmr.core.errors import LmrError

PORT_SECONDS = 10.0  # for a port to answer; Ray itself would try for minutes and print every try
NODE_HINT = (  # Ray looks for a node on the machine of the command, and its own message does not say so
    "Give the command on a machine of the cluster; 'ray start --address=HEAD:PORT --num-cpus=0' makes this one a "
    "machine of it that computes nothing."
)
SETTINGS_FRAME, FRAME_HEAD = 4, 9  # the type of an HTTP/2 frame, and the bytes before its content
HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS_FRAME, 0, 0, 0, 0, 0])
MISMATCH = "Version mismatch:"  # the beginning of Ray's message about other versions
LOCAL = "local"  # the address of a cluster on this machine, for the time of the command


def import_ray() -> Any:
    """Return the package ray; an LmrError that says how to get it where it is missing."""
    # Statistics would be sent to the makers of Ray; workers inherit the variable.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the new behaviour, without a warning about it
    try:
        import ray
    except ImportError as error:
        raise LmrError("Ray is not installed; install it with: pip install 'lmr[ray]'") from error
    return ray


@contextlib.contextmanager
def connect(address: str = LOCAL, variables: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Ray, connected within this context. "local" starts a cluster here, "auto" finds one that runs on this machine.

    A connection that the program has made already is used and kept. ``variables`` are added to the environment of the
    processes that are started through this connection.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if address.startswith("ray://"):
        raise LmrError(f"Ray Client ({address!r}) is not supported. {NODE_HINT}")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        quiet |= {"num_cpus": count_cores(), "include_dashboard": False}
    if variables:
        quiet["runtime_env"] = {"env_vars": dict(variables)}
    try:
        _try_port(address)
        ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises any, also plain ones
        raise LmrError(_explain(address, error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _explain(address: str, error: Exception) -> str:
    """Return why there is no connection, and what to do, in a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith(MISMATCH):  # the versions are in the lines below
        found = " ".join(lines).removeprefix(MISMATCH).strip()
        return (
            f"The Ray cluster at {address!r} and this command have different versions of Ray or Python: {found}. "
            "Install the same versions on every machine."
        )
    hint = f"check the address. {NODE_HINT}"
    if address == LOCAL:
        hint = "the machine may be too busy to start one, or lack memory; try it again."
    elif address == "auto":
        hint = "start one with 'ray start --head', or leave 'auto' out."
    reason = lines[0] if lines else type(error).__name__
    return f"Cannot reach a Ray cluster at {address!r}: {reason.rstrip('.')}; {hint}"


def _try_port(address: str) -> None:
    """Raise OSError if an address names a port that does not answer, or not as the head of a Ray cluster does."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), PORT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("0", "false") and not _speaks_http2(connection):
            raise OSError("what answers there is not the head of a cluster, whose port 'ray start' prints")


def _speaks_http2(connection: socket.socket) -> bool:
    """Return True if the other end answers the opening of HTTP/2, which gRPC is made of, with settings of its own."""
    answer = b""
    try:
        connection.sendall(HTTP2_OPENING)
        while len(answer) < FRAME_HEAD and (part := connection.recv(FRAME_HEAD - len(answer))):
            answer += part
    except OSError:  # silence, or the end of the connection
        return False
    return len(answer) == FRAME_HEAD and answer[3] == SETTINGS_FRAME
