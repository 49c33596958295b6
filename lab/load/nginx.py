"""nginx before replicas of this machine, with the configuration in ``deploy``."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from lab.load import postgres_server
from lmr.core.errors import LmrError
from lmr.service.client.client import Client
from lmr.service.network import find_free_port

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
MISSING = postgres_server.MISSING or ("" if shutil.which("nginx") else "nginx is not installed (Debian: nginx-light)")


class Proxy:
    """A context with nginx on a free port, as ``deploy/nginx.conf`` configures it, before services of this machine."""

    def __init__(self, ports: Sequence[int], folder: Path) -> None:
        if MISSING:
            raise LmrError(f"{MISSING}; install it for this experiment.")
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder / f"nginx-{self.port}"
        self._folder.mkdir()
        text = CONFIGURATION.read_text("utf-8").replace("listen 8080", f"listen 127.0.0.1:{self.port}")
        server = re.findall(r" *server lmr-\d+:8080(.*;)\n", text)[0]
        servers = "".join(f"server 127.0.0.1:{port}{server}\n" for port in ports)
        text = re.sub(r"( *server lmr-\d+:8080.*;\n)+", servers, text)
        paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        temporary = "".join(f"{name}_temp_path {self._folder / name};\n" for name in paths)
        whole = f"daemon off; pid {self._folder / 'pid'};\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{text}}}\n"
        (self._folder / "nginx.conf").write_text(whole, "utf-8")

    def __enter__(self) -> Self:
        log = self._folder / "error.log"
        command = ["nginx", "-e", str(log), "-c", str(self._folder / "nginx.conf")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        with Client(self.url, patience=0) as client:
            while not client.is_ready():
                if self._process.poll() is not None or time.monotonic() > end:
                    raise LmrError(f"nginx did not start:\n{log.read_text('utf-8', errors='replace')[-2000:]}")
                time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
