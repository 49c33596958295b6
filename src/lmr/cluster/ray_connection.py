"""The connection to Ray: a cluster that runs, or one that is started on this machine and ends with the command."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from lmr.bench.machine import count_cores
from lmr.core.errors import LmrError

PORT_SECONDS = 10.0  # for a port to answer; Ray itself would try for minutes and print every try
NODE_HINT = (  # Ray looks for a node on the machine of the command, and its own message does not say so
    "Give the command on a machine of the cluster; 'ray start --address=HEAD:PORT --num-cpus=0' makes this one a "
    "machine of it that computes nothing."
)
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
def connect(address: str = LOCAL) -> Iterator[Any]:
    """Ray, connected within this context. "local" starts a cluster here, "auto" finds one that runs on this machine.

    A connection that the program has made already is used and kept.
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
    hint = f"check the address. {NODE_HINT}"
    if address == LOCAL:
        hint = "the machine may be too busy to start one, or lack memory; try it again."
    elif address == "auto":
        hint = "start one with 'ray start --head', or leave 'auto' out."
    reason = " ".join(lines[:3]) or type(error).__name__  # versions that differ are below the first line
    return f"Cannot reach a Ray cluster at {address!r}: {reason.rstrip('.')}; {hint}"


def _try_port(address: str) -> None:
    """Raise OSError if an address names a port that does not answer."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    socket.create_connection((host.strip("[]"), int(port)), PORT_SECONDS).close()
