from __future__ import annotations

import io

from PIL import Image


def make_jpeg(size: tuple[int, int], scans: int) -> bytes:
    """Return a progressive JPEG whose last scan is there again and again; each costs a pass over the image."""
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last * (scans - content.count(b"\xff\xda")) + content[-2:]
