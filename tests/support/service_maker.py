"""Images as files, and a service around an engine that does as it is told, on a real socket."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from PIL import Image

import lmr
from lmr.service.app.app import make_app
from lmr.service.app.server import Server
from lmr.service.app.service import LiveService
from lmr.service.settings import ServiceSettings
from pocket import load_pocket
from scripted_engine import ScriptedEngine

NAMES = ["red ring", "blue star", "green heart"]
TIMEOUT = 60.0  # seconds; against hanging alone


def make_file(kind: str = "JPEG", size: tuple[int, int] = (40, 30), colour: str = "red") -> bytes:
    """Return an image with something in it: without, it would be no picture."""
    file, image = io.BytesIO(), Image.new("RGB", size, colour)
    image.paste("gray", (0, 0, size[0] // 8, size[1] // 8))
    image.save(file, kind)
    return file.getvalue()


@dataclass(frozen=True)
class ScriptedService:
    """A service on a socket, its engine, and a client of it."""

    engine: ScriptedEngine
    server: Server
    client: httpx.Client

    def post(self, stream: str = "cam", content: bytes | None = None, **options: object) -> httpx.Response:
        headers = {"Content-Type": "image/jpeg", **dict(options.pop("headers", {}))}  # type: ignore[call-overload]
        body = make_file() if content is None else content
        return self.client.post(f"/v1/streams/{stream}/images", content=body, headers=headers, **options)


@contextmanager
def serve_scripted(settings: ServiceSettings | None = None, token: str | None = None) -> Iterator[ScriptedService]:
    backbone = load_pocket()
    engine = ScriptedEngine(lmr.create("zeroshot", backbone.classifier(NAMES)), NAMES, settings)
    app = make_app(LiveService(engine, backbone.preprocess, "pocket"), token=token)
    with Server(app) as server, httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
        yield ScriptedService(engine, server, client)
