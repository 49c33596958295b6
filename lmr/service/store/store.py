"""Store: the states of all streams in one SQLite file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class Store:
    """One SQLite file. ``identity`` names the model, classes and method whose states it holds."""

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path, self.identity = path, dict(identity)
