"""A request with images, from its body to the engine's answer; the routes of both protocols come through here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from lmr.service.app.frame_shelf import ShownFrame, shrink_frame
from lmr.service.app.images_answer import note_images
from lmr.service.app.intake.image_bodies import Picture
from lmr.service.app.intake.image_intake import ReadyImages
from lmr.service.app.intake.request_options import check_key, choose_seconds
from lmr.service.app.intake.waiting import ClientWatch
from lmr.service.app.live_service import LiveService
from lmr.service.engine.step_types import RequestMode, StepAnswer, StepRequest


@dataclass(frozen=True)
class ImageStep:
    """What a body asks for: these images of a stream, answered with so many classes each."""

    stream: str
    pictures: list[Picture]
    top: int
    mode: RequestMode


Step = TypeVar("Step", bound=ImageStep)


async def run_step(
    request: Request,
    service: LiveService,
    read: Callable[[bytes], Step],
    key: str | None,
    timeout_ms: float | None,
    stream: str | None = None,
) -> tuple[Step, StepAnswer]:
    """Receive the body, ``read`` what it asks for, decode its images, and wait for their answer.

    What the engine would refuse is not decoded: under overload that would take the time of those it serves. Requests of
    a stream reach the engine in the order in which their bodies were complete, however long their images take. Without
    ``stream``, the body says which it is, and is read first.
    """
    parts = service.parts
    check_key(key)
    seconds = choose_seconds(timeout_ms, service.settings.timeout_ms)
    deadline = parts.engine.clock() + seconds
    with ClientWatch(request) as client:
        async with service.bodies.read(request, seconds) as body:
            client.begin()
            small: list[bytes] = []
            show = None if service.frames is None else lambda image: small.append(shrink_frame(image))
            known: Step | None = None
            if stream is None:
                known = await parts.intake.run(lambda: read(body))
                stream = known.stream

            def take() -> tuple[Step, ReadyImages]:
                step = read(body) if known is None else known
                parts.engine.check_room(step.stream, key)
                hold(len(step.pictures))
                return step, parts.intake.prepare(step.pictures, show)

            with service.turns.take(stream) as turn, parts.intake.hold() as hold:
                step, ready = await parts.intake.run(take)
                asked = StepRequest(
                    stream=step.stream,
                    images=ready.images,
                    mode=step.mode,
                    top=min(step.top, len(parts.engine.names)),
                    key=key,
                    digest=_digest(step, ready),
                    deadline=deadline,
                    note=note_images(ready.count, ready.errors),
                    places=[place for place in range(ready.count) if place not in ready.errors],
                    sent=ready.count,
                )
                await turn
                client.check()  # a client that went while its images were decoded
                future = parts.engine.submit(asked)
        answer = await client.wait(parts.engine, future)
    if service.frames is not None and not answer.replayed:
        for content, best in zip(small, answer.top, strict=True):
            if best:
                service.frames.add(step.stream, ShownFrame(answer.seq, best[0][0], content))
    return step, answer


def _digest(step: ImageStep, ready: ReadyImages) -> str:
    """Tells requests under one key apart: by their images and by what is asked of them, not by how they are sent."""
    return hashlib.sha256(f"{ready.digest} {step.mode} {step.top}".encode()).hexdigest()
