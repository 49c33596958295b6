"""Small sets of images in the official layouts, written by hand for the tests beside this file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image

from lmr.data.dataset import Dataset


class FakeSet(Dataset):
    """Images of one pixel that say where they come from: [domain, index // 256, index % 256]."""

    def __init__(self, labels: np.ndarray, domains: tuple[str, ...] = ("fog", "snow"), name: str = "fake") -> None:
        self.name, self.domains, self.severities = name, domains, (1, 2, 3, 4, 5)
        self.classes = tuple(f"class {k}" for k in range(int(labels.max()) + 1))
        self.protocol = {"images": "made up"}
        self.truth, self.reads = labels.astype(np.int64), []

    @property
    def digest(self) -> str:
        return "0" * 16

    def labels(self, domain: str) -> np.ndarray:
        return self.truth

    def read(self, domain, severity, indices):
        self.reads.append((domain, severity, list(indices)))
        place = self.domains.index(domain)
        return [np.full((1, 1, 3), (place, k // 256, k % 256), np.uint8) for k in indices]


def make_cifar(count: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images [N, 32, 32, 3] and labels [N]."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return images, generator.integers(0, classes, count)


def pickle_like_python_2(images: np.ndarray, labels: np.ndarray, key: bytes) -> bytes:
    """A pickle as Python 2 wrote the archives: byte strings, and dtype flags as the numbers 0 and 1."""
    rows = b"".join(image[..., k].tobytes() for image in images for k in range(3))

    def word(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + word(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + word(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + word(b"b") + b"\x87R"
    state = b"(" + number(1) + number(len(images)) + number(3072) + b"\x86" + dtype
    array += state + b"\x89T" + struct.pack("<i", len(rows)) + rows + b"tb"
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return b"\x80\x02}(" + word(b"data") + array + word(key) + listed + b"u."


def write_image(path: Path, colour: int, size: tuple[int, int] = (16, 16)) -> None:
    """A plain image whose grey value survives JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, colour, colour)).save(path, quality=95)


def read_colour(image: np.ndarray) -> int:
    """The grey value of such an image, whatever a decoder did to its last bit."""
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.shape[2] == 3
    assert np.ptp(image) <= 1
    return int(np.median(image))
