from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from closed_port import hold_closed_port
from lmr.cli import main
from scripted_service import run_scripted_service
from video_maker import paint, write_video


def test_a_video_is_sent_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = write_video(tmp_path / "v.avi", paint(5))
    words = ["camera", str(video), "--stream", "cam", "--batch", "2", "--out", "-"]
    with run_scripted_service() as service:
        assert main([*words, "--to", service.url]) == 0
        said = capsys.readouterr()
        assert [json.loads(line)["frame"] for line in said.out.splitlines()] == ["0", "1", "2", "3", "4"]
        assert "lmr: 5 frames in 3 requests; step 3, health ok" in said.err


def test_a_camera_that_nobody_takes_is_a_complaint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = write_video(tmp_path / "v.avi", paint(2))
    with run_scripted_service() as service:
        service.script = [413, 413]
        assert main(["camera", str(video), "--to", service.url, "--stream", "cam"]) == 1
    assert "No frame was answered." in capsys.readouterr().err


def test_names_of_files_are_shown_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a\nlmr: done.png")
    with run_scripted_service() as service:
        service.script = [413]
        words = ["--to", service.url, "--stream", "cam", "--idle", "0.1"]
        assert main(["camera", str(tmp_path), *words]) == 1
    assert r"a\nlmr: done.png" in capsys.readouterr().err


def test_a_missing_source_and_a_missing_service_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_closed_port() as place:
        words = ["--to", f"http://{place}", "--stream", "cam", "--patience", "0"]
        assert main(["camera", str(tmp_path / "missing"), *words]) == 2
        assert "there is no such file or folder" in capsys.readouterr().err
        video = write_video(tmp_path / "v.avi", paint(2))
        assert main(["camera", str(video), *words]) == 2
        assert "Cannot reach the service" in capsys.readouterr().err
