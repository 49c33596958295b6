"""The origin of data: official, made by lmr, or unknown. Rows of results state it.

A row describes its data in ``protocol["images"]`` and ``protocol["corruptions"]``. These texts are part of what makes
two rows equal.

On disk, a note about an unpacked archive makes its files official.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

OFFICIAL, OTHER, MADE = "the official", "not the official", "made by lmr"  # how the texts begin, if anything is known


def describe_test_set(official: bool, count: int) -> str:
    """Describe a clean test set that was compared with the official one."""
    return f"{OFFICIAL if official else OTHER} test set, {count} images"


def describe_files(official: bool | None, title: str, different: Sequence[str] = ()) -> str:
    """Describe corrupted images from files; ``different`` are those that do not match the published checksums.

    None: there is nothing published to compare with, or they were not compared.
    """
    if official is None:
        return f"files in the layout of {title}, not checked"
    if official:
        return f"{OFFICIAL} files of {title}"
    return f"{OTHER} files of {title}: {', '.join(different)} not of the published checksum"


def describe_made(constants: str, seed: int) -> str:
    """Describe corrupted images that lmr computes."""
    return f"{MADE} with the {constants} constants, seed {seed}"


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
