"""Call a function in a fresh process, for measurements that must not see what this process did before.

The process runs ``python -m lmr.bench.cost.fresh_process MODULE FUNCTION ORDER``; the order is the JSON text of the
function's arguments, and the answer is printed as JSON.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from lmr.core.errors import LmrError

_KILLED = -9  # how Linux ends a process for lack of memory


def call_fresh(function: Callable[..., int], what: str, **order: Any) -> int | None:
    """What a module's function returns for an order of plain values; None if the system killed the process.

    ``what`` says in an error message what was measured.
    """
    words = [function.__module__, function.__name__, json.dumps(order)]
    command = [sys.executable, "-m", __name__, *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == _KILLED:
        return None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise LmrError(f"The process that measures {what} failed: {last}")
    return int(json.loads(done.stdout.splitlines()[-1]))


def main(module: str, function: str, order: str) -> None:
    """The other end: call the function and print its answer."""
    try:
        answer = getattr(importlib.import_module(module), function)(**json.loads(order))
    except (LmrError, MemoryError, torch.OutOfMemoryError) as error:
        sys.exit(str(error) or "out of memory")
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
