"""The notes that lmr keeps with data on disk: which archives it unpacked, and which images it made itself.

A note of the first kind makes files official. One of the second kind keeps made images from counting as official.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

MADE_NOTE = "made-by-lmr.json"


@dataclass(frozen=True)
class ArchiveNote:
    """What is known about an archive whose checksum was verified."""

    checksum: str
    listed: bool  # only the listed images were kept
    names: tuple[str, ...] | None  # of what it added to its folder; None: it is being unpacked
    downloaded: bool = False  # the archive itself is in the root and was fetched by lmr, which may delete it


def read_archive_note(root: Path, file: str) -> ArchiveNote | None:
    """The note about an archive; None if there is none, or none that can be read."""
    try:
        content = json.loads((root / ".fetched" / f"{file}.json").read_text())
        names = content["names"]
        return ArchiveNote(
            str(content["checksum"]),
            content.get("listed") is True,
            None if names is None else tuple(str(name) for name in names),
            content.get("downloaded") is True,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_archive_note(root: Path, file: str, note: ArchiveNote) -> None:
    """Write the note about an archive."""
    path = root / ".fetched" / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(note)).encode())


def read_made_note(folder: Path) -> str | None:
    """How the images in a folder were made; None if there is no note, because lmr did not make them."""
    try:
        return str(json.loads((folder / MADE_NOTE).read_text())["corruptions"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LmrError(
            f"Cannot read the note {str(folder / MADE_NOTE)!r} ({error}); move the folder away and make the set again."
        ) from error


def write_made_note(folder: Path, digest: str, corruptions: str) -> None:
    """Begin or continue a set of images made from the clean set with this digest; refuse to add to any other."""
    note, path = {"clean": digest, "corruptions": corruptions}, folder / MADE_NOTE
    if folder.exists() and any(folder.iterdir()):
        if read_made_note(folder) is None:
            raise LmrError(f"The folder {str(folder)!r} holds files that lmr did not make; move it away first.")
        if json.loads(path.read_text()) != note:
            raise LmrError(f"The folder {str(folder)!r} holds images that were made differently; move it away first.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(note, indent=1).encode())
