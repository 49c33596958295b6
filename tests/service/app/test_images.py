"""Bodies of both kinds, and decoding: three formats, refused by header, an error in its position."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator

import pytest
import torch
from PIL import Image

from hostile_images import make_bomb, make_jpeg
from lmr.service.app import images
from lmr.service.app.errors import HttpProblem
from lmr.service.app.images import ImageDecoder, ReadyImages, split_body
from lmr.service.engine.requests import DeadlinePassed, QueueFull
from lmr.service.settings import ServiceSettings
from pocket import load_pocket
from service_maker import make_file

FILES = [make_file("JPEG"), make_file("PNG"), make_file("WEBP")]
FORM = "multipart/form-data; boundary=edge"


def make_form(*parts: tuple[str, bytes], name: bool = True, end: bool = True) -> bytes:
    body = b""
    for field, content in parts:
        file = '; filename="a.jpg"' if name else ""
        body += f'--edge\r\nContent-Disposition: form-data; name="{field}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return body + (b"--edge--\r\n" if end else b"")


def refuse(kind: str, body: bytes, most: int = 8) -> HttpProblem:
    with pytest.raises(HttpProblem) as caught:
        split_body(kind, body, most)
    assert caught.value.message.endswith(".")
    return caught.value


@pytest.mark.parametrize("kind", ["image/webp", "IMAGE/JPEG", "image/jpeg; q=1"])
def test_one_file(kind: str) -> None:
    assert split_body(kind, FILES[0], 1) == [FILES[0]]


@pytest.mark.parametrize("name", [True, False])
def test_form_with_several_parts(name: bool) -> None:
    """A part without a file name is bytes too, and nothing of it is taken for text."""
    assert split_body(FORM, make_form(*(("image", file) for file in FILES), name=name), 3) == FILES


@pytest.mark.parametrize("kind", ["", "image/gif", "text/plain", "application/x-www-form-urlencoded", "nonsense"])
def test_other_types(kind: str) -> None:
    assert refuse(kind, FILES[0]).status == 415


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", make_form(("image", FILES[0]))),
        (FORM, b""),
        (FORM, b"nonsense"),
        (FORM, b"--edge--\r\n"),
        (FORM, make_form(("image", FILES[0]), end=False)),
        (FORM, make_form(("photo", FILES[0]))),
        (FORM, make_form(("image", FILES[0]), ("note", b"x"))),
    ],
)
def test_malformed(kind: str, body: bytes) -> None:
    assert refuse(kind, body).status == 400


def test_parts_beyond_the_limit_are_not_even_read() -> None:
    """A body may have a million parts of a few bytes."""
    assert len(split_body(FORM, make_form(*[("image", FILES[0])] * 3), most=3)) == 3
    body = make_form(*[("image", FILES[0])] * 3, end=False) + b"--edge\r\nnonsense"
    assert refuse(FORM, body, most=3).status == 400
    assert refuse(FORM, body, most=2).status == 413


SETTINGS = ServiceSettings(max_pixels=10_000)


def save(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, kind)
    return file.getvalue()


@pytest.fixture
def decoder() -> Iterator[ImageDecoder]:
    made = ImageDecoder(load_pocket().preprocess, SETTINGS)
    yield made
    made.close()


def prepare(decoder: ImageDecoder, *images: bytes) -> ReadyImages:
    return asyncio.run(decoder.run(decoder.decode(images, lambda: 60.0)))


def test_images_are_those_of_the_library(decoder: ImageDecoder) -> None:
    files = [make_file(kind, colour=colour) for kind, colour in (("JPEG", "red"), ("PNG", "blue"), ("WEBP", "green"))]
    ready = prepare(decoder, *files)
    assert torch.equal(ready.images, load_pocket().preprocess(files))
    assert not ready.errors


def test_bad_images_have_their_places(decoder: ImageDecoder) -> None:
    good = make_file()
    ready = prepare(decoder, b"", good, good[:-200], make_bomb(), save("GIF"), good)
    assert len(ready.images) == 2
    assert set(ready.errors) == {0, 2, 3, 4}
    assert all(messages.endswith(".") for messages in ready.errors.values())
    assert "empty" in ready.errors[0]
    assert "10,000 pixels" in ready.errors[3]
    assert "JPEG, PNG, WEBP" in ready.errors[4]


@pytest.mark.parametrize(
    "image",
    [b"", b"no image", make_file()[:100], make_file("PNG")[:-40], make_file("WEBP")[:30]],
    ids=["empty", "text", "cut JPEG", "cut PNG", "cut WebP"],
)
def test_nothing_readable(decoder: ImageDecoder, image: bytes) -> None:
    with pytest.raises(HttpProblem) as caught:
        prepare(decoder, image)
    assert (caught.value.status, caught.value.code) == (422, "no_readable_image")


@pytest.mark.parametrize(
    "image",
    [make_bomb(), make_file(size=(101, 100)), make_file("WEBP", size=(101, 100))],
    ids=["bomb", "JPEG", "WebP"],
)
def test_too_many_pixels(decoder: ImageDecoder, image: bytes) -> None:
    with pytest.raises(HttpProblem) as caught:
        prepare(decoder, image)
    assert (caught.value.status, caught.value.code) == (413, "too_many_pixels")


def test_bomb_is_refused_before_it_is_unpacked(decoder: ImageDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Image.Image) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", refuse)
    with pytest.raises(HttpProblem, match="pixels"):
        prepare(decoder, make_bomb())


def test_digest_tells_images_apart(decoder: ImageDecoder) -> None:
    one, other = make_file(), make_file(colour="blue")
    digests = [
        prepare(decoder, *files).digest for files in ((one,), (one, other), (other, one), (one, b"x"), (one, b"y"))
    ]
    assert len(set(digests)) == 5
    assert prepare(decoder, one).digest == digests[0]


def test_only_so_many_requests_wait() -> None:
    """While the pool is busy, further requests are refused instead of piling up."""
    go = threading.Event()
    prepared = load_pocket().preprocess

    def preprocess(image: Image.Image) -> torch.Tensor:
        assert go.wait(60)
        return prepared(image)

    decoder = ImageDecoder(preprocess, ServiceSettings(queue_images=2, max_images=2))

    async def run() -> list[object]:
        async def ask() -> object:
            try:
                return await decoder.run(decoder.decode([make_file()], lambda: 1.0))
            except QueueFull as error:
                go.set()
                return error

        return await asyncio.gather(ask(), ask(), ask())

    first, second, third = asyncio.run(run())
    decoder.close()
    assert isinstance(first, ReadyImages)
    assert isinstance(second, ReadyImages)
    assert isinstance(third, QueueFull)


def test_costly_images_are_decoded_where_they_can_be_ended(
    decoder: ImageDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_MOST_WORK", (100, 200))
    small, large = make_file("PNG", (10, 10)), make_file("PNG", (20, 20))
    inputs = prepare(decoder, small, large).images
    assert torch.equal(inputs, load_pocket().preprocess([small, large]))
    monkeypatch.setattr(decoder._isolated, "decode", lambda content, seconds: pytest.fail("not here"))
    assert len(prepare(decoder, small).images) == 1


def test_large_images_do_not_wait_for_costly_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A photograph of 12 million pixels is no more work than it looks, unlike a JPEG of many scans."""
    costly, large, go = make_jpeg((3000, 3000), 60), make_jpeg((4000, 3000), 10), threading.Event()
    decoder, order = ImageDecoder(load_pocket().preprocess, ServiceSettings()), list[bytes]()

    def decode(content: bytes, seconds: float) -> Image.Image:
        assert content == large or go.wait(60)
        order.append(content)
        return Image.new("RGB", (8, 8))

    monkeypatch.setattr(decoder._isolated, "decode", decode)

    async def run() -> None:
        forms = [asyncio.ensure_future(decoder.run(decoder.decode([costly] * 2, lambda: 60.0))) for _ in range(2)]
        await asyncio.sleep(0.1)  # until they are decoded
        try:
            await asyncio.wait_for(decoder.run(decoder.decode([large], lambda: 60.0)), 10)
        finally:
            go.set()
            await asyncio.gather(*forms)

    asyncio.run(run())
    decoder.close()
    assert order == [large, *[costly] * 4]


