"""HTTP by hand over a socket: an answer may arrive in any number of parts, and the other side may close."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPResponse


@dataclass(frozen=True)
class PlainAnswer:
    """A whole answer."""

    status: int
    headers: Message
    body: bytes


def read_answer(made: socket.socket) -> PlainAnswer:
    """The next answer, by its announced length."""
    answer = HTTPResponse(made)
    answer.begin()
    return PlainAnswer(answer.status, answer.headers, answer.read())


def read_until_closed(made: socket.socket) -> bytes:
    """Everything up to the end of the connection; a reset, after bytes that nobody read, is an end too."""
    found = b""
    try:
        while part := made.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found
