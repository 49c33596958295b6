"""Files at an address such as s3://bucket/photos, read with fsspec."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, cast

from PIL import Image

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.images.files import EXTENSIONS, UnreadableImage, decode_image, make_sort_key

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


@dataclass(frozen=True)
class RemoteImage:
    """An image file at an address; as text it is the address."""

    url: str

    def open(self) -> Image.Image:
        """Return the image as RGB. Raises UnreadableImage."""
        try:
            with open_remote(self.url) as file:
                content = file.read()
        except LmrError as error:
            raise UnreadableImage(str(error)) from error
        except OSError as error:
            raise UnreadableImage(f"Cannot read {self.url!r}: {explain_error(error)}.") from error
        return decode_image(content, name=repr(self.url))

    def __str__(self) -> str:
        return self.url


def is_url(source: str | os.PathLike[str]) -> bool:
    """Return True for an address that fsspec reads, False for a path."""
    return isinstance(source, str) and _ADDRESS.match(source) is not None


def open_remote(url: str) -> IO[bytes]:
    """Open the file at an address. Raises LmrError if a package is missing, OSError if the file cannot be read."""
    system, path = find_system(url)
    return cast("IO[bytes]", system.open(path, "rb"))


def list_remote(url: str) -> list[RemoteImage]:
    """Return the images in a folder at an address and in its sub-folders, in natural order, or the single image."""
    system, path = find_system(url)
    try:
        system.invalidate_cache()  # files may have changed since an earlier call
        if system.isfile(path):
            return [RemoteImage(url)]
        found = [one for one in system.find(path) if _is_image(one[len(path) :])]
    except Exception as error:  # each file system has exceptions of its own
        raise LmrError(f"Cannot list {url!r}: {explain_error(error)}.") from error
    if not found:
        raise LmrError(f"There is no image ({', '.join(EXTENSIONS)}) at {url!r}: check the address.")
    found.sort(key=lambda one: (make_sort_key(PurePosixPath(one)), one))
    return [RemoteImage(system.unstrip_protocol(one)) for one in found]


def _is_image(path: str) -> bool:
    """Return True if a path below a folder is that of an image that is not hidden."""
    return path.lower().endswith(EXTENSIONS) and not any(part.startswith(".") for part in path.split("/"))


def find_system(url: str) -> tuple[Any, str]:
    """Return the file system of an address, or of a path, and the path in it."""
    fsspec: Any = require("fsspec", "remote", f"Reading {url!r}")
    if not is_url(url):  # which may hold characters that mean something in an address
        system = fsspec.filesystem("file")
        return system, system._strip_protocol(os.path.abspath(url))
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # the package for this kind of address is missing, or it is unknown
        raise LmrError(f"Cannot read {url!r}: {explain_error(error)}.") from error
    return system, path


def explain_error(error: Exception) -> str:
    """Return the reason of a file system's error as a short phrase."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    text = str(error).strip().rstrip(".")
    return text.splitlines()[0] if text else type(error).__name__
