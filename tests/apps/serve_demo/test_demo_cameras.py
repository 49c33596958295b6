from __future__ import annotations

import time

import pytest

from lmr.apps.serve_demo import demo_cameras
from lmr.apps.serve_demo.demo_cameras import CameraReport, DemoCameras, format_reports
from lmr.apps.serve_demo.simulated_camera import CameraScript
from scripted_service import run_scripted_service


def test_a_table_of_what_came_of_the_cameras() -> None:
    reports = [
        CameraReport("cam-1", 200, 0.7012, 0.55, "ok", []),
        CameraReport("cam-8", 90, None, None, "reset", ["ok → watch", "watch → reset"]),
    ]
    lines = format_reports(reports).splitlines()
    assert lines[0].split() == [
        "camera",
        "requests",
        "adapted",
        "frozen",
        "gain",
        "health",
        "what",
        "the",
        "watch",
        "did",
    ]
    assert lines[2].split() == ["cam-1", "200", "70.1", "55.0", "+15.1", "ok", "–"]
    assert lines[3].endswith("reset   ok → watch, watch → reset")


def test_cameras_send_and_end_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_cameras, "PER_SECOND", 1000.0)
    scripts = [CameraScript("cam-a", "fog", 0), CameraScript("cam-b", "static", 0)]
    with run_scripted_service() as service:
        service.reply = {
            "stream": "cam-a", "seq": 1, "images": 1, "health": "ok", "adapts": True, "resident": True, "waiting": 0,
            "accuracy": None, "compared_accuracy": None, "frozen_accuracy": None,
            "labelled": 0, "updated": 0.0, "change": 0,
        }  # fmt: skip
        cameras = DemoCameras(service.url, scripts=scripts)
        cameras.start()
        deadline = time.monotonic() + 60
        while min(len(service.steps.get(script.name, [])) for script in scripts) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        cameras.stop()
    assert cameras.failures == []
    assert {name: len(steps) >= 3 for name, steps in service.steps.items()} == {"cam-a": True, "cam-b": True}
    told = {one.path.split("/")[3] for one in service.seen if one.path.endswith("/labels")}
    assert told == {"cam-a"}, "nothing is known of what a broken sensor shows"


def test_every_camera_sends_once_however_short_it_is() -> None:
    """Otherwise the service would not know it, and there would be no table."""
    scripts = [CameraScript(f"cam-{number}", "static", 0) for number in range(4)]
    with run_scripted_service() as service:
        cameras = DemoCameras(service.url, scripts=scripts)
        cameras._ended.set()
        cameras.start()
        cameras.stop()
    assert cameras.failures == []
    assert {name: len(steps) for name, steps in service.steps.items()} == {script.name: 1 for script in scripts}


def test_a_refusal_ends_a_camera_and_is_kept() -> None:
    with run_scripted_service() as service:
        service.script = [401]
        cameras = DemoCameras(service.url, scripts=[CameraScript("cam-a", "fog", 0)])
        cameras.start()
        cameras._threads[0].join(60)
        cameras.stop()
    assert "refused the token" in str(cameras.failures[0])
