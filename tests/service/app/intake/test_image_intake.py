"""Decoding: three formats, refused by header, an error in its place."""

from __future__ import annotations

import asyncio
import io
import struct
import threading
import zlib
from collections.abc import Iterator

import pytest
import torch
from PIL import Image

from lmr.images.image_files import UnreadableImage
from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.intake.image_bodies import Picture
from lmr.service.app.intake.image_intake import ImageIntake, ReadyImages
from lmr.service.engine.step_types import QueueFull
from lmr.service.settings import ServiceSettings
from service_maker import load_pocket, make_file

SETTINGS = ServiceSettings(max_pixels=10_000)


def make_bomb() -> bytes:
    """A PNG of a few hundred bytes that unpacks to 40,000 x 40,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def save(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, kind)
    return file.getvalue()


@pytest.fixture
def intake() -> Iterator[ImageIntake]:
    made = ImageIntake(load_pocket().preprocess, SETTINGS)
    yield made
    made.close()


def prepare(intake: ImageIntake, *pictures: Picture) -> ReadyImages:
    return asyncio.run(intake.run(lambda: intake.prepare(pictures)))


def test_images_are_those_of_the_library(intake: ImageIntake) -> None:
    files = [make_file(kind, colour=colour) for kind, colour in (("JPEG", "red"), ("PNG", "blue"), ("WEBP", "green"))]
    ready = prepare(intake, *files)
    assert torch.equal(ready.images, load_pocket().preprocess(files))
    assert (ready.count, ready.errors) == (3, {})


def test_bad_images_have_their_places(intake: ImageIntake) -> None:
    good = make_file()
    ready = prepare(intake, b"", good, good[:-200], UnreadableImage("Not base64."), make_bomb(), save("GIF"), good)
    assert len(ready.images) == 2
    assert ready.count == 7
    assert set(ready.errors) == {0, 2, 3, 4, 5}
    assert all(words.endswith(".") for words in ready.errors.values())
    assert "empty" in ready.errors[0]
    assert "10,000 pixels" in ready.errors[4]


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "PPM", "ICO"])
def test_other_formats_are_not_decoded(intake: ImageIntake, kind: str) -> None:
    with pytest.raises(HttpProblem, match="not JPEG or PNG or WEBP") as caught:
        prepare(intake, save(kind))
    assert caught.value.status == 422


@pytest.mark.parametrize(
    "picture",
    [b"", b"no image", make_file()[:100], make_file("PNG")[:-40], make_file("WEBP")[:30]],
    ids=["empty", "text", "cut JPEG", "cut PNG", "cut WebP"],
)
def test_nothing_readable(intake: ImageIntake, picture: bytes) -> None:
    with pytest.raises(HttpProblem) as caught:
        prepare(intake, picture)
    assert (caught.value.status, caught.value.code) == (422, "no_readable_image")


@pytest.mark.parametrize(
    "picture",
    [make_bomb(), make_file(size=(101, 100)), make_file("WEBP", size=(101, 100))],
    ids=["bomb", "JPEG", "WebP"],
)
def test_too_many_pixels(intake: ImageIntake, picture: bytes) -> None:
    with pytest.raises(HttpProblem) as caught:
        prepare(intake, picture)
    assert (caught.value.status, caught.value.code) == (413, "too_many_pixels")


def test_bomb_is_refused_before_it_is_unpacked(intake: ImageIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Image.Image) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", refuse)
    with pytest.raises(HttpProblem, match="pixels"):
        prepare(intake, make_bomb())


def test_digest_tells_images_apart(intake: ImageIntake) -> None:
    one, other = make_file(), make_file(colour="blue")
    digests = [
        prepare(intake, *files).digest for files in ((one,), (one, other), (other, one), (one, b"x"), (one, b"y"))
    ]
    assert len(set(digests)) == 5
    assert prepare(intake, one).digest == digests[0]


def test_only_so_many_requests_wait() -> None:
    """While the pool is busy, further requests are refused instead of piling up."""
    go = threading.Event()
    prepared = load_pocket().preprocess

    def preprocess(image: Image.Image) -> torch.Tensor:
        assert go.wait(60)
        return prepared(image)

    intake = ImageIntake(preprocess, ServiceSettings(queue_images=2, max_images=2))

    async def run() -> list[object]:
        async def ask() -> object:
            try:
                return await intake.run(lambda: intake.prepare([make_file()]))
            except QueueFull as error:
                go.set()
                return error

        return await asyncio.gather(ask(), ask(), ask())

    first, second, third = asyncio.run(run())
    intake.close()
    assert isinstance(first, ReadyImages)
    assert isinstance(second, ReadyImages)
    assert isinstance(third, QueueFull)
