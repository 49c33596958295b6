"""Images as the service takes them: the content of a JPEG, PNG or WebP file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    AnyImage: TypeAlias = Image.Image | str | os.PathLike[str] | bytes | NDArray[np.uint8]


class ImageContent(NamedTuple):
    """The bytes of an image file and their media type."""

    media_type: str
    content: bytes


def read_image(image: AnyImage) -> ImageContent:
    """Return the content of a file for a PIL image, a path, bytes, or a uint8 array [h, w, 3] (or [h, w], grey).

    Files of the types that the service decodes are sent as they are, others and pixels as PNG, which changes nothing.
    """
    content = b""
    if isinstance(image, bytes | bytearray | memoryview):
        content = bytes(image)
    elif isinstance(image, str | os.PathLike) and os.path.isfile(image):
        content = Path(image).read_bytes()
    if (kind := find_media_type(content)) is not None:
        return ImageContent(kind, content)
    from lmr.images.files import open_any

    return _encode(open_any(image))


def pack_images(parts: Sequence[ImageContent]) -> tuple[str, bytes]:
    """Return the content type and the body for these images."""
    if len(parts) == 1:
        return parts[0].media_type, parts[0].content
    import httpx

    files = [("image", (str(number), part.content, part.media_type)) for number, part in enumerate(parts)]
    request = httpx.Request("POST", "http://localhost", files=files)
    return request.headers["Content-Type"], request.read()


def find_media_type(content: bytes) -> str | None:
    """Return the type of a file from its first bytes; None if it is not one that the service decodes."""
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def _encode(image: Image.Image) -> ImageContent:
    """Encode as PNG, which loses nothing; quickly, because the network is usually not what is slow."""
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = image.convert("RGB")
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return ImageContent("image/png", file.getvalue())
