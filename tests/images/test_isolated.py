"""Processes that decode: the same pixels and messages as in a thread, an end at the deadline, and a fresh start."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from hostile_images import make_jpeg
from lmr.images.files import TooManyPixels, UnreadableImage, decode_image
from lmr.images.isolated import IsolatedDecoder

SECONDS = 60.0  # against hanging alone


@pytest.fixture(scope="module")
def decoder() -> Iterator[IsolatedDecoder]:
    made = IsolatedDecoder(("JPEG", "PNG"), 1_000_000)
    yield made
    made.close()


def make_file(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_pixels_are_those_of_the_thread(decoder: IsolatedDecoder, kind: str) -> None:
    content = make_file(kind)
    image = decoder.decode(content, SECONDS)
    assert (image.mode, image.size) == ("RGB", (40, 30))
    assert image.tobytes() == decode_image(content).tobytes()


def test_errors_are_those_of_the_thread(decoder: IsolatedDecoder) -> None:
    for content, kind in ((b"no image", UnreadableImage), (make_file("PNG", (1200, 900)), TooManyPixels)):
        with pytest.raises(UnreadableImage) as here:
            decode_image(content, formats=("JPEG", "PNG"), max_pixels=1_000_000)
        with pytest.raises(UnreadableImage) as there:
            decoder.decode(content, SECONDS)
        assert type(there.value) is kind
        assert str(there.value) == str(here.value)


def test_an_image_that_takes_too_long_ends_its_process_and_no_other(decoder: IsolatedDecoder) -> None:
    good, slow = make_file("PNG"), make_jpeg((1200, 800), 60)
    decoder.decode(good, SECONDS)
    (process,) = decoder._idle
    os.kill(process.pid, signal.SIGSTOP)  # as slow as it gets
    started = time.monotonic()
    with pytest.raises(UnreadableImage, match=r"took longer than 0\.1 seconds"):
        decoder.decode(slow, 0.1)
    assert time.monotonic() - started < SECONDS / 2
    assert process.poll() is not None
    assert decoder.decode(good, SECONDS).size == (40, 30)


def test_a_process_that_dies_is_replaced(decoder: IsolatedDecoder) -> None:
    good = make_file("PNG")
    decoder.decode(good, SECONDS)
    (process,) = decoder._idle
    process.kill()
    process.wait(SECONDS)
    assert decoder.decode(good, SECONDS).size == (40, 30)


def test_no_process_is_left_after_close() -> None:
    made = IsolatedDecoder(("PNG",), 1_000_000)
    made.decode(make_file("PNG"), SECONDS)
    (process,) = made._idle
    made.close()
    assert process.poll() is not None
