"""Image files: find them in a stable order, and open any of them as plain 8-bit RGB.

A model's input must not depend on how an image is stored, so rotation, transparency, bit depth and colour model are all
handled here.
"""

from __future__ import annotations

import io
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from PIL import Image, UnidentifiedImageError

from lmr.core.errors import LmrError, MissingFile, WrongType

EXTENSIONS: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
# The decoders that are used, whatever a file is called: those of other formats start programs or have had more faults.
FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MOST_BYTES = 2**30  # of a file; no image with as many pixels as Pillow allows is larger
MOST_SCANS = 64  # of a JPEG; encoders write 1 or about 10, and each costs a pass over the whole image
MANY_PARTS = 4096  # segments or chunks of a file; Pillow reads each in Python
_SCANS_PER_PASS = 10  # scans that take about as long as decoding the image once

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImage(LmrError):
    """A file that cannot be read as an image; the message gives the reason.

    Examples:
        >>> import lmr
        >>> try:
        ...     image = lmr.open_image("missing.jpg")
        ... except lmr.UnreadableImage as error:
        ...     print(error)
        Cannot read 'missing.jpg': there is no such file.
    """


class TooManyPixels(UnreadableImage):
    """An image that is larger than allowed, according to its header; nothing was decompressed."""


class MissingImage(UnreadableImage, FileNotFoundError):
    """An image file that is not there."""


