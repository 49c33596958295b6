"""The demonstration as a user starts it, and its page in a browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lmr
from lmr.apps.serve_demo.demo_run import serve_demo
from lmr.apps.serve_demo.simulated_camera import SCRIPTS
from lmr.core.errors import LmrError
from page_reader import WAIT

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOT = Path(__file__).parents[3] / "docs" / "serve-demo.png"
BROKEN = SCRIPTS[-1].name


@contextmanager
def run_demo(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``lmr serve --demo`` on a free port, and its address."""
    words = [sys.executable, "-m", "lmr", "serve", "--demo", "--port", "0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        address = ""
        for line in process.stdout:
            if found := re.search(r"serving at (http://\S+);", line):
                address = found[1]
            if "simulated cameras" in line:
                break
        assert address
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def read_table(text: str) -> dict[str, list[str]]:
    """The rows of the summary, by camera."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("cam-")}


def test_it_ends_by_itself_with_a_table() -> None:
    with run_demo("--for", "3") as (process, _):
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
    rows = read_table(text)
    assert set(rows) == {script.name for script in SCRIPTS}
    assert all(int(row[1]) >= 1 for row in rows.values())


def test_ctrl_c_ends_it_with_the_table_too() -> None:
    with run_demo() as (process, address):
        with lmr.Client(address) as client:
            while len(list(client.streams())) < len(SCRIPTS):
                time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
    assert set(read_table(text)) == {script.name for script in SCRIPTS}


def test_it_can_be_shown_to_other_machines_with_a_token(tmp_path: Path) -> None:
    with pytest.raises(LmrError, match="needs a --token-file"):
        serve_demo(1.0, host="0.0.0.0")
    token = tmp_path / "token"
    token.write_text("a-token-of-many-letters")
    with run_demo("--token-file", str(token)) as (process, address):
        with lmr.Client(address) as client, pytest.raises(lmr.ServiceError, match="token"):
            client.model()
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
    assert set(read_table(text)) == {script.name for script in SCRIPTS}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf")])
def test_wrong_times_are_refused(seconds: float) -> None:
    with pytest.raises(LmrError, match="positive number of seconds"):
        serve_demo(seconds)


def test_the_page_shows_the_cameras(tmp_path: Path) -> None:
    """With LMR_SCREENSHOTS set it waits until the watch has acted, and writes the picture of the README."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed")
    wanted = bool(os.environ.get("LMR_SCREENSHOTS"))
    problems: list[str] = []
    with run_demo() as (_, address), playwright.sync_playwright() as browsers, lmr.Client(address) as client:
        while len(list(client.streams())) < len(SCRIPTS):
            time.sleep(0.1)
        while wanted and client.stream(BROKEN).status.health != "rolled back":
            time.sleep(1.0)
        browser = browsers.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1100}, color_scheme="light")
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{address}/#{BROKEN}")
        page.wait_for_function(f"document.querySelector('#stream-count').textContent.includes('{len(SCRIPTS)}')")
        page.wait_for_timeout(3000 if wanted else 200)
        path = SCREENSHOT if wanted else tmp_path / "page.png"
        page.screenshot(path=str(path))
        browser.close()
    assert problems == []
    assert path.stat().st_size > 10_000
