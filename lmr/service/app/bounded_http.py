"""HTTP/1.1 with a bound on what is kept of a request before the app sees it."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 65_536  # of a head, or of what follows a body
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol on httptools, which takes half the time of the one on h11 but has no limit on headers.

    Bodies are bounded where they are read. What belongs to no body (the head of a request, and the trailers of a
    chunked one) is counted here.
    """

    _outside = 0  # bytes since the last part of a body, of a message that is not complete

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; close the connection of an endless head."""
        self._outside += len(data)
        super().data_received(data)
        if self._outside > MOST_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._outside = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._outside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._outside = 0
        super().on_message_complete()