def list_images(sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the image files among files and folders, in the order of the sources and without duplicates.

    Folders are searched recursively, without hidden files, hidden folders and links to folders, and sorted in natural
    order: img2 before img10. A file that is named explicitly is kept whatever its extension.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> for name in ("img10.png", "img2.png"):
        ...     Image.new("RGB", (8, 8)).save(name)
        >>> [str(path) for path in lmr.list_images(".")]
        ['img2.png', 'img10.png']
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    unique: dict[str, Path] = {}
    for name in sources:
        if not os.fspath(name):
            raise LmrError("Expected a file or folder, got an empty name; is a shell variable unset?")
        source = Path(name)
        if os.path.isdir(source):
            found = _search_folder(source)
        elif os.path.exists(source):
            found = [source]
        else:
            raise MissingFile(f"There is no file or folder {str(source)!r}: check the spelling, or give the full path.")
        for path in found:
            unique.setdefault(os.path.abspath(path), path)
    return list(unique.values())


def _search_folder(source: Path) -> list[Path]:
    found: list[Path] = []
    for root, folders, files in os.walk(source, onerror=_refuse_folder):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found += [Path(root, file) for file in files if not file.startswith(".") and file.lower().endswith(EXTENSIONS)]
    if not found:
        raise LmrError(
            f"The folder {str(source)!r} contains no image ({', '.join(EXTENSIONS)}): give one that does, "
            "or name files with other extensions one by one."
        )
    return sorted(found, key=lambda path: (make_sort_key(path.relative_to(source)), path))


def _refuse_folder(error: OSError) -> None:
    raise LmrError(
        f"The folder {str(error.filename)!r} cannot be listed ({error.strerror}): make it readable, or "
        "name the other folders one by one."
    ) from error


def make_sort_key(path: PurePath) -> list[list[tuple[str, int]]]:
    """Return a key that sorts folder by folder, numbers as numbers, without the extension: cat, cat 2, cat 10."""
    pieces = [re.findall(r"(\D*)(\d*)", part.casefold()) for part in path.with_suffix("").parts]
    return [[(text, int(digits or -1)) for text, digits in part] for part in pieces]


def open_image(path: str | os.PathLike[str], *, upright: bool = True) -> Image.Image:
    """Open the first frame of an image file as 8-bit RGB, upright, transparency composited on white.

    The content of a file decides its format: JPEG, PNG, WebP, BMP, GIF, TIFF or PPM, and no other.
    ``upright=False`` leaves the image as it was stored; all published results on ImageNet were obtained in this way.
    Raises UnreadableImage, and nothing else, if the file cannot be read; never warns.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> Image.new("RGBA", (4, 3), (0, 0, 0, 0)).save("clear.png")
        >>> image = lmr.open_image("clear.png")
        >>> image.mode, image.size, image.getpixel((0, 0))
        ('RGB', (4, 3), (255, 255, 255))
    """
    refuse_missing(path)
    name = repr(str(path))
    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise UnreadableImage(f"Cannot read {name}: it has more than {MOST_BYTES:,} bytes; save it as one image.")
        content = Path(path).read_bytes()
    except OSError as error:
        raise UnreadableImage(f"Cannot read {name}: {_explain(error)}.") from error
    return decode_image(content, name=name, upright=upright)


def refuse_missing(path: str | os.PathLike[str]) -> None:
    """Raise UnreadableImage if the path is not a file."""
    if not os.path.isfile(path):
        if os.path.isdir(path):
            raise UnreadableImage(f"Cannot read {str(path)!r}: it is a folder; give the files in it.")
        if os.path.exists(path):
            raise UnreadableImage(f"Cannot read {str(path)!r}: it is a pipe, a socket or a device; give a file.")
        raise MissingImage(f"Cannot read {str(path)!r}: there is no such file.")


def decode_image(
    content: bytes,
    *,
    formats: tuple[str, ...] = FORMATS,
    max_pixels: int | None = None,
    name: str | None = None,
    upright: bool = True,
) -> Image.Image:
    """Open the content of an image file as ``open_image`` opens the file; errors use ``name`` for it.

    For untrusted content, ``formats`` restricts the decoders further, and an image of more than ``max_pixels`` is
    refused by its header (TooManyPixels). A JPEG of more than 64 scans is always refused, because a few bytes of each
    can cost a pass over the whole image.
    """
    name = name or f"the image in {len(content)} bytes"
    try:
        if not content:
            raise UnreadableImage("the file is empty")
        layout = read_layout(content)
        if layout.scans > MOST_SCANS:
            raise UnreadableImage(
                f"it is a JPEG of more than {MOST_SCANS} scans; save it as baseline or usual progressive"
            )
        with muted_pillow(), Image.open(io.BytesIO(content), formats=formats) as image:
            _refuse_bomb(image, max_pixels)
            image.load()
            _refuse_cut(layout, content, image)
            converted = _convert_to_rgb(image)
            turn = _UPRIGHT.get(_read_orientation(image)) if upright else None
    except UnreadableImage as error:
        raise type(error)(f"Cannot read {name}: {error}.") from error
    except Exception as error:  # decoders raise almost any exception on damaged data
        kind = TooManyPixels if isinstance(error, Image.DecompressionBombError) else UnreadableImage
        raise kind(f"Cannot read {name}: {_explain(error, formats, max_pixels)}.") from error
    converted = converted if turn is None else converted.transpose(turn)
    converted.info.clear()  # the stored orientation has been applied: it must not be applied again
    return converted


def estimate_work(content: bytes, *, formats: tuple[str, ...], max_pixels: int) -> float:
    """Return the pixels of an image, times the passes over them that the scans of a JPEG take, by its headers.

    It is infinite for a file in very many parts, and 0 for one that ``decode_image`` refuses by its headers.
    """
    layout = read_layout(content)
    if layout.parts > MANY_PARTS:
        return math.inf
    try:
        with muted_pillow(), Image.open(io.BytesIO(content), formats=formats) as image:
            pixels = image.width * image.height
    except Exception:  # decoders raise almost any exception on damaged data
        return 0.0
    refused = pixels > max_pixels or layout.scans > MOST_SCANS
    return 0.0 if refused else pixels * max(1.0, layout.scans / _SCANS_PER_PASS)


def open_any(image: object) -> Image.Image:
    """Return a PIL image as it is, the image at a path, in the content of a file (bytes), or of an array.

    An array of NumPy or torch is uint8 [h, w, 3] in RGB, or [h, w] in grey.
    """
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, (str, os.PathLike)):
        return open_image(image)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return decode_image(bytes(image))
    shape, kind = getattr(image, "shape", None), str(getattr(image, "dtype", None))
    if shape is None:
        raise WrongType(
            "Expected a PIL image, the path of an image file, the content of one as bytes, a uint8 array [h, w, 3], or "
            f"a list of these; got {type(image).__name__}."
        )
    if kind not in ("uint8", "torch.uint8"):
        raise LmrError(f"Expected an array of uint8 values from 0 to 255, got one of {kind}; convert it first.")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 3):
        raise LmrError(
            f"Expected an array ['h', 'w', 3] in RGB or ['h', 'w'] in grey, got {list(shape)}; move the channels to "
            "the end, and drop an alpha channel."
        )
    if 0 in shape:
        raise LmrError(f"Expected an image with pixels, got an array {list(shape)}.")
    host = image.cpu() if hasattr(image, "cpu") else image  # a tensor may be on another device
    return Image.fromarray(np.ascontiguousarray(host))


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        return scale_to_8_bits(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white.convert("RGB")


def scale_to_8_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit greyscale to 8 bits: 65535 becomes 255 (Pillow would clip everything above 255)."""
    values = np.asarray(image)
    if image.mode == "F":
        raise UnreadableImage("its values are floating-point numbers of unknown range; convert it to 8 bits first")
    if values.min() < 0 or values.max() > 65535:
        raise UnreadableImage("its values do not fit in 16 bits; convert it to 8 bits first")
    scaled = values.astype(np.uint32)  # one copy: a service decodes images of 25 million pixels
    scaled += 128
    scaled //= 257
    return Image.fromarray(scaled.astype(np.uint8))


def _read_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 (upright) by default; damaged metadata must not fail a decodable image."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        return 1


def _refuse_bomb(image: Image.Image, max_pixels: int | None) -> None:
    """Enforce the limits; Pillow only warns between its limit and twice its limit."""
    limits = [limit for limit in (Image.MAX_IMAGE_PIXELS, max_pixels) if limit is not None]
    if limits and image.width * image.height > min(limits):
        raise Image.DecompressionBombError


@dataclass(frozen=True)
class Layout:
    """The parts of an image file that cost time to read: segments or chunks, and the scans of a JPEG among them."""

    parts: int = 0
    scans: int = 0
    end: int = 0  # where the end marker of a Huffman-coded JPEG begins; 0 if there is none
    lacks_scans: bool = False  # True if the scans of a JPEG leave out coefficients that its frame announces


_JPEG, _PNG = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # in the data of a scan 0xff is escaped, or restarts it
_END, _SCAN, _BARE = b"\xd9", b"\xda", (b"\x01", b"\xd8")  # markers; those without a length
_FRAMES, _PROGRESSIVE = (b"\xc0", b"\xc1", b"\xc2"), b"\xc2"  # markers of Huffman-coded frames
_COEFFICIENTS = 64  # of a block


def read_layout(content: bytes) -> Layout:
    """Count the parts of a JPEG or PNG file by their headers, up to a little more than the limits.

    A marker in the data of a JPEG ends a scan for the decoder, too, so that no scan can be hidden from this count.
    """
    parts = scans = place = end = 0
    missing: dict[int, set[int]] = {}  # coefficients that no scan has completed, by component
    frame = b""
    if content.startswith(_JPEG):
        place = len(_JPEG)
        while parts <= MANY_PARTS and scans <= MOST_SCANS and (found := _MARKER.search(content, place)):
            place = found.end()
            if found[1] == _END:
                end = found.start() if frame else 0
                break
            length = 0 if found[1] in _BARE else int.from_bytes(content[place : place + 2], "big")
            body = content[place + 2 : place + length]
            if found[1] in _FRAMES:
                frame = found[1]
                missing = {component: set(range(_COEFFICIENTS)) for component in body[6::3]}
            elif found[1] == _SCAN:
                _strike_out(missing, body, frame == _PROGRESSIVE)
            place += length
            parts, scans = parts + 1, scans + (found[1] == _SCAN)
    elif content.startswith(_PNG):
        place = len(_PNG)
        while parts <= MANY_PARTS and place < len(content):
            place += 12 + int.from_bytes(content[place : place + 4], "big")  # a length, a name, data, a checksum
            parts += 1
    return Layout(parts, scans, end, end > 0 and any(missing.values()))


def _strike_out(missing: dict[int, set[int]], header: bytes, progressive: bool) -> None:
    """Remove the coefficients that a scan completes; ``header`` is the body of its segment."""
    if len(header) < 4 or len(header) != 2 * header[0] + 4:
        return  # the decoder refuses it
    first, last, bits = header[-3:]
    for component in header[1:-3:2]:
        if not progressive:
            missing.pop(component, None)
        elif component in missing and not bits & 0x0F:  # otherwise a later scan refines them
            missing[component].difference_update(range(first, last + 1))


_GREY = (127, 128)  # what a decoder makes of blocks without data, in each band; one less in the inverted ones of CMYK
_FILLER = bytes(range(255)) * 16  # data of a scan, without a marker


def _refuse_cut(layout: Layout, content: bytes, image: Image.Image) -> None:
    """Refuse a JPEG whose data end before its last block: the decoder fills the rest with grey and says nothing.

    An image may well end in grey. So it is decoded again with other data before its end marker: nothing reads these
    if the image is complete.
    """
    if layout.lacks_scans:
        raise UnreadableImage("the file is incomplete: it is a JPEG without its last scans")
    last = image.getpixel((image.width - 1, image.height - 1)) if layout.end else None
    if last is None or not all(value in _GREY for value in (last if isinstance(last, tuple) else (last,))):
        return
    filled = content[: layout.end] + _FILLER + content[layout.end :]
    try:
        with Image.open(io.BytesIO(filled), formats=("JPEG",)) as other:
            other.load()
            complete = image.tobytes() == other.tobytes()
    except (OSError, SyntaxError):
        complete = False
    if not complete:
        raise UnreadableImage("the file is incomplete: its data end before the last block of the image")


def _explain(error: Exception, formats: tuple[str, ...] = FORMATS, max_pixels: int | None = None) -> str:
    if isinstance(error, Image.DecompressionBombError):
        if max_pixels is not None:
            return f"it has more than {max_pixels:,} pixels; send a smaller one"
        return f"it has more than {Image.MAX_IMAGE_PIXELS} pixels; make it smaller or raise PIL.Image.MAX_IMAGE_PIXELS"
    if isinstance(error, UnidentifiedImageError):
        return f"it is not an image of a known format ({', '.join(formats)}), or damaged"
    if isinstance(error, OSError) and error.strerror:
        return f"the operating system reports {error.strerror!r}"
    return f"the file is damaged or incomplete ({type(error).__name__}: {error})"


_muting = ExitStack()
_muting_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child has no other thread that could release it
    os.register_at_fork(
        before=_muting_lock.acquire, after_in_parent=_muting_lock.release, after_in_child=_muting_lock.release
    )
_muting_users = 0


@contextmanager
def muted_pillow() -> Iterator[None]:
    """Hide Pillow's warnings while any thread is decoding.

    The filters are one list per process. If every thread saved and restored it, the last one to leave could restore
    the muted list permanently. So the first one to enter mutes Pillow, and the last one to leave restores the list.
    """
    global _muting_users
    with _muting_lock:
        if _muting_users == 0:
            _muting.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _muting_users += 1
    try:
        yield
    finally:
        with _muting_lock:
            _muting_users -= 1
            if _muting_users == 0:
                _muting.close()
