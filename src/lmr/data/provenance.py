"""The origin of data: official, made by lmr, or unknown. Notes on disk record it, and rows of results state it.

A row describes its data in ``protocol["images"]`` and ``protocol["corruptions"]``. These texts are part of what makes
two rows equal. Only this module writes and reads them; all other code compares ``Provenance``.

On disk, a note about an unpacked archive makes its files official, and a note in a folder of images that lmr made keeps
them from counting as official.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

IMAGES, CORRUPTIONS = "images", "corruptions"  # keys of a protocol
MADE_NOTE = "made-by-lmr.json"

_OFFICIAL, _OTHER, _MADE = "the official", "not the official", "made by lmr"


class Provenance(Enum):
    """The origin of some files or images, as far as it is known."""

    OFFICIAL = "official"  # they match the published checksums, or were unpacked from an archive that does
    MADE = "made"  # computed by lmr
    OTHER = "other"  # they were compared with the published checksums and differ
    UNCHECKED = "unchecked"  # nothing published to compare with, or not compared


@dataclass(frozen=True)
class DataOrigin:
    """The origin of the clean images and of the corrupted ones; ``corruptions`` is None for clean sets."""

    images: Provenance = Provenance.UNCHECKED
    corruptions: Provenance | None = None


def read_origin(protocol: Mapping[str, str]) -> DataOrigin:
    """Return the origin that the protocol of a row or dataset states; a missing text means UNCHECKED."""
    corruptions = protocol.get(CORRUPTIONS)
    return DataOrigin(
        _read_provenance(protocol.get(IMAGES, "")), None if corruptions is None else _read_provenance(corruptions)
    )


def _read_provenance(text: str) -> Provenance:
    if text.startswith(_MADE):
        return Provenance.MADE
    if text.startswith(_OTHER):
        return Provenance.OTHER
    return Provenance.OFFICIAL if text.startswith(_OFFICIAL) else Provenance.UNCHECKED


def describe_test_set(provenance: Provenance, count: int) -> str:
    """Describe a clean test set."""
    if provenance is Provenance.UNCHECKED:
        return f"{count} images of the test set"
    return f"{_OFFICIAL if provenance is Provenance.OFFICIAL else _OTHER} test set, {count} images"


def describe_excerpt(count: int, title: str) -> str:
    """Describe the images that come with the package."""
    return f"{count} images of the test set of {title} that come with lmr"


def describe_files(provenance: Provenance, title: str, different: Sequence[str] = ()) -> str:
    """Describe corrupted images from files; ``different`` are those that do not match the published checksums."""
    if provenance is Provenance.UNCHECKED:
        return f"files in the layout of {title}, not checked"
    if provenance is Provenance.OFFICIAL:
        return f"{_OFFICIAL} files of {title}"
    return f"{_OTHER} files of {title}: {', '.join(different)} not of the published checksum"


def describe_made(constants: str, seed: int) -> str:
    """Describe corrupted images that lmr computes."""
    return f"{_MADE} with the {constants} constants, seed {seed}"


@dataclass(frozen=True)
class ArchiveNote:
    """A note about an archive whose checksum was verified."""

    checksum: str
    listed: bool  # only the listed images were kept
    names: tuple[str, ...] | None  # of what it added to its folder; None: it is being unpacked
    downloaded: bool = False  # the archive itself is in the root and was fetched by lmr, which may delete it


def read_archive_note(root: Path, file: str) -> ArchiveNote | None:
    """Return the note about an archive; None if there is no readable one."""
    try:
        content = json.loads((root / ".fetched" / f"{file}.json").read_text())
        names = content["names"]
        return ArchiveNote(**content | {"names": None if names is None else tuple(map(str, names))})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_archive_note(root: Path, file: str, note: ArchiveNote) -> None:
    """Write the note about an archive."""
    path = root / ".fetched" / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(note)).encode())


def read_made_note(folder: Path) -> str | None:
    """Return the description of the images that lmr made in a folder; None if there is no such note."""
    try:
        return str(json.loads((folder / MADE_NOTE).read_text())["corruptions"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LmrError(
            f"Cannot read the note {str(folder / MADE_NOTE)!r} ({error}); move the folder away and make the set again."
        ) from error


def write_made_note(folder: Path, digest: str, corruptions: str) -> None:
    """Begin or continue a set of images made from the clean set with this digest. Raises LmrError for any other set."""
    note, path = {"clean": digest, "corruptions": corruptions}, folder / MADE_NOTE
    if folder.exists() and any(folder.iterdir()):
        if read_made_note(folder) is None:
            raise LmrError(f"The folder {str(folder)!r} holds files that lmr did not make; move it away first.")
        if json.loads(path.read_text()) != note:
            raise LmrError(f"The folder {str(folder)!r} holds images that were made differently; move it away first.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(note, indent=1).encode())


def compute_checksum(path: Path, algorithm: str) -> str:
    """Return the checksum of a file, in hexadecimal digits. Raises LmrError."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise LmrError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error
