"""The live page in a real browser."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import lmr
from lmr.service.app import events
from lmr.service.app.app import make_app
from lmr.service.app.server import Server
from lmr.service.app.service import LiveService
from lmr.service.engine.engine import Engine
from lmr.service.engine.requests import NotReady, StoreFailed
from lmr.service.engine.status import Overview, ServiceEvent, StreamDetail, StreamStatus
from lmr.service.page import ASSETS_FOLDER, PAGE_FOLDER
from lmr.service.settings import ServiceSettings
from page_reader import Tab, open_tab
from scripted_engine import make_status
from service_maker import NAMES, TIMEOUT, ScriptedService, load_pocket, serve_scripted

TOKEN = "a-token-of-many-letters"
EVIL = "<img src=x onerror=\"document.title='broken'\">"
COUNT_CELLS = """() => {
    const canvas = CanvasRenderingContext2D.prototype, plain = canvas.fillRect;
    window.drawn = 0;
    canvas.fillRect = function (...box) { window.drawn++; plain.apply(this, box); };
}"""
HISTORY = [{"seq": k, "entropy": 0.5 + k / 50, "frozen_entropy": 1.0, "drift": k / 1000} for k in range(30)]


def fill(service: ScriptedService, count: int) -> None:
    """Make streams; every tenth is suspected."""
    engine = service.engine
    engine.statuses.clear()
    for number in range(count):
        name = f"cam-{number:05d}"
        engine.statuses[name] = make_status(name, health="ok" if number % 10 else "watch", change=number + 1)
    suspected = (count + 9) // 10
    engine.overview = Overview(
        "ready", streams=count, resident=count, by_health={"ok": count - suspected, "watch": suspected}, change=count,
        images_per_second=120.0, latency_p50_ms=30.0, latency_p99_ms=80.0, durable=True, store_bytes=48_000_000,
    )  # fmt: skip


@pytest.fixture(scope="module")
def service() -> Iterator[ScriptedService]:
    with serve_scripted() as made:
        fill(made, 8)
        yield made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten frames a second instead of one."""
    monkeypatch.setattr(events, "PAUSE", 0.1)


def test_page_shows_the_service(browser: Any, service: ScriptedService) -> None:
    with open_tab(browser, service.server.url) as tab:
        tab.wait_text("#state", "ready")
        tab.wait_text("#model", "pocket, 3 classes")
        tab.wait_text("#stream-count", "8, 8 in memory")
        tab.wait_text(".tile", "120 images/s")
        tab.wait_text(".tile", "p99 80 ms")
        tab.wait_text(".tile", "48 MB")
        tab.wait_text("#legend button", "watch 1")
        assert tab.page.locator(".tile svg path.line").count() == 6
        assert tab.foreign == []
        assert tab.errors == []


def test_stream_is_opened_and_acted_on(browser: Any, service: ScriptedService) -> None:
    status = service.engine.statuses["cam-00000"]
    service.engine.details["cam-00000"] = StreamDetail(
        replace(status, accuracy=0.81, compared_accuracy=0.8, frozen_accuracy=0.55, labelled=12),
        {"compared": 40, "canaries": 0.97}, HISTORY,
        [("red ring", 0.7), (EVIL, 0.3)], [64, 128], [{"seq": 1, "label": "red ring", "probability": 0.9}],
        [ServiceEvent(1, time.time(), "cam-00000", "health", "ok", "watch", f"Suspected. {EVIL}")],
    )  # fmt: skip
    with open_tab(browser, service.server.url) as tab:
        tab.wait_script("(grid => grid.style.height !== '' && !grid.hidden)(document.querySelector('#grid'))")  # drawn
        tab.page.locator("#grid").click(position={"x": 20, "y": 20})
        tab.wait_text("#detail-title", "cam-00000")
        tab.wait_text("#facts", "81.0 %")
        tab.wait_text("#snapshots", "Taken at step 64, 128.")
        tab.wait_text(".chart", "adapted 1.08")
        assert tab.page.locator(".chart:visible").count() == 2  # those with values
        assert tab.page.locator("#history .message").inner_text().startswith(f"Suspected. {EVIL}")
        tab.page.get_by_role("button", name="Roll back").click()
        tab.wait_text("#toast", "cam-00000 was rolled back.")
        assert service.engine.acts == [("cam-00000", "rollback")]
        assert tab.page.url.endswith("#cam-00000")
        assert tab.page.title() == "lmr serve"
        assert tab.page.locator("img").count() == 0
        assert tab.errors == []


