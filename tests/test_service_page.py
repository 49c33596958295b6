"""The examples of docs/service.md run against a real service; what it and docs/operating.md name exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from PIL import Image

from lab.load.__main__ import make_parser
from live_server import run_live_server
from lmr.cli.parser import build_command
from lmr.service.app.routes import OperatorAction
from service_maker import serve_scripted

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "service.md").read_text(encoding="utf-8")
OPERATING = (DOCS / "operating.md").read_text(encoding="utf-8")
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


def test_the_answer_has_the_fields_of_the_example(url: str) -> None:
    import lmr

    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    shown = json.loads(example)
    with lmr.Client(url) as client:
        answer = client.step("fields", "frame.jpg")
    assert set(shown) <= set(vars(answer))
    assert set(shown["adaptation"]) == set(answer.adaptation)
    assert set(shown["timing"]) == set(answer.timing)


def test_routes_and_flags_of_the_page_exist() -> None:
    with serve_scripted() as made:
        routes = made.client.get("/openapi.json").json()["paths"]
    for path in re.findall(r"`(?:[A-Z]+ )?(/v1/[^?`\s]*)", PAGE):
        assert path.rstrip(":") in routes, path
    for action in re.findall(r"`:(\w+)`", OPERATING):
        assert action in get_args(OperatorAction), action
    known = {word for action in build_command("serve")._actions for word in action.option_strings}
    others = {
        word
        for parser in (build_command("camera"), build_command("predict"), make_parser())
        for word in re.findall(r"--[\w-]+", parser.format_help())
    }
    for flag in set(re.findall(r"(?<![\w-])(--[a-z][\w-]*)", PAGE + OPERATING)):
        assert flag in known | others | {"--data-binary", "--file"}, flag  # of curl and docker
