"""The feed of a camera: frames in order, each applied once, also over breaks."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmr
from lmr.core.errors import LmrError
from lmr.service.client import camera, connection, sources
from lmr.service.client.camera import CameraFeed, run_camera
from lmr.service.client.sources import CameraFrame, FolderSource, Report
from lmr.service.settings import CameraOptions
from scripted_service import BREAK_AFTER, BREAK_BEFORE, ScriptedService, run_scripted_service
from video_maker import paint, write_video


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with run_scripted_service() as made:
        yield made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST", 0.001)
    monkeypatch.setattr(sources, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(camera, "LINGER_SECONDS", 0.05)


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "v.avi", paint(50)[::5])  # colours that survive JPEG


def read_numbers(images: list[bytes]) -> list[int]:
    """Which frames of the video these are, from their red."""
    reds = [np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))[..., 0].mean() for image in images]
    return [round(red / 20) for red in reds]


def list_applied(service: ScriptedService) -> list[list[int]]:
    return [read_numbers(images) for images in service.steps.get("cam", [])]


def feed_folder(
    folder: Path, client: lmr.Client, options: CameraOptions, report: Report = print, idle: float = 0.0
) -> CameraFeed:
    return CameraFeed(FolderSource(folder, 1, idle, print), client, "cam", options, report=report)


def test_frames_arrive_in_order_in_batches(service: ScriptedService, video: Path, tmp_path: Path) -> None:
    summary = run_camera(str(video), service.url, "cam", CameraOptions(batch=4, out=str(tmp_path / "out.jsonl")))
    assert list_applied(service) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (summary.frames, summary.requests, summary.refused) == (10, 3, 0)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["frame"], line["seq"]) for line in lines][3:5] == [("3", 1), ("4", 2)]
    assert str(summary).startswith("10 frames in 3 requests; step 3, health ok, last answer: ")


@pytest.mark.parametrize("trouble", [BREAK_BEFORE, BREAK_AFTER, 503, 504])
def test_trouble_on_the_way_changes_nothing(service: ScriptedService, video: Path, trouble: Any) -> None:
    service.script = [trouble, None, trouble, trouble]
    run_camera(str(video), service.url, "cam", CameraOptions(batch=4))
    assert list_applied(service) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_incomplete_batch_of_a_folder_does_not_wait_for_ever(service: ScriptedService, tmp_path: Path) -> None:
    Image.fromarray(paint(1)[0]).save(tmp_path / "0.png")
    with lmr.Client(service.url) as client:
        feed_folder(tmp_path, client, CameraOptions(batch=4), idle=0.5).run(lambda: bool(service.steps))
    assert list_applied(service) == [[0]]


def test_images_that_the_service_will_not_take_are_passed_over(service: ScriptedService, video: Path) -> None:
    messages: list[str] = []
    service.script = [413]
    summary = run_camera(str(video), service.url, "cam", CameraOptions(batch=4), report=messages.append)
    assert list_applied(service) == [[4, 5, 6, 7], [8, 9]]
    assert (summary.frames, summary.refused) == (6, 4)
    assert "(frames 0 to 3)" in messages[0]
    service.script = [401]
    with pytest.raises(lmr.ServiceError, match="refused the token"):
        run_camera(str(video), service.url, "cam")


def test_pace_is_kept_for_files(service: ScriptedService) -> None:
    now, slept = [0.0], list[float]()

    class Source:
        name, live = "made", False

        def read(self, is_stopped: Callable[[], bool]) -> Iterator[CameraFrame]:
            for number in range(4):
                yield CameraFrame(str(number), paint(1)[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    with lmr.Client(service.url) as client:
        CameraFeed(Source(), client, "cam", CameraOptions(fps=2.0), clock=lambda: now[0], sleep=sleep).run()
    assert sum(slept) == pytest.approx(1.5)


def test_an_interrupt_says_how_to_go_on(
    service: ScriptedService, video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = lmr.Client.step

    def interrupt(*given: Any, **named: Any) -> Any:
        if service.steps:
            raise KeyboardInterrupt
        return step(*given, **named)

    monkeypatch.setattr(lmr.Client, "step", interrupt)
    with pytest.raises(KeyboardInterrupt, match="requests"):
        run_camera(str(video), service.url, "cam", CameraOptions(batch=4))


@pytest.mark.parametrize("wrong", [{"every": 0}, {"fps": 0.0}, {"idle": -1.0}, {"batch": 0}])
def test_wrong_values_are_refused(service: ScriptedService, video: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(LmrError, match="Expected"):
        run_camera(str(video), service.url, "cam", CameraOptions(**wrong))


def test_token_files(service: ScriptedService, video: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    run_camera(str(video), service.url, "cam", CameraOptions(every=9, token_file=str(token)))
    assert {one.headers["Authorization"] for one in service.seen} == {"Bearer secret"}
    token.write_text(" \n")
    for path, messages in ((token, "is empty"), (tmp_path / "missing", "Cannot read the token")):
        with pytest.raises(LmrError, match=messages):
            run_camera(str(video), service.url, "cam", CameraOptions(token_file=str(path)))
