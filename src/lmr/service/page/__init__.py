"""The live page: HTML, CSS and JavaScript as files of the package."""

from __future__ import annotations

from pathlib import Path

PAGE_FOLDER = Path(__file__).parent
ASSETS_FOLDER = PAGE_FOLDER / "assets"
SAMPLES_FOLDER = PAGE_FOLDER.parents[1] / "data" / "assets"  # the photographs that come with lmr, for Try it
