"""A service over a real socket that does as a test tells it: keeps keys and steps, refuses, breaks connections."""

from __future__ import annotations

import email.parser
import email.policy
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BREAK_BEFORE, BREAK_AFTER = "break before", "break after"  # the connection breaks before or after the work is done


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    images: list[bytes]
    body: bytes


@dataclass
class ScriptedService:
    """``script`` is what happens next: a code, (code, headers), (code, headers, body), a break; None for as usual."""

    url: str = ""
    script: list[Any] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    steps: dict[str, list[list[bytes]]] = field(default_factory=dict)  # applied, by stream: the images of each
    answers: dict[tuple[str, str], tuple[str, dict[str, Any]]] = field(default_factory=dict)
    reply: Any = None  # instead of the usual body of anything but images
    lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, stream: str, one: Seen) -> tuple[int, Any, bool]:
        key, digest = one.headers.get("Idempotency-Key", ""), hashlib.sha256(b"".join(one.images)).hexdigest()
        with self.lock:
            if (stream, key) in self.answers:
                kept, answer = self.answers[stream, key]
                if kept != digest:
                    return 422, {"error": {"code": "key_reused", "message": "The key belongs to another body."}}, False
                return 200, answer, True
            done = self.steps.setdefault(stream, [])
            done.append(one.images)
            results = [
                {"label": f"{len(image)} bytes", "probability": 0.5, "top": [["a", 0.5]]} for image in one.images
            ]
            facts = {"adaptation": {"health": "ok"}, "timing": {"step_ms": 1.0}, "model": "m", "spec": "s", "new": 1}
            answer = {"stream": stream, "seq": len(done), "saved": True, "answers": results, **facts}
            self.answers[stream, key] = digest, answer
            return 200, answer, False


def _split(kind: str, body: bytes) -> list[bytes]:
    if not kind.startswith("multipart/"):
        return [body] if body else []
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    return [part.get_payload(decode=True) for part in message.iter_parts()]  # type: ignore[attr-defined]


def _make_handler(service: ScriptedService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            images = _split(self.headers.get("Content-Type", ""), body)
            one = Seen(self.command, parts.path, parse_qs(parts.query), dict(self.headers), images, body)
            with service.lock:
                service.seen.append(one)
                told = service.script.pop(0) if service.script else None
            if told == BREAK_BEFORE:
                self.close_connection = True
                return
            if isinstance(told, int | tuple):
                code, headers, *bodies = told if isinstance(told, tuple) else (told, {})
                messages = {"error": {"code": "told", "message": f"Told to answer {code}."}}
                self._answer(code, bodies[0] if bodies else messages, headers)
                return
            replayed = False
            if parts.path.endswith("/images"):
                code, answer, replayed = service.step(unquote(parts.path.split("/")[3]), one)
            else:
                code, answer = 200, service.reply
            if told == BREAK_AFTER:
                self.close_connection = True
                return
            self._answer(code, answer, {"Idempotency-Replayed": "true"} if replayed else {})

        def _answer(self, code: int, content: Any, headers: dict[str, str]) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

    return Handler


@contextmanager
def run_scripted_service() -> Iterator[ScriptedService]:
    """One that listens on a free port of this machine."""
    service = ScriptedService()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(service))
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
