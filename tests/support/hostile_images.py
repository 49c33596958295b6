"""Small files of images that cost much to read."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image


def make_jpeg(size: tuple[int, int], scans: int) -> bytes:
    """Return a progressive JPEG whose last scan is there again and again; each costs a pass over the image."""
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last * (scans - content.count(b"\xff\xda")) + content[-2:]


def make_bomb(side: int = 40_000) -> bytes:
    """Return a PNG of a few hundred bytes that says that it unpacks to so many pixels a side."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
