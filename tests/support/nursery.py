"""Programs in processes of their own that begin with `lmr` imported: copies of one process that has imported it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import IO, Any

from lmr.models import embedded

# The process that is copied. It imports and does nothing else: a copy has its own signals, folder and output.
NURSERY = """
import json, os, signal, socket, sys
from pathlib import Path
import lmr, lmr.apps.predict.run, lmr.apps.predict.streams, lmr.bench.running.run, lmr.cli.parser, lmr.cli.predict
from lmr.models import embedded
lmr.list_methods()

server = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, files = b"", []
    while not message.endswith(b"\\n"):
        part, given, _, _ = socket.recv_fds(server, 65536, 3)
        if not part:
            os._exit(0)
        message, files = message + part, files + given
    asked = json.loads(message)
    if "wait" in asked:
        found, status = os.waitpid(asked["wait"], os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if found else None
    else:
        answer = os.fork()
        if answer == 0:
            break
        for file in files:
            os.close(file)
    server.sendall(json.dumps(answer).encode() + b"\\n")

server.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
os.chdir(asked["folder"])
signal.signal(signal.SIGINT, signal.default_int_handler)
embedded.PHOTO = Path(asked["photo"])
sys.argv = ["-c", *asked["words"]]
exec(compile(asked["code"], "<nursery>", "exec"), {"__name__": "__main__"})
"""
PIPES = [(0, "wb"), (1, "rb"), (2, "rb")]  # standard input, output and error as this side holds them


class Nursery:
    """One process that has imported the package."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("PYTHONUNBUFFERED", None)
        with other:
            command = [sys.executable, "-c", NURSERY, str(other.fileno())]
            self._process = subprocess.Popen(command, env=environment, pass_fds=[other.fileno()])
        self._answers = self._socket.makefile("rb")
        atexit.register(self.close)

    def ask(self, asked: dict[str, Any], files: list[int]) -> Any:
        socket.send_fds(self._socket, [json.dumps(asked).encode() + b"\n"], files)
        return json.loads(self._answers.readline())

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.wait()


@functools.cache
def open_nursery() -> Nursery:
    return Nursery()


class Program:
    """A running program, with the models that this process has; used as a `subprocess.Popen` is."""

    def __init__(self, code: str, *words: str, stdout: int | None = None) -> None:
        self.returncode: int | None = None
        ends: list[int] = []
        kept: list[IO[bytes]] = []
        for number, mode in PIPES:
            reader, writer = os.pipe()
            ends.append(reader if mode == "wb" else writer)
            kept.append(os.fdopen(writer if mode == "wb" else reader, mode))
            if number == 1 and stdout is not None:
                os.close(ends[-1])
                ends[-1] = os.dup(stdout)
        asked = {"code": code, "words": words, "folder": os.getcwd(), "photo": str(embedded.PHOTO)}
        self.pid = int(open_nursery().ask(asked, ends))
        for end in ends:
            os.close(end)
        self.stdin, self.stdout, self.stderr = kept

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = open_nursery().ask({"wait": self.pid}, [])
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.send_signal(signal.SIGKILL)
                raise AssertionError(f"The program did not end within {timeout} seconds.")
            time.sleep(0.005)
        return code

    def communicate(self) -> tuple[bytes, bytes]:
        """Close the input, wait for the end, and return what was said: less than a pipe holds."""
        self.stdin.close()
        self.wait()
        said = tuple(b"" if file.closed else file.read() for file in (self.stdout, self.stderr))
        self.stdout.close()
        self.stderr.close()
        return said[0], said[1]

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)
