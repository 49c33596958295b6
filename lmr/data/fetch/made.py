"""The note beside corrupted pictures that were made here: nobody must take them for the official files."""

from __future__ import annotations

import json
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

NOTE = "made-by-lmr.json"


def read_note(folder: Path) -> str | None:
    """How the pictures in a folder were made, None if there is no note: then lmr did not make them."""
    try:
        return str(json.loads((folder / NOTE).read_text())["corruptions"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LmrError(
            f"The note {str(folder / NOTE)!r} cannot be read ({error}); move the folder away and make it anew."
        ) from error


def write_note(folder: Path, digest: str, corruptions: str) -> None:
    """Begin or continue a set of pictures made from those with ``digest``; refuse to add to any other."""
    note, path = {"clean": digest, "corruptions": corruptions}, folder / NOTE
    if folder.exists() and any(folder.iterdir()):
        if read_note(folder) is None:
            raise LmrError(f"The folder {str(folder)!r} holds files that lmr did not make; move it away first.")
        if json.loads(path.read_text()) != note:
            raise LmrError(f"The folder {str(folder)!r} holds pictures made in another way; move it away first.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(note, indent=1).encode())
