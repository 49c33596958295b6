"""The demonstration as a user starts it, its cameras, and its page in a browser."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import lmr
from live_server import run_live_server
from lmr.apps import serve_demo as module
from lmr.apps.options import ServerOptions
from lmr.apps.serve_demo import (
    FRAMES,
    RAMP,
    SCRIPTS,
    STATIC,
    CameraScript,
    DemoCameras,
    Result,
    format_results,
    serve_demo,
)
from lmr.core.answer import Answer
from lmr.data.names import read_list
from lmr.service.engine.status import ServiceEvent, StreamDetail
from lmr.service.settings import ServiceSettings
from page_reader import WAIT
from scripted_engine import make_status
from scripted_service import run_scripted_service

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOT = Path(__file__).parents[2] / "docs" / "serve-demo.png"


@contextmanager
def run_demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The address of a demonstration in a thread, and the lines that it reports; it ends with the context."""
    done, lines, ready = threading.Event(), list[str](), threading.Event()
    monkeypatch.setattr(module.DemoCameras, "wait", lambda self, seconds: done.wait(900))

    def report(line: str) -> None:
        lines.append(line)
        if "simulated cameras" in line:
            ready.set()

    where = ServerOptions(port=0, log_level="error")
    thread = threading.Thread(target=serve_demo, args=(100.0, where), kwargs={"report": report})
    thread.start()
    try:
        assert ready.wait(120)
        yield re.findall(r"serving at (http://\S+);", "\n".join(lines))[0], lines
    finally:
        done.set()
        thread.join(120)


