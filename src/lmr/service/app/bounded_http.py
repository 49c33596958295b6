"""HTTP/1.1 with a bound on what is kept of a request before the app sees it."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 65_536  # of a head, or of what follows a body
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol on httptools, which takes less time than the one on h11 but has no limits.

    Bodies are bounded where they are read. What belongs to no body (the head of a request, and the trailers of a
    chunked one) is counted here. A request that is sent before the answer to the one before it ends the connection: any
    number of them would be queued, and nobody would notice that the client of the first has gone.
    """

    _outside = 0  # bytes since the last part of a body, of a message that is not complete
    _ended = False  # nothing more is taken from this connection

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; close the connection of an endless head."""
        if self._ended:
            return
        self._outside += len(data)
        super().data_received(data)
        if self._outside > MOST_BYTES and not self._ended:
            self.transport.write(_TOO_LARGE)
            self._end()

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._outside = 0
        if self.cycle is not None and not self.cycle.response_complete:
            self._end()
        if not self._ended:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._outside = 0
        if not self._ended:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._outside = 0
        if not self._ended:
            super().on_message_complete()

    def _end(self) -> None:
        self._ended = True
        self.transport.close()
