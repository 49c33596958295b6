"""ChildService: the real ``lmr serve`` as a child process that can be measured, killed and restarted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx

from lmr.core.errors import LmrError
from lmr.service.client.client import Client
from lmr.service.network import find_free_port

START_SECONDS = 300.0


class ChildService:
    """A context with a service on a free port of this machine, and its log in ``folder``."""

    def __init__(self, options: Sequence[str], folder: Path) -> None:
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._command = [sys.executable, "-m", "lmr", "serve", *where, *options]
        self.log = folder / f"service-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ChildService:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Return the id of the running process."""
        if self._process is None:
            raise LmrError("The service of this experiment is not running.")
        return self._process.pid

    def start(self) -> None:
        """Start the service and wait until it is ready."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + START_SECONDS
        with Client(self.url, patience=0) as client:
            while not client.is_ready():
                if self._process.poll() is not None or time.monotonic() > end:
                    self.kill()
                    raise LmrError(f"The service did not become ready; the end of its log:\n{self.read_log_end()}")
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the service with -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def read_metrics(self) -> dict[str, float]:
        """Return the metrics by name, or by name and labels as Prometheus writes them."""
        text = httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False, verify=False).text  # no TLS here
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def read_log_end(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])

    def read_cpu_seconds(self) -> float:
        """Return the processor time that the service has used so far."""
        return self.read_metrics()["process_cpu_seconds_total"]

    def read_spec(self) -> tuple[str, bool]:
        """Return the spec of the served method, and True if it is watched."""
        with Client(self.url) as client:
            card = client.model()
        return str(card["spec"]), card.get("watch", "off") != "off"
