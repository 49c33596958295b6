"""The examples of docs/service.md run against a real service."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from live_server import run_live_server

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "service.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CURL = re.findall(r"^(curl .+)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_live_server(["cat", "dog", "ship", "truck"], "photo") as found:
        yield found


@pytest.fixture(autouse=True)
def _frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = Image.effect_noise((8, 6), 80).convert("RGB")
    blocks.resize((64, 48)).save("frame.jpg")  # one colour or noise would teach nothing


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_examples_run(url: str, code: str) -> None:
    assert ADDRESS in code
    exec(code.replace(ADDRESS, url), {})


def test_curl_examples_run(url: str) -> None:
    """In their order, because they tell one story."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert len(CURL) >= 8
    for line in CURL:
        words = shlex.split(line.replace(ADDRESS, url))
        done = subprocess.run(
            [*words, "-sS", "--fail-with-body"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if "-o" not in words:
            json.loads(done.stdout)
