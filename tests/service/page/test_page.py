"""The live page in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import lmr
from live_server import run_live_server
from lmr.service.app import events
from lmr.service.app.app import make_app
from lmr.service.app.server import Server, bind
from lmr.service.app.service import LiveService
from lmr.service.engine.engine import Engine
from lmr.service.engine.status import Overview, ServiceEvent, StreamDetail
from lmr.service.page import ASSETS_FOLDER, PAGE_FOLDER
from lmr.service.settings import ServiceSettings
from page_reader import Tab, open_tab
from pocket import load_pocket
from scripted_engine import make_status
from service_maker import NAMES, TIMEOUT, ScriptedService, make_file, serve_scripted

TOKEN = "a-token-of-many-letters"
EVIL = "<img src=x onerror=\"document.title='broken'\">"
HISTORY = [{"seq": k, "entropy": 0.5 + k / 50, "frozen_entropy": 1.0, "drift": k / 1000} for k in range(30)]


def fill(service: ScriptedService, count: int) -> None:
    """Make streams; every tenth is suspected."""
    engine = service.engine
    engine.statuses.clear()
    for number in range(count):
        name = f"cam-{number:05d}"
        engine.statuses[name] = make_status(name, health="ok" if number % 10 else "suspected", change=number + 1)
    suspected = (count + 9) // 10
    engine.overview = Overview(
        "ready", streams=count, resident=count, by_health={"ok": count - suspected, "suspected": suspected},
        change=count, queue_images=7, durable=True, store_bytes=48_000_000,
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


def wait_cards(tab: Tab, streams: list[str]) -> None:
    """Wait until the wall shows just these cameras in this order."""
    tab.wait_texts("#cards h3", streams)


def show_cameras(service: ScriptedService) -> None:
    """Make four cameras: one that failed, one where adapting hurts, one where it helps, one without labels."""
    known: dict[str, Any] = {"compared_labelled": 200, "labelled": 200, "changed": 0.2}
    found = [
        make_status("door", label="red ring", probability=0.8, frozen_label="red ring", changed=0.3),
        make_status("gate", accuracy=0.4, compared_accuracy=0.4, frozen_accuracy=0.6, label="blue star", **known),
        make_status("roof", probability=0.41, frozen_label="green heart", health="alarm", adapts=False),
        make_status(
            "yard", accuracy=0.8, compared_accuracy=0.8, frozen_accuracy=0.6, label="red ring", probability=0.93,
            frozen_label="blue star", adapting="adapting", **known,
        ),
    ]  # fmt: skip
    service.engine.statuses = {one.stream: replace(one, change=place + 1) for place, one in enumerate(found)}
    service.engine.overview = replace(service.engine.overview, streams=4, resident=4, change=4)


def test_wall_answers_four_questions(browser: Any) -> None:
    """What do the cameras see, is each right, does adapting help, what should I do?"""
    with serve_scripted() as made:
        fill(made, 1)
        show_cameras(made)
        with open_tab(browser, made.server.url) as tab:
            tab.wait_text("#summary", "Look at roof")
            tiles = tab.page.locator("#summary .tile").all_inner_texts()
            for tile, texts in zip(
                tiles,
                [
                    ["What do the cameras see?", "red ring (2)", "blue star", "4 cameras"],
                    ["Is each right?", "60 % right", "lowest: gate, 40 %", "1 of 4 healthy"],
                    ["Does adapting help?", "helps 1, hurts 1", "23 % of the answers are changed"],
                    ["What should I do?", "2 cameras need you. Alarm. Decide: reset or pause it."],
                ],
                strict=True,
            ):
                assert all(text in tile for text in texts), tile
            wait_cards(tab, ["roof", "gate", "yard", "door"])  # the worst first
            cards = [" ".join(text.split()) for text in tab.page.locator("#cards .card").all_inner_texts()]
            for card, texts in zip(
                cards,
                [
                    ["none of the classes", "Frozen model: green heart", "Alarm", "To do: Decide"],
                    ["blue star", "Adapting hurts: −20.0 points. 40 % right, frozen 60 %", "Pause or reset it"],
                    ["red ring 93 %", "Frozen model: blue star", "Changed: adapting", "Adapting helps: +20.0 points."],
                    [
                        "red ring 80 %",
                        "Frozen model: the same",
                        "Changes 30 % of the answers.",
                        "Label 10 frames of door: nobody knows whether adapting helps.",
                    ],
                ],
                strict=True,
            ):
                assert all(text in card for text in texts), card
            tab.wait_text("#frames-off:visible", "--show-frames")
            tab.page.get_by_role("button", name="Adapting hurts 1").click()
            wait_cards(tab, ["gate"])
            tab.page.get_by_role("button", name="All 4").click()
            wait_cards(tab, ["roof", "gate", "yard", "door"])
            tab.page.locator("#search").fill("none of the classes")
            wait_cards(tab, ["roof"])
            tab.page.locator("#search").fill("nothing like that")
            tab.wait_text("#wall-empty", "No camera is like that.")
            assert (tab.foreign, tab.errors) == ([], [])


def test_wall_says_what_is_wrong_with_a_camera_first(browser: Any) -> None:
    """A broken picture comes before all that the model says, and nothing is healthy beside it."""
    fell: dict[str, Any] = {"accuracy": 0.27, "best_accuracy": 0.91, "labelled": 300}
    with serve_scripted() as made:
        fill(made, 1)
        found = [
            make_status("a-fine", adapting="quiet"),
            make_status("b-black", camera="black", camera_since=time.time(), adapting="quiet", label="blue star"),
            make_status("c-moved", camera="moved", camera_since=time.time(), health="paused", adapts=False),
            make_status("d-fell", adapting="quiet", **fell),
        ]
        made.engine.statuses = {one.stream: replace(one, change=place + 1) for place, one in enumerate(found)}
        made.engine.overview = replace(made.engine.overview, streams=4, resident=4, change=4)
        with open_tab(browser, made.server.url) as tab:
            tab.wait_text("#summary", "Look at b-black")
            tab.wait_text("#summary", "3 cameras need you. The picture is black.")
            wait_cards(tab, ["b-black", "c-moved", "d-fell", "a-fine"])
            cards = tab.page.locator("#cards .card").all_inner_texts()
            assert ["Healthy" in card for card in cards] == [False, False, False, True]
            words = ["Not trusted: nothing is learnt", "something stands before it", "27 %, at best 91 %", "Healthy"]
            assert all(word in card for word, card in zip(words, cards, strict=True)), cards
            colours = [
                card.evaluate("one => one.style.getPropertyValue('--dot')") for card in tab.page.locator(".card").all()
            ]
            assert colours == ["var(--bad)", "var(--suspected)", "var(--bad)", "var(--ok)"]
            assert tab.errors == []


def test_keyboard_reaches_explanations_cameras_and_tabs(browser: Any, service: ScriptedService) -> None:
    with open_tab(browser, service.server.url) as tab:
        tab.wait_text("#cards .card", "cam-00000")
        mark = tab.page.get_by_role("button", name='What is "Does adapting help?"?')
        mark.press("Enter")
        tab.wait_text("#help:visible", "a gain counts when it is beyond two standard errors.")
        assert mark.get_attribute("aria-expanded") == "true"
        tab.page.keyboard.press("Escape")
        assert tab.page.locator("#help").is_hidden()
        tab.page.get_by_role("link", name="cam-00000").press("Enter")
        tab.wait_text("#detail-title:focus", "cam-00000")
        tab.page.get_by_role("tab", name="Cameras").press("ArrowLeft")
        tab.wait_text("#model", "pocket, 3 classes")
        assert tab.page.url.endswith("#/operation")
        assert tab.errors == []


def test_stream_is_opened_and_acted_on(browser: Any, service: ScriptedService) -> None:
    status = service.engine.statuses["cam-00000"]
    service.engine.details["cam-00000"] = StreamDetail(
        replace(status, accuracy=0.81, compared_accuracy=0.8, frozen_accuracy=0.55, labelled=12),
        {"compared": 40}, HISTORY,
        [("red ring", 0.7), (EVIL, 0.3)], [64, 128], [{"seq": 1, "label": "red ring", "probability": 0.9}],
        [ServiceEvent(1, time.time(), "cam-00000", "health", "ok", "suspected", f"Suspected. {EVIL}")],
    )  # fmt: skip
    with open_tab(browser, service.server.url, "/#cam-00000") as tab:
        tab.wait_text("#detail-title", "cam-00000")
        tab.wait_text("#facts", "80.0 %")
        tab.wait_text("#snapshots", "Taken at step 64, 128.")
        tab.wait_text(".chart", "adapted 1.08")
        assert tab.page.locator(".chart:visible canvas").count() == 2  # those with values
        assert tab.page.locator("#history .message").inner_text().startswith(f"Suspected. {EVIL}")
        tab.page.get_by_role("button", name="Roll back").click()
        tab.wait_text("#toast", "cam-00000 was rolled back.")
        assert service.engine.acts == [("cam-00000", "rollback")]
        assert tab.page.title() == "lmr serve"
        assert tab.page.locator("img").count() == 0
        assert tab.errors == []
        tab.page.goto(f"{service.server.url}/#unknown")
        tab.wait_text("#detail-empty", "There is no stream 'unknown'.")


GIVE = """([kind, letters]) => {
    const data = new DataTransfer();
    const bytes = Uint8Array.from(atob(letters), (one) => one.charCodeAt(0));
    data.items.add(new File([bytes], "a.png", { type: "image/png" }));
    const event = kind === "drop" ? new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true })
        : new ClipboardEvent(kind, { clipboardData: data, bubbles: true });
    document.querySelector("#drop").dispatchEvent(event);
}"""


def test_images_are_tried_from_the_browser(browser: Any) -> None:
    """An image is chosen, dropped and pasted; it is made worse before it is sent; both models answer."""
    with serve_scripted() as made, open_tab(browser, made.server.url, "/#/try") as tab:
        requests = made.engine.requests

        def wait_sent(count: int) -> None:
            while len(requests) < count:
                tab.page.wait_for_timeout(20)

        tab.wait_text("#state", "ready")
        content = make_file("PNG")
        tab.page.locator("#files").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": content})
        tab.wait_text("#try-verdict", "The adapted model says red ring, the frozen model blue star.")
        tab.wait_text("#try-adapted", "90.0 %")
        tab.wait_text("#try-frozen", "60.0 %")
        for count, kind in enumerate(["drop", "paste"], start=2):
            tab.page.evaluate(GIVE, [kind, base64.b64encode(content).decode()])
            wait_sent(count)
        for count, name in enumerate(["noise", "blur", "fog", "dark"], start=4):
            tab.page.locator("#corruption").select_option(name)
            tab.page.locator("#strength").fill("8")
            wait_sent(count)
            tab.wait_text("#try-log", f"{name} 8")
        tab.page.locator("#try-adapt").uncheck()
        while sum(one.mode == "answer" for one in requests) < 1:  # those before the box was unchecked may come first
            tab.page.locator("#strength").fill("7")
            tab.page.locator("#strength").fill("8")
            tab.page.wait_for_timeout(100)
        modes = [one.mode for one in requests]
        before = modes.index("answer")
        assert set(modes[before:]) == {"answer"}
        assert all(one.compare and one.stream == "try-it" for one in requests)
        clear, dark = requests[0].images.mean(), requests[before - 1].images.mean()
        assert dark < clear - 0.3, "the strength darkens what is sent"
        wrong = {"name": "b.png", "mimeType": "image/png", "buffer": b"no image"}
        tab.page.locator("#files").set_input_files(wrong)
        tab.wait_text("#toast", "b.png is not an image that the browser can read.")
        assert (tab.foreign, tab.errors) == ([], [])


def test_wall_shows_frames_where_the_service_does(browser: Any) -> None:
    with serve_scripted(ServiceSettings(show_frames=True)) as made:
        fill(made, 1)
        made.post("cam-00000", params={"compare": "true"})
        with open_tab(browser, made.server.url) as tab:
            tab.page.get_by_role("img", name="Last frame of cam-00000: red ring").wait_for()
            tab.wait_text(".card", "red ring 90 %")
            tab.wait_text(".card", "Frozen model: blue star")
            assert tab.page.locator("#frames-off").is_hidden()
            tab.page.get_by_role("link", name="cam-00000").click()
            tab.page.get_by_role("button", name="Try this frame: red ring").click()
            tab.wait_text("#try-verdict", "The adapted model says red ring")
            assert made.engine.requests[-1].mode == "answer", "a camera's own state is left alone"
            assert tab.errors == []


def test_page_fits_on_a_phone(browser: Any, service: ScriptedService) -> None:
    views = {"#": ".card", "#cam-00000": "#facts", "#/try": "#drop", "#/operation": "#log", "docs": ".route"}
    with open_tab(browser, service.server.url, viewport={"width": 360, "height": 740}) as tab:
        for path, part in views.items():
            tab.page.goto(f"{service.server.url}/{path}")
            tab.page.locator(part).first.wait_for()
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360, path


def test_token_is_asked_for_and_kept_in_the_tab(browser: Any) -> None:
    with serve_scripted(token=TOKEN) as made, open_tab(browser, made.server.url) as tab:
        tab.page.locator("#token").fill("wrong-token-of-letters")
        tab.page.get_by_role("button", name="Connect").click()
        tab.wait_text("#token-wrong:visible", "does not accept")
        tab.page.locator("#token").fill(TOKEN)
        tab.page.get_by_role("button", name="Connect").click()
        tab.wait_text("#state", "ready")
        tab.page.reload()
        tab.wait_text("#state", "ready")
        assert not tab.page.locator("#token-dialog").is_visible()
        assert TOKEN not in tab.page.content()
        assert tab.foreign == []


def make_engine() -> Engine:
    """TENT with a rate at which it collapses, and a watch that is quick to see it."""
    method = lmr.create("tent(lr=0.05)", load_pocket().classifier(NAMES), streams=4)
    rules = lmr.Thresholds(memory=16, least=8, confirm=8, quiet=8, rest=4)
    watched = lmr.Watched(method, lmr.WatchSettings(every=1, thresholds=rules))
    engine = Engine(watched, NAMES, ServiceSettings(resident=4))
    engine.start()
    return engine


def send_noise(client: httpx.Client, random: np.random.Generator) -> str:
    """Eight images of random blocks, as a form; the health of the stream after them."""
    parts = []
    for _ in range(8):  # noise in single pixels would be no picture, from which nothing is learnt
        image = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((32, 32), 0)
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
    tab.page.locator("#detail-health", has_text=re.compile("(Rolled back|Reset) by the watch")).wait_for()
    tab.page.locator("#history .change", has_text=re.compile("→ (rolled back|reset)")).first.wait_for()


def test_collapse_is_watched_and_the_page_comes_back_after_a_restart(browser: Any) -> None:
    preprocess = load_pocket().preprocess
    with ExitStack() as held:
        first, second = make_engine(), make_engine()
        held.callback(first.close)
        held.callback(second.close)
        with Server(make_app(LiveService(first, preprocess, "pocket"))) as server:
            url, port = server.url, int(server.url.rpartition(":")[2])
            with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
                send_noise(client, np.random.default_rng(1))
                tab = held.enter_context(open_tab(browser, url, "/#street"))
                show_collapse(tab, client)
                tab.page.get_by_role("button", name="Reset").click()
                tab.wait_text("#toast", "street was reset.")
            assert tab.errors == []
        tab.wait_text("#state", "not connected")
        tab.wait_text("#notice", "Trying again.")
        with Server(make_app(LiveService(second, preprocess, "pocket")), bind("127.0.0.1", port)) as server:
            with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
                send_noise(client, np.random.default_rng(1))
            tab.wait_text("#state", "ready")
            tab.wait_text("#facts", "8")  # images of the new run
            assert tab.page.locator("#notice").is_hidden()
            assert tab.foreign == []


OWN_FILES = [path for path in [*PAGE_FOLDER.glob("*.html"), *ASSETS_FOLDER.iterdir()] if path.is_file()]


def test_samples_are_sent_counted_and_forgotten(browser: Any) -> None:
    preprocess = load_pocket().preprocess
    with ExitStack() as held:
        engine = make_engine()
        held.callback(engine.close)
        app = make_app(LiveService(engine, preprocess, "pocket"))
        server = held.enter_context(Server(app))
        tab = held.enter_context(open_tab(browser, server.url, "/#/try"))
        tab.wait_text("#state", "ready")
        tab.page.get_by_role("button", name="Send 640 samples").click()
        tab.page.locator("#sample-progress", has_text=re.compile("[1-9][0-9] of 96 ordinary images")).wait_for()
        tab.page.get_by_role("button", name="Stop").click()
        tab.wait_text("#sample-progress", "Stopped.")
        tab.wait_text("#sample-result", "Ordinary")
        tab.wait_text("#sample-result", "other classes than these photographs")
        assert engine.find("try-it").status.images >= 16
        tab.page.locator(".card[data-stream=try-it]").first.wait_for(state="attached")
        tab.page.get_by_role("button", name="Reset try-it").click()
        tab.wait_text("#sample-progress", "try-it was reset")
        assert [one.stream for one in engine.list_streams()] == []
        assert tab.errors == []


@pytest.mark.parametrize("path", sorted(OWN_FILES), ids=lambda path: path.name)
def test_files_name_no_other_host_and_build_no_html(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'`<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]*src=)|<style| style=| on\w+=", text)


def test_wall_names_the_camera_that_needs_labels(browser: Any) -> None:
    """One whose labels are of other images comes first; the estimate takes the place of an unknown accuracy."""
    known: dict[str, Any] = {"estimated_accuracy": 0.71, "estimated_interval": (0.58, 0.82), "taught": 24}
    with serve_scripted() as made:
        fill(made, 1)
        found = [
            make_status("gate", estimated_labels=24, changed=0.3, **known),
            make_status("roof", changed=0.3),
            make_status("yard", outdated=time.time() - 3600, taught=9),
        ]
        made.engine.statuses = {one.stream: replace(one, change=place + 1) for place, one in enumerate(found)}
        made.engine.overview = replace(made.engine.overview, streams=3, resident=3, change=3)
        with open_tab(browser, made.server.url) as tab:
            tab.wait_text("#summary", "Label 10 frames of yard")
            tab.wait_text("#summary", "its images changed 60 min ago")
            tab.wait_text("#summary", "71 % right")
            tab.wait_text(".card[data-stream=gate] .estimated", "estimated 71 % right (58 to 82), 24 labels")
            tab.wait_text(".card[data-stream=gate] .todo", "Nothing.")
            tab.wait_text(".card[data-stream=roof] .todo", "Label 10 frames of roof: nobody knows")
            assert not tab.page.locator(".card[data-stream=roof] .estimated").is_visible()
            tab.page.get_by_role("link", name="Label 10 frames of yard").click()
            tab.wait_text("#label:visible", "Frames are off, for privacy")
            assert tab.page.url.endswith("#/label/yard")
            assert tab.page.locator("#label-stream").input_value() == "yard"
            assert tab.errors == []


def test_frames_are_labelled_by_keys_and_teach_their_camera(browser: Any) -> None:
    names = ["airplane", "automobile", "bird", "cat"]
    images = np.random.default_rng(0).integers(0, 255, (6, 4, 4, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    with (
        run_live_server(names, settings=ServiceSettings(resident=4, show_frames=True)) as url,
        lmr.Client(url) as client,
    ):
        for stream in ("door", "yard"):
            client.step(stream, list(images))
        with open_tab(
            browser, url, "/#/label/yard", viewport={"width": 390, "height": 844}, color_scheme="dark"
        ) as tab:
            tab.wait_text("#path", "yard, image")
            tab.wait_text("#progress", "yard: 0 of 20 labels")
            first = tab.page.locator("#path").inner_text()
            tab.page.keyboard.press("2")
            tab.wait_text("#progress", "yard: 1 of 20 labels")
            tab.wait_text("#estimate", "1 label")
            tab.page.locator("#classes button").nth(1).click()
            tab.wait_text("#progress", "yard: 2 of 20 labels")
            tab.page.keyboard.press("ArrowRight")  # skips one
            tab.wait_script("document.querySelector('#path').textContent.includes('yard')")
            strange = tab.page.locator("#path").inner_text()
            tab.page.keyboard.press("-")  # another is none of the classes
            tab.wait_script("document.querySelector('#path').textContent.includes('yard')")
            for _ in range(4):
                tab.page.keyboard.press("ArrowLeft")
            tab.wait_text("#path", first)
            tab.page.keyboard.press("-")
            tab.wait_text("#toast", "It keeps its label, automobile")
            tab.page.keyboard.press("ArrowLeft")
            tab.wait_text("#path", first)
            tab.page.keyboard.press("3")
            tab.wait_script("!document.querySelector('#path').textContent.includes('" + first + "')")
            assert client.stream("yard").status.taught == 2  # it was corrected
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            place = re.findall(r"image (\d+) of request 1", first)[0]
            left = {one.image for one in client.label_queue("yard", 32)}
            assert len(left) == 4
            assert int(place) - 1 not in left
            tab.page.select_option("#label-stream", "yard")  # all that have no label come again, but the strange one
            shown = set[str]()
            for _ in range(3):
                seen = json.dumps([*shown, ""])
                tab.wait_script(f"!{seen}.includes(document.querySelector('#path').textContent)")
                shown.add(tab.page.locator("#path").inner_text())
                tab.page.keyboard.press("ArrowRight")
            tab.wait_text("#done", "No frame waits for a label now.")
            assert strange not in shown
            tab.page.select_option("#label-stream", "")  # all: the camera with the fewest labels comes first
            tab.wait_text("#path", "door, image")
            tab.page.keyboard.press("1")
            tab.wait_text("#progress", "door: 1 of 20 labels")
            tab.page.get_by_role("tab", name="Cameras").click()
            tab.wait_text(".card[data-stream=yard] .estimated", "estimated")
            assert (tab.foreign, tab.errors) == ([], [])
