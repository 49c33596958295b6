"""The images that are sent: random photographs of a size, always the same for the same number; and bad ones."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def draw_pixels(number: int, side: int) -> NDArray[np.uint8]:
    """Smooth random colours [side, side, 3], so that models are sure of some images and not of others."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
    return np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))


def draw_image(number: int, side: int) -> bytes:
    """The same as the content of a PNG file."""
    return encode_pixels(draw_pixels(number, side), "PNG")


def encode_pixels(pixels: NDArray[np.uint8], kind: str) -> bytes:
    """Pixels as the content of a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def make_bomb(side: int = 50_000) -> bytes:
    """A small PNG whose header says that it is enormous: unpacked, it would take gigabytes."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1_000_000), 9)
    chunks = [(b"IHDR", header), *[(b"IDAT", rows)] * 8, (b"IEND", b"")]
    packed = [struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
              for name, body in chunks]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)
