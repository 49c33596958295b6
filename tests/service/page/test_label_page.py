"""The page of ``lmr label`` in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from PIL import Image

from lmr.apps.label import LabelSession, make_label_app
from page_reader import Tab, open_tab

FEW = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
MANY = [f"kind {number:03d}" for number in range(199)] + ["zebra"]


@contextmanager
def serve(folder: Path, names: list[str]) -> Iterator[tuple[LabelSession, str]]:
    session = LabelSession(folder, names, folder / "labels.csv")
    config = uvicorn.Config(make_label_app(session, None), "127.0.0.1", 0, log_config=None)
    server, socket = uvicorn.Server(config), config.bind_socket()
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    try:
        yield session, f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(25):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), np.uint8)).save(tmp_path / f"{number}.png")
    return tmp_path


def press(tab: Tab, key: str, count: str) -> None:
    tab.page.keyboard.press(key)
    tab.wait_text("#progress", count)


def test_twenty_images_are_labelled_by_keys(browser: Any, folder: Path) -> None:
    with serve(folder, FEW) as (session, url):
        with open_tab(browser, url) as tab:
            tab.wait_text("#progress", "0 of 20")
            for number in range(12):
                press(tab, "123456789a"[number % 10], f"{number + 1} of 20")
            press(tab, "ArrowLeft", "11 of 20")
            press(tab, "-", "12 of 20")
            tab.page.keyboard.press("ArrowRight")
            assert not tab.errors
            assert not tab.foreign
        done = session.labels  # the browser is closed in the middle
        assert list(done.values()) == [*FEW, FEW[0], None]
    with serve(folder, FEW) as (session, url):
        assert session.labels == done
        with open_tab(browser, url, viewport={"width": 390, "height": 844}, color_scheme="dark") as tab:
            tab.wait_text("#progress", "12 of 20")
            for number in range(8):
                press(tab, "4", f"{number + 13} {'of 20' if number < 7 else 'labelled:'}")
            tab.page.locator("#classes button").nth(5).click()
            tab.wait_text("#progress", "21 labelled")
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert not tab.errors
        assert list(session.labels.values())[-1] == "dog"


def test_a_class_among_two_hundred_is_found_by_typing(browser: Any, folder: Path) -> None:
    with serve(folder, MANY) as (session, url), open_tab(browser, url) as tab:
        tab.wait_text("#progress", "0 of 20")
        tab.page.keyboard.type("ze")
        press(tab, "Enter", "1 of 20")
        tab.page.keyboard.type("042")
        press(tab, "Enter", "2 of 20")
        press(tab, "-", "3 of 20")
        assert list(session.labels.values()) == ["zebra", "kind 042", None]
        assert not tab.errors


def test_the_end_of_the_folder_and_of_the_command(browser: Any, folder: Path) -> None:
    for path in sorted(folder.glob("*.png"))[2:]:
        path.unlink()
    with ExitStack() as opened:
        with serve(folder, FEW) as (_, url):
            tab = opened.enter_context(open_tab(browser, url))
            tab.wait_text("#progress", "0 of 20")
            press(tab, "1", "1 of 20")
            press(tab, "2", "2 of 20")
            tab.wait_text("#done", "All 2 images")
        tab.page.keyboard.press("ArrowLeft")
        tab.wait_text("#notice", "it was ended")
