"""From the body of a request to inputs of the model: split it into image files, decode them, keep small copies."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from PIL.Image import Image
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field as FormField
from python_multipart.multipart import File, FormParser, parse_options_header
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.images.files import TooManyPixels, decode_image, estimate_work, muted_pillow
from lmr.images.isolated import IsolatedDecoder
from lmr.images.picture import Picture, measure_picture
from lmr.service.app.errors import HttpProblem
from lmr.service.app.pool import FairPool, Piece, Pieces
from lmr.service.engine.requests import DeadlinePassed, QueueFull
from lmr.service.settings import ServiceSettings

IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp")
FORM = "multipart/form-data"
PART = "image"  # the name of the parts of a form
MOST_STREAMS, MOST_FRAMES = 64, 12  # whose frames are kept, and how many of each are shown
_FORMATS = ("JPEG", "PNG", "WEBP")  # decoders of other formats have had more faults
_THREADS = min(4, max(2, os.cpu_count() or 1))  # at least two, so that a large image does not hold up all others
_PROCESSES = 2, 1  # that decode large images, and costly ones, such as those of many scans
_MOST_WORK = 10_000_000, 25_000_000  # pixels times passes: of an image that a thread decodes, and of a large one
_IMAGE_SECONDS = 10.0  # for an image in a process
_KEPT = 128  # frames of a stream in memory: as many images as can be labelled
_SIDE = 96  # pixels of a small copy
DEADLINE = "The deadline passed before the images were decoded; nothing was adapted."
Result = TypeVar("Result")
Preprocess = Callable[[Image], Tensor]


def split_body(content_type: str, body: bytes, most: int) -> list[bytes]:
    """Return the images of a body: one file, or the parts of a form, at most ``most``."""
    kind, values = parse_options_header(content_type)
    name = kind.decode("latin-1").lower()
    if name in IMAGE_TYPES:
        return [body]
    if name == FORM:
        return _split_form(body, values.get(b"boundary"), most)
    came = f"got {content_type!r}" if content_type else "got none"
    message = f"Expected a Content-Type of {', '.join(IMAGE_TYPES)} or {FORM}, {came}."
    raise HttpProblem(415, "not_an_image_type", message)


def _split_form(body: bytes, boundary: bytes | None, most: int) -> list[bytes]:
    if not boundary:
        raise HttpProblem(400, "malformed", "The Content-Type of the form names no boundary.")
    parts: list[tuple[bytes | None, bytes]] = []
    ends: list[bool] = []

    def keep(name: bytes | None, content: bytes) -> None:
        parts.append((name, content))
        if len(parts) > most:  # the rest is not counted: there may be millions of parts
            message = f"The request has more than {most} images, which is the limit; send them in several requests."
            raise HttpProblem(413, "too_many_images", message)

    def keep_field(part: FormField) -> None:
        keep(part.field_name, part.value or b"")

    def keep_file(part: File) -> None:
        part.file_object.seek(0)
        keep(part.field_name, part.file_object.read())

    in_memory = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}  # nothing goes to the disk
    try:
        parser = FormParser(FORM, keep_field, keep_file, lambda: ends.append(True), boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise HttpProblem(400, "malformed", f"The form cannot be read: {error}.") from error
    if not ends:
        raise HttpProblem(400, "malformed", "The form is incomplete: its last boundary is missing.")
    others = [(name or b"").decode("utf-8", "replace") for name, _ in parts if name != PART.encode()]
    if others or not parts:
        came = f"got {', '.join(map(repr, others[:3]))}" if others else "got none"
        raise HttpProblem(400, "malformed", f"Expected parts of the form with the name {PART!r}, {came}.")
    return [content for _, content in parts]


@dataclass(frozen=True, eq=False)
class ReadyImages:
    """The readable images of a request [n, ...]; ``errors`` has the messages of the others, by position."""

    images: Tensor
    errors: dict[int, str]
    pictures: list[Picture]  # statistics of the readable images
    digest: str  # of the content of all files, in their order
    thumbnails: list[str]  # small copies of the readable images for the page, with ``show_frames``


class ImageDecoder:
    """Decodes and preprocesses in a few threads, for at most as many requests as images may be queued.

    Requests take turns image by image, the one with the least work first. A thread cannot be stopped. Images whose
    headers announce much work are therefore decoded by processes that are killed when they take too long. Ordinary,
    large and costly images never wait for each other. So an ordinary or large image waits for those of its kind that
    are being decoded, each of about 0.3 s.

    At most as many images are decoded and not yet queued as the queue may have: a few bytes may unpack to a large
    image, and its request may have to wait for an earlier one of its stream.
    """

    def __init__(self, preprocess: Preprocess, settings: ServiceSettings) -> None:
        self._preprocess, self._settings = preprocess, settings
        self._pool = FairPool(_THREADS, *_PROCESSES)
        self._isolated = IsolatedDecoder(_FORMATS, settings.max_pixels)
        self._waiting = 0
        self._decoded, self._lock = 0, threading.Lock()  # images, counted by the threads of the pool

    async def run(self, pieces: Pieces[Result]) -> Result:
        """Work on a request in the pool; QueueFull if too many requests wait for it."""
        if self._waiting >= self._settings.queue_images:
            raise QueueFull("Too many images wait to be decoded; send this request again.", 1.0)
        self._waiting += 1
        try:
            return await asyncio.wrap_future(self._pool.start(pieces))
        finally:
            self._waiting -= 1

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves room for a number of images until the context ends, or raises QueueFull."""
        taken, ended = 0, False

        def take(count: int) -> None:
            nonlocal taken
            with self._lock:
                if ended:  # the request waits no longer, and its thread has only now begun
                    raise DeadlinePassed(DEADLINE)
                if self._decoded + count > self._settings.queue_images:
                    raise QueueFull("Too many images are decoded and wait for their turn; send this again.", 1.0)
                self._decoded += count
                taken += count

        try:
            yield take
        finally:
            with self._lock:
                ended = True
                self._decoded -= taken

    def decode(self, files: Sequence[bytes], left: Callable[[], float]) -> Pieces[ReadyImages]:
        """Decode a request for ``run``, an image a piece, and return inputs for the model.

        Undecodable images keep their position; HttpProblem if none can be read. ``left`` gives the seconds to the
        deadline of the request; DeadlinePassed is raised before the first image after it.
        """
        inputs: list[Tensor] = []
        pictures: list[Picture] = []
        problems: dict[int, LmrError] = {}
        thumbnails: list[str] = []
        digest, work = hashlib.sha256(), 0.0
        for position, file in enumerate(files):
            own = estimate_work(file, formats=_FORMATS, max_pixels=self._settings.max_pixels)
            work += own
            lane = bisect_left(_MOST_WORK, own)
            yield Piece(work, lane)
            digest.update(len(file).to_bytes(8, "big") + file)
            if left() <= 0:
                raise DeadlinePassed(DEADLINE)
            try:
                with muted_pillow():
                    image = self._open(file, left, isolated=lane > 0)
                    inputs.append(self._preprocess(image))
                    pictures.append(measure_picture(image))
            except LmrError as error:
                problems[position] = error
            else:
                if self._settings.show_frames:
                    thumbnails.append(_shrink(image))
        if not inputs:
            large = all(isinstance(problem, TooManyPixels) for problem in problems.values())
            status, code = (413, "too_many_pixels") if large else (422, "no_readable_image")
            raise HttpProblem(status, code, str(next(iter(problems.values()))))
        errors = {position: str(error) for position, error in problems.items()}
        return ReadyImages(torch.stack(inputs), errors, pictures, digest.hexdigest(), thumbnails)

    def _open(self, file: bytes, left: Callable[[], float], isolated: bool) -> Image:
        if isolated:
            return self._isolated.decode(file, min(_IMAGE_SECONDS, left()))
        return decode_image(file, formats=_FORMATS, max_pixels=self._settings.max_pixels)

    def close(self) -> None:
        """End the threads and the processes; what they work on is finished."""
        self._pool.close()
        self._isolated.close()


