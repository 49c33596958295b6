"""Images at addresses: what is listed, in which order, and a sentence for everything that is missing."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from lmr.core.errors import LmrError
from lmr.images.files import UnreadableImage
from lmr.images.remote import RemoteImage, is_url, list_remote
from lmr.images.sources import iterate_images, list_sources

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'lmr[remote]'")


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def encode(color: str) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(content, "PNG")
    return content.getvalue()


def test_addresses_are_told_from_paths() -> None:
    assert is_url("s3://bucket/a.png")
    assert not any(map(is_url, ["a.png", "C://a.png", "/s3://x", "s3:/x"]))


def test_folder_at_an_address_in_natural_order(memory: Any) -> None:
    for name in ("img10.png", "img2.png", "sub/a.jpg", ".hidden.png", ".git/b.png", "notes.txt"):
        memory.pipe(f"/photos/{name}", encode("red"))
    found = list_sources(["memory://photos", "memory://photos"])
    assert list(map(str, found)) == [f"memory:///photos/{name}" for name in ("img2.png", "img10.png", "sub/a.jpg")]
    assert [item.open().getpixel((0, 0)) for item in iterate_images(found)] == [(255, 0, 0)] * 3


def test_list_at_an_address_names_files_beside_it(memory: Any) -> None:
    memory.pipe("/lists/a.png", encode("blue"))
    memory.pipe("/lists/all.csv", b"path\na.png\n")
    (image,) = list_sources(["memory://lists/all.csv"])
    assert str(image) == "memory://lists/a.png"
    (item,) = iterate_images([image])
    assert item.open().getpixel((0, 0)) == (0, 0, 255)


def test_unreadable_address_gives_the_reason(memory: Any) -> None:
    memory.pipe("/photos/bad.png", b"nothing")
    with pytest.raises(UnreadableImage, match=r"Cannot read 'memory://photos/bad\.png': it is not an image"):
        RemoteImage("memory://photos/bad.png").open()
    with pytest.raises(UnreadableImage, match=r"Cannot read 'memory://photos/none\.png': there is no such file"):
        RemoteImage("memory://photos/none.png").open()
    with pytest.raises(LmrError, match=r"There is no image \(\.jpg.* at 'memory://empty': check the address"):
        list_remote("memory://empty")
    with pytest.raises(LmrError, match=r"Cannot read 'nowhere://x/y': Protocol not known: nowhere"):
        list_remote("nowhere://x/y")


def test_without_fsspec_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(LmrError, match=r"needs fsspec; install it with: pip install 'lmr\[remote\]'"):
        list_remote("s3://bucket/photos")
