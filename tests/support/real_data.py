"""Images outside the repository, in the folder $LMR_TEST_DATA; tests that need them are skipped elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("LMR_TEST_DATA") or os.devnull)


def needs(name: str) -> pytest.MarkDecorator:
    """A mark for a test that reads a file or folder of ``FOLDER``."""
    return pytest.mark.skipif(not (FOLDER / name).exists(), reason=f"needs {name} in the folder $LMR_TEST_DATA")
