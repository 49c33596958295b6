"""The note about an archive that was fetched: its checksum, and what was taken out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmr.core.files import write_atomically


def read_fetched(root: Path, file: str) -> dict[str, Any] | None:
    """What was noted about an archive: its "checksum", whether only the "listed" pictures were kept, and the "names" of
    what it brought, None while it is still on its way.
    """
    try:
        note = json.loads((root / ".fetched" / f"{file}.json").read_text())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def write_fetched(root: Path, file: str, note: dict[str, Any]) -> None:
    """Write the note, all at once."""
    path = root / ".fetched" / f"{file}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(note).encode())