def test_refusal_is_told(browser: Any, service: ScriptedService) -> None:
    with open_tab(browser, service.server.url, "/#unknown") as tab:
        tab.wait_text("#detail-empty", "There is no stream 'unknown'.")


def open_first(tab: Tab, name: str) -> None:
    """Enter opens the first stream that is shown; again if the streams were not read yet."""
    deadline = time.monotonic() + 60
    while name not in (tab.page.locator("#detail-title").text_content() or ""):
        assert time.monotonic() < deadline
        tab.page.locator("#search").press("Enter")
        tab.page.wait_for_timeout(50)


def test_search_and_legend_choose_streams(browser: Any, service: ScriptedService) -> None:
    with open_tab(browser, service.server.url) as tab:
        tab.wait_text("#legend button", "watch 1")
        tab.page.get_by_role("button", name="watch 1").click()
        open_first(tab, "cam-00000")
        tab.page.get_by_role("button", name="watch 1").click()
        tab.page.locator("#search").fill("00007")
        open_first(tab, "cam-00007")
        tab.page.locator("#search").fill("nothing like that")
        tab.wait_text("#grid-empty", "No stream is like that.")


def test_streams_are_read_again_if_that_failed(
    browser: Any, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, failures = service.engine.list_streams, [StoreFailed("The store cannot be read."), NotReady("Try again.")]

    def list_streams(after: str = "", limit: int = 100) -> list[StreamStatus]:
        if failures:
            raise failures.pop()
        return plain(after, limit)

    monkeypatch.setattr(service.engine, "list_streams", list_streams)
    with open_tab(browser, service.server.url) as tab:
        tab.wait_text("#state", "ready")
        open_first(tab, "cam-00000")
    assert not failures


def test_stream_that_begins_while_the_others_are_read_stays(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_scripted() as made:
        fill(made, 8)
        plain, held = made.engine.list_streams, list[Future[list[StreamStatus]]]()

        def list_streams(after: str = "", limit: int = 100) -> list[StreamStatus]:
            held.append(Future())
            return held[-1].result(60)

        monkeypatch.setattr(made.engine, "list_streams", list_streams)
        with open_tab(browser, made.server.url) as tab:
            tab.wait_text("#stream-count", "8, 8 in memory")
            while not held:
                tab.page.wait_for_timeout(20)
            before = plain("", 1000)
            made.engine.statuses["cam-new"] = make_status("cam-new", change=9)
            made.engine.overview = replace(made.engine.overview, streams=9, change=9)
            tab.wait_text("#stream-count", "9, 8 in memory")
            held[0].set_result(before)
            tab.page.locator("#search").fill("00001")
            open_first(tab, "cam-00001")  # the list has been read
            tab.page.locator("#search").fill("new")
            open_first(tab, "cam-new")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(browser: Any, service: ScriptedService, scheme: str) -> None:
    read = "getComputedStyle(document.body).backgroundColor"
    dark = "rgb(17, 20, 23)"
    with open_tab(browser, service.server.url, color_scheme=scheme) as tab:
        assert (tab.page.evaluate(read) == dark) == (scheme == "dark")
        tab.page.get_by_role("button", name="Theme").click()
        assert (tab.page.evaluate(read) == dark) == (scheme == "light")
        tab.page.reload()
        tab.wait_text("#state", "ready")
        assert (tab.page.evaluate(read) == dark) == (scheme == "light")


@pytest.mark.parametrize("path", ["/#cam-00000", "/docs"])
def test_page_fits_on_a_phone(browser: Any, service: ScriptedService, path: str) -> None:
    with open_tab(browser, service.server.url, path, viewport={"width": 360, "height": 740}) as tab:
        tab.page.locator(".panel").first.wait_for()
        tab.page.wait_for_timeout(300)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_docs_describe_the_routes_without_other_hosts(browser: Any, service: ScriptedService) -> None:
    with open_tab(browser, service.server.url, "/docs") as tab:
        tab.wait_text(".route", "/v1/streams/{stream}/images")
        described = service.client.get("/openapi.json").json()["paths"]
        assert tab.page.locator(".route").count() == sum(len(verbs) for verbs in described.values())
        assert tab.foreign == []
        assert tab.errors == []


def test_token_is_asked_for_and_kept_in_the_tab(browser: Any) -> None:
    with serve_scripted(token=TOKEN) as made, open_tab(browser, made.server.url) as tab:
        tab.page.locator("#token").fill("wrong-token-of-letters")
        tab.page.get_by_role("button", name="Connect").click()
        tab.wait_text("#token-wrong:visible", "does not accept")
        tab.page.locator("#token").fill(TOKEN)
        tab.page.get_by_role("button", name="Connect").click()
        tab.wait_text("#state", "ready")
        tab.wait_text("#model", "pocket")
        tab.page.reload()
        tab.wait_text("#state", "ready")
        assert not tab.page.locator("#token-dialog").is_visible()
        assert TOKEN not in tab.page.content()
        assert tab.foreign == []


def test_ten_thousand_streams(browser: Any) -> None:
    """All are drawn, the page follows a thousand changes a second, and the last stream can be opened."""
    with serve_scripted() as made:
        fill(made, 10_000)
        with open_tab(browser, made.server.url) as tab:
            tab.wait_text("#legend button", "watch 1,000")
            tab.page.evaluate(COUNT_CELLS)
            tab.wait_script("window.drawn >= 10000")
            for turn in range(3):
                change = 10_000 + 1000 * (turn + 1)
                for number in range(1000):
                    name = f"cam-{number:05d}"
                    made.engine.statuses[name] = make_status(name, health="alarm", change=change)
                made.engine.overview = replace(made.engine.overview, change=change, by_health={"alarm": 1000 + turn})
                tab.wait_text("#legend button", f"alarm {1000 + turn:,}")
            tab.page.locator("#search").fill("09999")
            tab.page.locator("#search").press("Enter")
            tab.wait_text("#detail-title", "cam-09999")
            assert tab.errors == []


def make_engine() -> Engine:
    """TENT with a rate at which it collapses, and a watch that is quick to see it."""
    method = lmr.create("tent(lr=0.05)", load_pocket().classifier(NAMES), streams=4)
    rules = lmr.Thresholds(memory=16, least=8, confirm=8, quiet=8, rest=4)
    watched = lmr.Watched(method, lmr.WatchSettings(every=1, canaries=0, thresholds=rules))
    engine = Engine(watched, NAMES, ServiceSettings(resident=4))
    engine.start()
    return engine


def send_noise(client: httpx.Client, random: np.random.Generator) -> str:
    """Eight images of noise, as a form; the health of the stream after them."""
    parts = []
    for _ in range(8):
        image = Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        parts.append(("image", ("noise.png", save(image))))
    answer = client.post("/v1/streams/street/images", files=parts)
    assert answer.status_code == 200
    return str(answer.json()["adaptation"]["health"])


def save(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def show_collapse(tab: Tab, client: httpx.Client) -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        if send_noise(client, random) in ("rolled back", "reset"):
            break
    else:
        raise AssertionError("The adaptation did not collapse.")
    tab.page.locator("#detail-health", has_text=re.compile("rolled back|reset")).wait_for()
    tab.page.locator("#events .change", has_text=re.compile("→ (rolled back|reset)")).first.wait_for()
    tab.page.locator("#legend button", has_text=re.compile("(rolled back|reset) 1")).wait_for()


def test_collapse_is_watched_and_the_page_comes_back_after_a_restart(browser: Any) -> None:
    preprocess = load_pocket().preprocess
    with ExitStack() as held:
        first, second = make_engine(), make_engine()
        held.callback(first.close)
        held.callback(second.close)
        with Server(make_app(LiveService(first.settings).install(first, preprocess, "pocket"))) as server:
            url, port = server.url, int(server.url.rpartition(":")[2])
            with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
                send_noise(client, np.random.default_rng(1))
                tab = held.enter_context(open_tab(browser, url, "/#street"))
                show_collapse(tab, client)
                tab.page.get_by_role("button", name="Undo").click()
                tab.wait_text("#toast", "street is as it was before.")
            assert tab.errors == []
        tab.wait_text("#state", "not connected")
        tab.wait_text("#notice", "Trying again.")
        with Server(make_app(LiveService(second.settings).install(second, preprocess, "pocket")), port=port) as server:
            with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
                send_noise(client, np.random.default_rng(1))
            tab.wait_text("#state", "ready")
            tab.wait_text("#facts", "8")  # images of the new run
            assert tab.page.locator("#notice").is_hidden()
            assert tab.foreign == []


@pytest.mark.parametrize(
    "path", sorted([*PAGE_FOLDER.glob("*.html"), *ASSETS_FOLDER.iterdir()]), ids=lambda path: path.name
)
def test_files_name_no_other_host_and_build_no_html(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'`<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]*src=)|<style| style=| on\w+=", text)
