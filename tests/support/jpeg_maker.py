"""Progressive JPEG files of as many scans as wanted: small files that cost a pass over the image for each of them."""

from __future__ import annotations

import io

from PIL import Image


def make_jpeg(size: tuple[int, int], scans: int, colour: str = "red") -> bytes:
    """A progressive JPEG whose last scan is there again and again."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last * (scans - content.count(b"\xff\xda")) + content[-2:]
