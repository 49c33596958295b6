"""Answers of the service that are not those of its engine: what the app sends and the client reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmr.service.engine.status import StreamStatus


@dataclass(frozen=True)
class ImageResult:
    """The answer to one image: its ``label`` and the ``top`` classes, or the ``error`` why it could not be read."""

    label: str | None = None
    probability: float | None = None
    top: tuple[tuple[str, float], ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class ImagesAnswer:
    """The answer to a request, image by image in their order.

    ``seq`` counts the requests of the stream that may adapt, and ``saved`` says that the stream's state is on the disk.
    ``adaptation`` is what the request did to the stream, with the stream's health; ``timing`` has milliseconds and the
    size of the batch. ``spec`` is the method with all its values.
    """

    stream: str
    seq: int
    saved: bool
    answers: tuple[ImageResult, ...]
    adaptation: dict[str, Any]
    timing: dict[str, float]
    model: str = ""
    spec: str = ""


@dataclass(frozen=True)
class StreamPage:
    """Some streams in the order of their names; ``next`` is the ``after`` of the next page, None at the end."""

    streams: list[StreamStatus]
    next: str | None
