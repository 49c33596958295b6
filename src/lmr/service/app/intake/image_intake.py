"""ImageIntake: from the content of image files to inputs of the model, in a small pool of threads."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from PIL.Image import Image
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.images.image_files import TooManyPixels, UnreadableImage, decode_image, muted_pillow
from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.intake.image_bodies import Picture
from lmr.service.engine.step_types import QueueFull
from lmr.service.settings import ServiceSettings

FORMATS = ("JPEG", "PNG", "WEBP")  # decoders of other formats have had more faults
_THREADS = min(4, max(2, os.cpu_count() or 1))  # at least two, so that a large image does not hold up all others
Result = TypeVar("Result")
Show = Callable[[Image], None]  # what may look at an image that was decoded


@dataclass(frozen=True, eq=False)
class ReadyImages:
    """The images of a request that can be read [n, ...]; ``errors`` has the others, by their place among ``count``."""

    images: Tensor
    count: int
    errors: dict[int, str]
    digest: str  # of the content of all files, in their order


class ImageIntake:
    """Decodes and preprocesses. As many requests may wait for it as images may wait for the model.

    No more images than that are decoded and not handed on: a few bytes may be an image, and its request may have to
    wait for an earlier one of its stream.
    """

    def __init__(self, preprocess: Callable[[Image], Tensor], settings: ServiceSettings) -> None:
        self._preprocess, self._settings = preprocess, settings
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lmr-intake")
        self._waiting = 0
        self._decoded, self._lock = 0, threading.Lock()  # images, counted by the threads of the pool

    async def run(self, work: Callable[[], Result]) -> Result:
        """What the event loop should not wait for, in a thread of the pool; QueueFull if too many wait for one."""
        if self._waiting >= self._settings.queue_images:
            raise QueueFull("Too many images wait to be decoded; send this request again.", 1.0)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Gives a function to call before so many images are decoded; they count until the context ends.

        It raises QueueFull if there are too many.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            with self._lock:
                if self._decoded + count > self._settings.queue_images:
                    raise QueueFull("Too many images are decoded and wait for their turn; send this again.", 1.0)
                self._decoded += count
                taken += count

        try:
            yield take
        finally:
            with self._lock:
                self._decoded -= taken

    def close(self) -> None:
        """End the threads; what they work on is finished."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def prepare(self, pictures: Sequence[Picture], show: Show | None = None) -> ReadyImages:
        """Images for the model; HttpProblem if none of them can be read. ``show`` is given every image."""
        inputs: list[Tensor] = []
        problems: dict[int, LmrError] = {}
        digest = hashlib.sha256()
        with muted_pillow():  # once, as it takes a third of the time of a small image
            for place, picture in enumerate(pictures):
                content = picture if isinstance(picture, bytes) else b""
                digest.update(len(content).to_bytes(8, "big") + content)
                try:
                    if isinstance(picture, UnreadableImage):
                        raise picture
                    image = decode_image(picture, formats=FORMATS, max_pixels=self._settings.max_pixels)
                    inputs.append(self._preprocess(image))
                except LmrError as error:
                    problems[place] = error
                else:
                    if show is not None:
                        show(image)
        if not inputs:
            raise _refuse_all(list(problems.values()))
        errors = {place: str(error) for place, error in problems.items()}
        return ReadyImages(torch.stack(inputs), len(pictures), errors, digest.hexdigest())


def _refuse_all(problems: list[LmrError]) -> HttpProblem:
    """No image can be read: too large, if that is the reason for all of them."""
    words = str(problems[0])
    if all(isinstance(problem, TooManyPixels) for problem in problems):
        return HttpProblem(413, "too_many_pixels", words)
    return HttpProblem(422, "no_readable_image", words)
