"""The feed of a camera: frames in order, each applied once, also over breaks and kills; and its position file."""

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
from lmr.service.client.camera import (
    CameraFeed,
    CameraPosition,
    read_position,
    run_camera,
    write_position,
)
from lmr.service.client.sources import CameraFrame, FolderSource, Report, VideoSource
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
    return write_video(tmp_path / "v.avi", paint(10))


def read_numbers(images: list[bytes]) -> list[int]:
    """Which frames of ``paint`` these are, from their red."""
    reds = [np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))[..., 0].mean() for image in images]
    return [round(red / 4) for red in reds]


def list_applied(service: ScriptedService) -> list[list[int]]:
    return [read_numbers(images) for images in service.steps.get("cam", [])]


def feed_folder(
    folder: Path, client: lmr.Client, options: CameraOptions, report: Report = print, idle: float = 0.0
) -> CameraFeed:
    return CameraFeed(FolderSource(folder, 1, idle, print), client, "cam", options, report=report)


def test_frames_arrive_in_order_in_batches(service: ScriptedService, video: Path, tmp_path: Path) -> None:
    summary = run_camera(
        str(video), service.url, "cam", CameraOptions(batch=4, lossless=True, out=str(tmp_path / "out.jsonl"))
    )
    assert list_applied(service) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (summary.frames, summary.requests, summary.refused) == (10, 3, 0)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["frame"], line["seq"]) for line in lines][3:5] == [("3", 1), ("4", 2)]
    assert str(summary).startswith("10 frames in 3 requests; step 3, health ok, last answer: ")


@pytest.mark.parametrize("trouble", [BREAK_BEFORE, BREAK_AFTER, 503, 504])
def test_trouble_on_the_way_changes_nothing(service: ScriptedService, video: Path, trouble: Any) -> None:
    service.script = [trouble, None, trouble, trouble]
    run_camera(str(video), service.url, "cam", CameraOptions(batch=4, lossless=True))
    assert list_applied(service) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("kind", ["video", "folder"])