def read_table(text: str) -> dict[str, list[str]]:
    """The rows of the summary, by camera."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("cam-")}


def test_it_ends_by_itself_with_a_table() -> None:
    lines: list[str] = []
    serve_demo(0.5, ServerOptions(port=0, log_level="error"), report=lines.append)
    rows = read_table("\n".join(lines))
    assert set(rows) == {script.name for script in SCRIPTS}
    assert any("same answers" in " ".join(row) for row in rows.values()), "all cameras begin with ordinary images"


@pytest.mark.slow
def test_the_page_shows_the_cameras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With LMR_SCREENSHOTS set it waits until adapting helps a camera, and writes the image of the README."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed")
    wanted = bool(os.environ.get("LMR_SCREENSHOTS"))
    problems: list[str] = []
    with run_demo(monkeypatch) as (address, _), playwright.sync_playwright() as browsers, lmr.Client(address) as client:
        while len(list(client.streams())) < len(SCRIPTS):
            time.sleep(0.1)
        browser = browsers.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1250}, color_scheme="light")
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        playwright.expect(page.locator("#stream-count")).to_contain_text(str(len(SCRIPTS)))
        page.locator(".card canvas.frame:visible").nth(len(SCRIPTS) - 1).wait_for()
        if wanted:
            helped = page.get_by_role("button", name=re.compile("Adapting helps [2-9]"))
            helped.wait_for(timeout=800_000)
        playwright.expect(page.locator("#note")).to_contain_text("cam-6-cars gets 10 labels, from its known truth")
        path = SCREENSHOT if wanted else tmp_path / "page.png"
        page.screenshot(path=str(path))
        browser.close()
    assert problems == []
    assert path.stat().st_size > 10_000


def answer(label: str, frozen: str) -> Answer:
    return Answer(label, 0.9, frozen=frozen)


def test_results_say_whether_adapting_helped() -> None:
    helped, hurt, unclear, same, dark = (Result() for _ in range(5))
    helped.add([answer("cat", "dog")] * 30 + [answer("cat", "cat")] * 70, ["cat"] * 100)
    hurt.add([answer("cat", "dog")] * 30 + [answer("cat", "cat")] * 70, ["dog"] * 30 + ["cat"] * 70)
    unclear.add([answer("cat", "dog"), answer("dog", "cat")], ["cat", "cat"])
    same.add([answer("cat", "cat")] * 5, ["cat"] * 5)
    dark.add([answer("cat", "dog")], [None])
    verdicts = [one.verdict for one in (helped, hurt, unclear, same, dark)]
    assert verdicts == ["helped", "hurt", "no clear difference", "same answers", "no labels"]
    assert helped.gain == pytest.approx((30.0, 196 * np.sqrt(0.3 * 0.7 / 100)))


def test_a_table_of_what_came_of_the_cameras() -> None:
    one, other = Result(), Result()
    one.add([answer("cat", "dog")] * 15 + [answer("cat", "cat")] * 85, ["cat"] * 100)
    other.add([answer("cat", "dog")], [None])
    events = [
        ServiceEvent(k, 0.0, "cam-8", "health", *levels, "")
        for k, levels in enumerate([("ok", "suspected"), ("suspected", "reset")])
    ]
    details = [
        StreamDetail(make_status("cam-1"), {}, [], [], [], [], []),
        StreamDetail(make_status("cam-8", health="reset"), {}, [], [], [], [], events),
    ]
    scripts = [CameraScript("cam-1", "fog", "fog", 0), CameraScript("cam-8", "nothing", STATIC, 0)]
    lines = [line.split() for line in format_results(scripts, [one, other], details).splitlines()]
    assert lines[0][-5:] == ["images", "changed", "frozen", "adapted", "gain"]
    assert lines[2] == ["cam-1", "fog", "nothing", "helped", "100", "15.0", "85.0", "100.0", "+15.0", "±", "7.0"]
    moves = ["ok", "→", "suspected,", "suspected", "→", "reset"]
    assert lines[3] == ["cam-8", "nothing", *moves, "no", "labels", "1", "100.0", "–", "–", "–"]


def test_a_camera_with_labels_has_a_row_for_what_they_did() -> None:
    before, after, other = Result(), Result(), Result()
    before.add([answer("dog", "dog")] * 100, ["cat"] * 100)
    after.add([answer("cat", "dog")] * 80 + [answer("dog", "dog")] * 20, ["cat"] * 100)
    other.add([answer("cat", "cat")], ["cat"])
    status = make_status("cam-1", taught=10, estimated_accuracy=0.8, estimated_interval=(0.49, 0.94))
    details = [StreamDetail(one, {}, [], [], [], [], []) for one in (status, make_status("cam-2"))]
    scripts = [CameraScript("cam-1", "fog", "fog", 0, labelled=3), CameraScript("cam-2", "fog", "fog", 0, labelled=3)]
    text = format_results(scripts, [before, other], details, {"cam-1": after, "cam-2": Result()})
    rows = [line.split() for line in text.splitlines() if line.startswith("cam-")]
    assert rows[1] == ["cam-1", "+", "labels", "the", "same,", "after", "10", "labels", "helped", "100", "80.0", "0.0",
                       "80.0", "+80.0", "±", "7.8"]  # fmt: skip
    assert [row[:2] for row in rows if row[0] == "cam-2"] == [["cam-2", "fog"]]
    assert "cam-1 was told the truth of 10 random frames after request 3" in text
    assert "10 labels; estimated 80 % right (49 to 94)" in text
    assert "cam-2 was" not in text


@pytest.mark.slow
def test_one_camera_is_taught_and_the_page_and_the_table_say_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels are those of its own frames, and no other camera learns anything."""
    monkeypatch.setattr(module, "PER_SECOND", 1000.0)
    scripts = [
        CameraScript("cam-a", "mostly cars", "gaussian_noise", -RAMP, dominant="automobile", labelled=5),
        CameraScript("cam-b", "mostly cars", "gaussian_noise", -RAMP, dominant="automobile"),
    ]
    names = list(read_list("cifar10"))
    with run_live_server(names, settings=ServiceSettings(resident=4, show_frames=True)) as url:
        cameras = DemoCameras(url, scripts=scripts)
        cameras.start()
        deadline = time.monotonic() + 120
        while cameras.taught["cam-a"].images < 100 and not cameras.failures and time.monotonic() < deadline:
            time.sleep(0.05)
        cameras.stop()
        assert cameras.failures == []
        text = cameras.report()
        with lmr.Client(url) as client:
            taught, other = client.stream("cam-a"), client.stream("cam-b")
    assert (taught.status.taught, other.status.taught) == (module.LABELS, 0)
    assert [event.message.split(";")[0] for event in taught.events if event.kind == "label"] == [
        "The stream has learnt 1 label",
        "The stream has learnt 10 labels",
    ]
    before, after = (cameras.results["cam-a"], cameras.taught["cam-a"])
    assert before.images == 6 * FRAMES
    assert after.gain[0] > before.gain[0] + 20  # type: ignore[index]
    assert "cam-a + labels" in text
    assert "10 labels; estimated" in text


def test_a_busy_service_does_not_end_a_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is too slow for its first request shows the camera later."""
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with run_scripted_service() as service:
        service.script = [504, 504]
        cameras = DemoCameras(service.url, scripts=[CameraScript("cam-a", "", STATIC, 0)])
        cameras.start()
        deadline = time.monotonic() + 60
        while not service.steps and time.monotonic() < deadline:
            time.sleep(0.01)
        cameras.stop()
    assert cameras.failures == []
    assert service.steps["cam-a"]


def test_a_refusal_ends_a_camera_and_is_kept() -> None:
    with run_scripted_service() as service:
        service.script = [401]
        cameras = DemoCameras(service.url, scripts=[CameraScript("cam-a", "", "fog", 0)])
        cameras.start()
        cameras._threads[0].join(60)
        cameras.stop()
    assert "refused the token" in str(cameras.failures[0])
