"""What the service answers, typed. Fields that a newer service adds are ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lmr.service.engine.status import ServiceEvent, StreamDetail, StreamStatus

Record = TypeVar("Record")


@dataclass(frozen=True)
class ImageResult:
    """The answer to one image; ``error`` says why it could not be read, and then there is no label."""

    label: str | None = None
    probability: float | None = None
    top: tuple[tuple[str, float], ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class ServiceAnswer:
    """The answer to a request. ``seq`` counts the requests of the stream that may adapt.

    ``replayed``: an earlier attempt with this key was answered, and this is that answer.
    """

    stream: str
    seq: int
    saved: bool
    answers: tuple[ImageResult, ...]
    adaptation: dict[str, Any]
    timing: dict[str, float]
    model: str = ""
    spec: str = ""
    replayed: bool = False

    @property
    def labels(self) -> list[str | None]:
        """The label of each image; None for one that could not be read."""
        return [one.label for one in self.answers]

    @property
    def label(self) -> str | None:
        """The label of the first image, for requests of a single one."""
        return self.answers[0].label if self.answers else None


def read_answer(content: Mapping[str, Any], replayed: bool) -> ServiceAnswer:
    """The answer in a body. Raises KeyError, TypeError or ValueError for what is not one."""
    answers = [
        ImageResult(
            one.get("label"),
            one.get("probability"),
            tuple((str(label), float(share)) for label, share in one.get("top") or ()),
            one.get("error"),
        )
        for one in content["answers"]
    ]
    return make_record(ServiceAnswer, {**content, "answers": tuple(answers), "replayed": replayed})


def read_detail(content: Mapping[str, Any]) -> StreamDetail:
    """One stream, looked at closely."""
    status = make_record(StreamStatus, content["status"])
    events = [make_record(ServiceEvent, event) for event in content["events"]]
    shares = [(str(label), float(share)) for label, share in content["shares"]]
    return make_record(StreamDetail, {**content, "status": status, "events": events, "shares": shares})


def make_record(kind: type[Record], content: Mapping[str, Any]) -> Record:
    """A dataclass from the fields of a body that it knows."""
    known = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in content.items() if key in known})
