"""The origin of data: official, made by lmr, or unknown. Rows of results state it.

A row describes its data in ``protocol["images"]`` and ``protocol["corruptions"]``. These texts are part of what makes
two rows equal. Only this module writes and reads them; all other code compares ``Provenance``.

On disk, a note about an unpacked archive makes its files official.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

IMAGES, CORRUPTIONS = "images", "corruptions"  # keys of a protocol

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


def read_archive_note(root: Path, file: str) -> dict[str, Any]:
    """Return the note about an archive that was unpacked: its checksum, and if only listed images were kept; or {}."""
    path = root / ".fetched" / f"{file}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def write_archive_note(root: Path, file: str, checksum: str, listed: bool) -> None:
    """Write the note about an archive."""
    path = root / ".fetched" / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"checksum": checksum, "listed": listed}).encode())


def compute_checksum(path: Path, algorithm: str) -> str:
    """Return the checksum of a file, in hexadecimal digits. Raises LmrError."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise LmrError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error
