"""Server: the app on a socket, with uvicorn, bounded connections, and an end after the requests that wait."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lmr.core.errors import LmrError
from lmr.service.app.service import LiveService

LOGGER = logging.getLogger("lmr.service.server")
_BACKLOG = 2048
_FINISH_SECONDS = 30  # for the requests that wait after SIGTERM or Ctrl-C
_START_SECONDS = 30
_HEAD_SECONDS = 10  # for the head of a request to arrive
_STUCK_SECONDS = 60  # for a client to take some more of its answer
_ECHO_SECONDS = 1
_TICKS = 10  # of uvicorn, ten a second, between two searches for silent connections
_LAST_PORT = 65535
MOST_BYTES = 65_536  # of a head, or of what follows a body
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server:
    """An app of ``make_app`` on a socket of ``bind``; on a free port of this machine if there is none.

    ``run`` serves until SIGTERM or Ctrl-C. ``start`` serves in a thread until ``stop``, which makes it a context too.
    ``on_stop`` is called before new requests are refused.
    """

    def __init__(self, app: FastAPI, bound: socket.socket | None = None) -> None:
        self.service: LiveService = app.state.service
        self.on_stop: Callable[[], object] = lambda: None
        self._socket = bound or bind("127.0.0.1", 0)
        self.url = _name_url(*self._socket.getsockname()[:2])  # http://host:port
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            http=BoundedHttp,
            ws="none",
            timeout_graceful_shutdown=_FINISH_SECONDS,
        )
        self._uvicorn = _Uvicorn(config, self._end)
        self._thread: threading.Thread | None = None
        self._ending = threading.Lock()

    def run(self) -> None:
        """Serve until a signal, answer the requests that wait, and return."""
        self._uvicorn.run([self._socket])

    def start(self) -> Server:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="lmr-http", daemon=True)
        self._thread.start()
        if not self._uvicorn.running.wait(_START_SECONDS):
            raise LmrError(f"The server did not start within {_START_SECONDS} seconds.")
        return self

    def stop(self) -> None:
        """Answer the requests that wait and end the thread. The engine stays, and is closed by its owner."""
        self._end()
        if self._thread is not None:
            self._thread.join()

    def _end(self) -> None:
        with self._ending:  # a second caller waits for the first
            if self._uvicorn.should_exit:
                return
            self.on_stop()
            LOGGER.info("stopping")
            self.service.stopping.set()
            self._uvicorn.should_exit = True

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Uvicorn(uvicorn.Server):
    """uvicorn, with a first signal that calls ``end``, and a second Ctrl-C that ends at once."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None]) -> None:
        super().__init__(config)
        self._end = end
        self._signalled: float | None = None  # when the first signal came
        self.running = threading.Event()  # set when it listens
        # Connections where nothing happens: their last request, bytes that were not taken, and since when.
        self._silent: dict[Any, tuple[Any, int, float]] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        LOGGER.info("listening")
        self.running.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._close_silent()
        return await super().on_tick(counter)

    def _close_silent(self) -> None:
        """Close connections that send no head of a request, or take nothing of their answer.

        Many of them would use up the sockets, and answers that nobody takes stay in memory.
        """
        now = time.monotonic()
        connections: list[Any] = list(self.server_state.connections)
        silent: dict[Any, tuple[Any, int, float]] = {}
        for one in connections:
            left = one.transport.get_write_buffer_size()
            if not (one.cycle is None or one.cycle.response_complete or one.flow.write_paused):
                continue
            cycle, size, since = self._silent.get(one, (one.cycle, left, now))
            same = cycle is one.cycle and size == left  # no request in between, and nothing was taken
            silent[one] = one.cycle, left, since if same else now
            quiet = now - silent[one][2]
            if left and quiet > _STUCK_SECONDS:
                one.transport.abort()  # to close it would wait until all is taken
            elif not left and quiet > _HEAD_SECONDS:
                one.transport.close()
        self._silent = silent

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signalled is not None:  # one that follows at once is an echo: shells send a signal to a whole group
            if sig == signal.SIGINT and now - self._signalled > _ECHO_SECONDS:
                self.should_exit = self.force_exit = True
            return
        self._signalled = now
        threading.Thread(target=self._end, name="lmr-end", daemon=True).start()


class BoundedHttp(HttpToolsProtocol):
    """HTTP/1.1 of uvicorn on httptools, which is faster than the one on h11 but has no limits, with limits.

    Bodies are bounded where they are read. The rest of a request (its head, and the trailers of a chunked body) is
    counted here. A request that is sent before the answer to the previous one ends the connection: any number of
    them would be queued, and nobody would notice that the client of the first has gone.
    """

    _outside = 0  # bytes since the last part of a body, of a message that is not complete
    _ended = False  # nothing more is taken from this connection

    def data_received(self, data: bytes) -> None:
        """Parse the data; close the connection of an endless head."""
        if self._ended:
            return
        self._outside += len(data)
        super().data_received(data)
        if self._outside > MOST_BYTES and not self._ended:
            self.transport.write(_TOO_LARGE)
            self._end()

    def on_headers_complete(self) -> None:
        """Begin a request, whose head is complete."""
        self._outside = 0
        if self.cycle is not None and not self.cycle.response_complete:
            self._end()
        if not self._ended:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._outside = 0
        if not self._ended:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._outside = 0
        if not self._ended:
            super().on_message_complete()

    def _end(self) -> None:
        self._ended = True
        self.transport.close()


def _name_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise an LmrError that says why there is none."""
    if not 0 <= port <= _LAST_PORT:
        raise LmrError(f"Cannot listen on {host} port {port}: expected a port from 0 to {_LAST_PORT}.")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise LmrError(f"Cannot listen on {host} port {port}: {reason}. Choose another --host or --port.") from error