@pytest.mark.parametrize("moment", range(1, 10))
def test_a_feeder_that_is_killed_at_any_moment_goes_on(
    service: ScriptedService, video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, kind: str
) -> None:
    """Every write of the position and every request is a moment; the kill comes before or after it."""
    if kind == "folder":
        folder = tmp_path / "images"
        folder.mkdir()
        for number, frame in enumerate(paint(10)):
            Image.fromarray(frame).save(folder / f"{number}.png")
    source: Callable[[], Any] = (
        (lambda: VideoSource(video, 1, print)) if kind == "video" else (lambda: FolderSource(folder, 1, 0.0, print))
    )
    left, sends, writes = moment, lmr.Client.step, camera.write_position

    def count(do: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and moment % 2:
                raise SystemExit("killed before")
            done = do(*given, **named)
            if left == 0:
                raise SystemExit("killed after")
            return done

        return wrapped

    path = tmp_path / "position.json"
    with lmr.Client(service.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(lmr.Client, "step", count(sends))
            patch.setattr(camera, "write_position", count(writes))
            feed = CameraFeed(source(), client, "cam", CameraOptions(batch=4, lossless=True, position=str(path)))
            with pytest.raises(SystemExit):
                feed.run()
        summary = CameraFeed(source(), client, "cam", CameraOptions(batch=4, lossless=True, position=str(path))).run()
    assert list_applied(service) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert summary.repeated <= 1


def test_a_partial_batch_is_sent_again_as_it_was(service: ScriptedService, tmp_path: Path) -> None:
    """After a kill more files are there; the pending request keeps its own."""
    folder, path = tmp_path / "images", tmp_path / "position.json"
    folder.mkdir()
    frames = paint(6)
    for number in range(2):
        Image.fromarray(frames[number]).save(folder / f"{number}.png")
    service.script = [BREAK_AFTER]
    with lmr.Client(service.url, patience=0) as client, pytest.raises(lmr.ServiceError):
        feed_folder(folder, client, CameraOptions(batch=4, position=str(path))).run()
    for number in range(2, 6):
        Image.fromarray(frames[number]).save(folder / f"{number}.png")
    with lmr.Client(service.url) as client:
        summary = CameraFeed(
            FolderSource(folder, 1, 0.0, print), client, "cam", CameraOptions(batch=4, position=str(path))
        ).run()
    assert list_applied(service) == [[0, 1], [2, 3, 4, 5]]
    assert (summary.repeated, summary.frames) == (1, 6)


def test_pending_files_that_are_gone_are_told_and_not_sent_in_parts(service: ScriptedService, tmp_path: Path) -> None:
    folder, path, messages = tmp_path / "images", tmp_path / "position.json", list[str]()
    folder.mkdir()
    for number, frame in enumerate(paint(3)):
        Image.fromarray(frame).save(folder / f"{number}.png")
    service.script = [BREAK_AFTER]
    with lmr.Client(service.url, patience=0) as client, pytest.raises(lmr.ServiceError):
        feed_folder(folder, client, CameraOptions(batch=2, position=str(path))).run()
    (folder / "1.png").unlink()
    with lmr.Client(service.url) as client:
        feed = CameraFeed(
            FolderSource(folder, 1, 0.0, print),
            client,
            "cam",
            CameraOptions(batch=2, position=str(path)),
            report=messages.append,
        )
        feed.run()
    assert list_applied(service) == [[0, 1], [2]]
    assert "are missing now" in messages[0]


def test_an_incomplete_batch_of_a_folder_does_not_wait_for_ever(service: ScriptedService, tmp_path: Path) -> None:
    Image.fromarray(paint(1)[0]).save(tmp_path / "0.png")
    with lmr.Client(service.url) as client:
        feed_folder(tmp_path, client, CameraOptions(batch=4), idle=0.5).run(lambda: bool(service.steps))
    assert list_applied(service) == [[0]]


def test_images_that_the_service_will_not_take_are_passed_over(service: ScriptedService, video: Path) -> None:
    messages: list[str] = []
    service.script = [413]
    summary = run_camera(str(video), service.url, "cam", CameraOptions(batch=4, lossless=True), report=messages.append)
    assert list_applied(service) == [[4, 5, 6, 7], [8, 9]]
    assert (summary.frames, summary.refused) == (6, 4)
    assert "(frames 0 to 3)" in messages[0]
    service.script = [401]
    with pytest.raises(lmr.ServiceError, match="refused the token"):
        run_camera(str(video), service.url, "cam")


def test_pace_is_kept_for_files(service: ScriptedService) -> None:
    now, slept = [0.0], list[float]()

    class Source:
        name, replays = "made", True

        def read(self, after: str | None, is_stopped: Callable[[], bool]) -> Iterator[CameraFrame]:
            for number in range(4):
                yield CameraFrame(str(number), paint(1)[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    with lmr.Client(service.url) as client:
        CameraFeed(Source(), client, "cam", CameraOptions(fps=2.0), clock=lambda: now[0], sleep=sleep).run()
    assert sum(slept) == pytest.approx(1.5)


def test_two_feeders_do_not_share_a_position(service: ScriptedService, video: Path, tmp_path: Path) -> None:
    path = tmp_path / "position.json"

    def start_another(summary: object) -> None:
        with pytest.raises(LmrError, match="position"):
            run_camera(str(video), service.url, "cam", CameraOptions(position=str(path)))

    with lmr.Client(service.url) as client:
        CameraFeed(VideoSource(video, 1, print), client, "cam", CameraOptions(batch=10, position=str(path))).run(
            progress=start_another
        )


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
        run_camera(str(video), service.url, "cam", CameraOptions(batch=4, position=str(tmp_path / "position.json")))


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


def test_positions_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "position.json"
    write_position(path, CameraPosition("video", "cam"))
    with pytest.raises(LmrError, match="is that of 'video' as stream 'cam', not of 'other' as 'cam'"):
        read_position(path, "other", "cam")
    for content in ("", "[]", "{}", '{"pending": 3}', "\x00"):
        path.write_text(content)
        with pytest.raises(LmrError, match="Cannot read the position"):
            read_position(path, "video", "cam")
