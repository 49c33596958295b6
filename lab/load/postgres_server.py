"""A PostgreSQL server of its own in a temporary folder, and databases in it."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from lmr.core.errors import LmrError
from lmr.service.network import find_free_port

BINARIES = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
USER = "postgres"  # the server refuses to run as root
MISSING = "" if BINARIES else "PostgreSQL is not installed (Debian: postgresql)"


class PostgresServer:
    """A server that is started on a free port of this machine, and removed with its data by ``remove``."""

    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lmr-postgres-"))
        self.port, self._databases = find_free_port("127.0.0.1"), 0
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
        self.folder.chmod(0o755)
        self._run("initdb", "-U", "lmr", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        more = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", *settings]
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{key} = '{value}'\n" for key, _, value in (line.partition("=") for line in more))
        self.start()

    @property
    def url(self) -> str:
        """Return the address of the first database."""
        return f"postgresql://lmr@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Return the id of the running server."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; an immediate stop is as a crash."""
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def remove(self) -> None:
        """Stop the server and remove its data."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make_database(self) -> str:
        """Return the address of an empty database: a new schema, which is made much faster."""
        self._databases += 1
        self.execute(f"CREATE SCHEMA lmr{self._databases}", self.url)
        return f"{self.url}?options=-csearch_path%3Dlmr{self._databases}"

    def execute(self, query: str, url: str = "") -> list[Any]:
        """Run a statement as an administrator; return its rows."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *words: str) -> None:
        command = [f"{BINARIES[-1]}/{program}", "-D", str(self.folder / "data"), *words]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", env={"PATH": os.defpath})
        assert done.returncode == 0, f"{program} failed:\n{done.stdout}{done.stderr}"


@contextlib.contextmanager
def run_database() -> Iterator[PostgresServer]:
    """Run a database for the time of the context, with the durability that PostgreSQL has by default."""
    if MISSING:
        raise LmrError(f"{MISSING}; install it for this experiment.")
    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()
