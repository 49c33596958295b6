"""The file with the paper's numbers, read without anything heavy: help texts list its tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("published.json")


@cache
def read_paper_file() -> Mapping[str, Any]:
    """The content of the file: ``paper`` and ``tables``."""
    content: Mapping[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return content


def list_table_names() -> list[str]:
    """The names of the published tables."""
    return [table["name"] for table in read_paper_file()["tables"]]