def test_a_small_image_waits_for_one_image_of_a_large_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests take turns, and their work is summed, so that many images of little work are no small request."""
    monkeypatch.setattr(images, "_THREADS", 1)
    sizes, begun, go = list[int](), threading.Event(), threading.Event()
    prepared = load_pocket().preprocess

    def preprocess(image: Image.Image) -> torch.Tensor:
        sizes.append(image.width)
        begun.set()
        assert go.wait(60)
        return prepared(image)

    decoder = ImageDecoder(preprocess, ServiceSettings())

    async def run() -> None:
        large = asyncio.ensure_future(decoder.run(decoder.decode([make_file("PNG", (60, 60))] * 4, lambda: 60.0)))
        await asyncio.to_thread(begun.wait, 60)
        middle = asyncio.ensure_future(decoder.run(decoder.decode([make_file("PNG", (50, 50))] * 2, lambda: 60.0)))
        small = asyncio.ensure_future(decoder.run(decoder.decode([make_file("PNG", (20, 20))], lambda: 60.0)))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(large, middle, small)

    asyncio.run(run())
    decoder.close()
    assert sizes == [60, 20, 50, 50, 60, 60, 60]


def test_no_room_is_taken_after_the_request_has_ended(decoder: ImageDecoder) -> None:
    """The deadline passed while its work was queued."""
    with decoder.hold() as hold:
        pass
    with pytest.raises(DeadlinePassed):
        hold(1)
    assert decoder._decoded == 0
