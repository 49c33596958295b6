from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lmr.core.errors import LmrError
from lmr.images.files import UnreadableImage, decode_image
from lmr.service.client.images import ImageContent, find_media_type, pack_images, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)


def encode(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_files_of_the_service_are_sent_as_they_are(kind: str, tmp_path: Path) -> None:
    content = encode(kind)
    (tmp_path / "image").write_bytes(content)
    expected = ImageContent(f"image/{kind.lower()}", content)
    assert read_image(content) == expected
    assert read_image(tmp_path / "image") == expected
    assert read_image(str(tmp_path / "image")) == expected


def test_other_files_and_pixels_become_png_without_a_change(tmp_path: Path) -> None:
    (tmp_path / "image.bmp").write_bytes(encode("BMP"))
    for given in (tmp_path / "image.bmp", encode("BMP"), Image.fromarray(PIXELS), PIXELS, PIXELS[::-1][::-1]):
        found = read_image(given)
        assert found.media_type == "image/png" == find_media_type(found.content)
        assert np.array_equal(np.asarray(decode_image(found.content)), PIXELS)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_any_mode_of_pillow_arrives_as_the_library_would_open_it(mode: str, tmp_path: Path) -> None:
    image = Image.new(mode, (4, 3), 1 if mode in ("1", "L", "P", "I;16") else None)
    found = read_image(image)
    assert decode_image(found.content).size == (4, 3)


def test_grey_arrays_are_images() -> None:
    assert decode_image(read_image(PIXELS[..., 0]).content).getpixel((0, 0)) == (PIXELS[0, 0, 0],) * 3


@pytest.mark.parametrize(
    ("wrong", "came"),
    [(PIXELS.astype(float), "uint8 values from 0 to 255, got one of float64"), (PIXELS[None], r"\[1, 7, 5, 3\]"),
     (7, "int"),
     (np.zeros((0, 5, 3), np.uint8), "an image with pixels")],
)  # fmt: skip
def test_what_is_no_image_is_refused(wrong: Any, came: str) -> None:
    with pytest.raises(LmrError, match=came):
        read_image(wrong)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(tmp_path / "missing.png")
    with pytest.raises(UnreadableImage, match="not an image"):
        read_image(b"nothing")


def test_one_image_is_a_plain_body_and_several_are_parts() -> None:
    one = read_image(PIXELS)
    assert pack_images([one]) == ("image/png", one.content)
    kind, body = pack_images([one, one])
    assert kind.startswith("multipart/form-data; boundary=")
    assert body.count(one.content) == 2
    assert body.count(b'name="image"') == 2
