"""ImageSteps: a request with images, from its body to its answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from lmr.service.app.errors import ClientGone
from lmr.service.app.images import DEADLINE, Frame, ImageDecoder, ReadyImages, RecentFrames
from lmr.service.app.pool import Pieces
from lmr.service.app.request import BodyReader
from lmr.service.engine.engine import Engine
from lmr.service.engine.requests import DeadlinePassed, RequestMode, StepAnswer, StepRequest


@dataclass(frozen=True)
class ImageStep:
    """The content of a body: images of a stream, each to be answered with its ``top`` best classes."""

    stream: str
    files: list[bytes]
    top: int
    mode: RequestMode
    compare: bool = field(default=False, kw_only=True)


class ImageSteps:
    """Serves requests with images: receives a body, decodes its images, and waits for the engine's answer.

    What the engine would refuse is not decoded: under overload that would take the time of those it serves. Requests of
    a stream reach the engine in the order in which their bodies were complete, however long their images take.
    """

    def __init__(self, engine: Engine, decoder: ImageDecoder, bodies: BodyReader, frames: RecentFrames | None) -> None:
        self.decoder = decoder
        self._engine, self._bodies, self._frames, self._turns = engine, bodies, frames, Turns()

    async def run(
        self,
        request: Request,
        stream: str,
        read: Callable[[bytes], ImageStep],
        key: str | None,
    ) -> StepAnswer:
        """Return the answer to the step that ``read`` finds in the body."""
        engine, decoder = self._engine, self.decoder
        engine.check_room(stream, key)  # a refusal under overload must cost little: the body is not even waited for
        deadline = engine.clock() + engine.settings.timeout_ms / 1000

        def left() -> float:
            return deadline - engine.clock()

        with ExitStack() as stack:
            async with self._bodies.read(request) as body, _end_at(left()):
                gone = stack.enter_context(_watch_client(request))

                def decode() -> Pieces[tuple[ImageStep, ReadyImages]]:
                    step = read(body)
                    engine.check_room(stream, key)
                    hold(len(step.files))
                    return step, (yield from decoder.decode(step.files, left))

                with self._turns.take(stream) as turn, decoder.hold() as hold:
                    step, ready = await decoder.run(decode())
                    await turn
                    if gone.done():  # while the images were decoded
                        raise ClientGone
                    served = self._make_request(step, ready, key, deadline)
                    future = engine.submit(served)
            answered = asyncio.wrap_future(future)  # never cancelled here, as that would cancel the engine's future
            both: set[asyncio.Future[Any]] = {answered, gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                answered.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left
                engine.drop(future)  # if it still waits, so that nothing adapts
                raise ClientGone
            answer = answered.result()
        if self._frames is not None and not answer.replayed:
            pairs = list(zip(served.places, ready.thumbnails, strict=True))
            # The last one is shown first.
            for place, copy in sorted(pairs, key=lambda pair: answer.answers[pair[0]].frozen is not None):
                one, number = answer.answers[place], place if step.mode == "adapt" else None
                if one.error is None:
                    frame = Frame(answer.seq, one.label, one.probability, one.frozen, copy, number)
                    self._frames.add(step.stream, frame)
        return answer

    def _make_request(self, step: ImageStep, ready: ReadyImages, key: str | None, deadline: float) -> StepRequest:
        # Requests under one key are compared by their images and options, not by how the images are sent.
        digest = hashlib.sha256(f"{ready.digest} {step.mode} {step.top} {step.compare}".encode()).hexdigest()
        return StepRequest(
            stream=step.stream,
            images=ready.images,
            mode=step.mode,
            top=step.top,  # there may be fewer classes, or more when it is computed
            key=key,
            digest=digest,
            deadline=deadline,
            errors=ready.errors,
            compare=step.compare,
            pictures=ready.pictures,
        )


class Turns:
    """The order of requests that are decoded in several threads, stream by stream. Used from the event loop alone."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Future[None]] = {}  # of the streams that somebody waits for

    @contextmanager
    def take(self, stream: str) -> Iterator[asyncio.Future[None]]:
        """Take the next turn of a stream; yield a future that is done when the turn has come.

        The turn is over at the end of the context, also after an error, but never before the turns taken earlier.
        """
        over = asyncio.get_running_loop().create_future()
        before = self._last.get(stream)
        self._last[stream] = over
        if before is None:
            before = asyncio.get_running_loop().create_future()
            before.set_result(None)
        try:
            yield before
        finally:
            if before.done():
                self._end(stream, over)
            else:
                before.add_done_callback(lambda _: self._end(stream, over))

    def _end(self, stream: str, over: asyncio.Future[None]) -> None:
        if not over.done():
            over.set_result(None)
        if self._last.get(stream) is over:
            del self._last[stream]


@asynccontextmanager
async def _end_at(seconds: float) -> AsyncIterator[None]:
    """Raise DeadlinePassed if this context takes longer; a thread that works on its behalf is left alone."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise DeadlinePassed(DEADLINE) from error


@contextmanager
def _watch_client(request: Request) -> Iterator[asyncio.Future[None]]:
    """Yield a future that is done when the client has gone; the body must have been read."""

    async def wait() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(wait())
    try:
        yield gone
    finally:
        gone.cancel()