def _shrink(image: Image) -> str:
    small = image.copy()
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "WEBP", quality=70)
    return base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class Frame:
    """A small copy of an image, WebP in base64, its label, and the frozen model's label where it was compared.

    ``image`` is its position in request ``seq``, from 0; None for an image on which the stream did not step.
    """

    seq: int
    label: str | None  # None for an image that is none of the classes
    probability: float | None
    frozen: str | None
    b64: str
    image: int | None = None


class RecentFrames:
    """The last frames of the streams that were served last, in memory, for the page. Used from the event loop alone.

    All that can be labelled are kept.
    """

    def __init__(self) -> None:
        self._frames: OrderedDict[str, deque[Frame]] = OrderedDict()

    def add(self, stream: str, frame: Frame) -> None:
        """Keep a frame, and drop the oldest one."""
        self._frames.setdefault(stream, deque(maxlen=_KEPT)).append(frame)
        self._frames.move_to_end(stream)
        if len(self._frames) > MOST_STREAMS:
            self._frames.popitem(last=False)

    def drop(self, stream: str) -> None:
        """Drop the frames of a stream."""
        self._frames.pop(stream, None)

    def get(self, stream: str) -> list[Frame]:
        """Return the frames of a stream, oldest first."""
        return list(self._frames.get(stream, ()))
