"""Runs over videos and lists: lines with frames and times, resumed byte for byte, with errors as lines."""

from __future__ import annotations

import csv
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmr
from lmr.cli import main
from lmr.images import video
from lmr.images.ahead import THREAD_NAME
from lmr.images.video import read_frames
from predict_runs import LABELS, USUAL, draw_arrays, predict_images
from video_maker import cut_file, paint, write_video

MODEL: dict[str, Any] = {"model": "photo"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A video of 11 frames at 10 per second and two images, in an empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    pixels = draw_arrays(range(13))
    write_video(tmp_path / "v.avi", [np.repeat(np.repeat(one, 2, 0), 2, 1) for one in pixels[:11]])
    (tmp_path / "a").mkdir()
    for number in (11, 12):
        Image.fromarray(pixels[number]).save(tmp_path / "a" / f"{number}.png")
    yield tmp_path
    assert THREAD_NAME not in [thread.name for thread in threading.enumerate()]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def answer_by_hand(every: int, batch_size: int) -> list[dict[str, Any]]:
    """The lines of a/11.png, v.avi and a/12.png, with nothing of the run."""
    backbone = lmr.load()
    method = lmr.create("lmr", backbone.classifier(LABELS), preset="auto")  # as the command does
    images: list[tuple[dict[str, Any], Any]] = [({"path": "a/11.png"}, Image.open("a/11.png").convert("RGB"))]
    for frame in read_frames(Path("v.avi"), every):
        place = {"path": "v.avi", "frame": frame.number, "time": frame.number / 10}
        images.append((place, Image.fromarray(frame.pixels)))  # type: ignore[arg-type]
    images.append(({"path": "a/12.png"}, Image.open("a/12.png").convert("RGB")))
    lines = []
    for first in range(0, len(images), batch_size):
        part = images[first : first + batch_size]
        answer = method.step(torch.stack([backbone.preprocess(image) for _, image in part]))
        for (place, _), row, known in zip(part, answer.probabilities, answer.known.tolist(), strict=True):
            best = {"label": LABELS[int(row.argmax())], "probability": round(row.max().item(), 6)}
            lines.append(place | best | {"known": round(known, 6)})
    return lines


@pytest.mark.parametrize("every", [1, 3])
def test_frames_have_lines_with_number_and_time(here: Path, every: int) -> None:
    words = ["predict", "a/11.png", "v.avi", "a/12.png", *USUAL, "--labels", ",".join(LABELS)]
    words += ["--batch-size", "4", "--every", str(every)]
    assert main([*words, "--out", "o.jsonl"]) == 0
    lines = read_lines(here / "o.jsonl")
    expected = answer_by_hand(every, 4)
    assert [{key: value for key, value in line.items() if key != "top"} for line in lines] == expected
    assert list(lines[1]) == ["path", "frame", "time", "label", "probability", "known", "top"]
    assert main([*words, "--out", "o.csv"]) == 0
    with open("o.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:5] == ["path", "frame", "time", "label", "probability"]
    for row, line in zip(rows, lines, strict=True):
        assert (row["path"], row["label"], float(row["probability"])) == tuple(
            line[key] for key in ("path", "label", "probability")
        )
        assert row["frame"] == str(line.get("frame", ""))
        assert (float(row["time"]) if row["time"] else None) == line.get("time")


class Crash(BaseException):
    """A death that nobody expects."""


def crash_at_step(number: int, sources: Any, **options: Any) -> None:
    """A run that dies in one of its steps."""
    real, calls = lmr.Method.step, [0]

    def die(self: lmr.Method, images: torch.Tensor, streams: Any = None) -> lmr.Prediction:
        calls[0] += 1
        if calls[0] == number:
            raise Crash
        return real(self, images)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmr.Method, "step", die)
        with pytest.raises(Crash):
            predict_images(sources, LABELS, **options)


@pytest.mark.parametrize(("name", "every"), [("o.jsonl", 2), ("o.csv", 1)])
def test_video_that_is_resumed_is_as_never_interrupted(here: Path, name: str, every: int) -> None:
    write_video(here / "short.avi", paint(200, (96, 128)))
    cut_file(here / "short.avi", 0.1)  # a video with an error at its end
    options: dict[str, Any] = MODEL | {"batch_size": 4, "out": name, "every": every}
    sources = ["a/11.png", "v.avi", "short.avi", "a/12.png"]
    whole = predict_images(sources, LABELS, **options)
    assert whole.errors == 1
    expected = (here / name).read_bytes()
    for number in range(1, -(-whole.images // 4) + 1):
        (here / name).unlink()
        crash_at_step(number, sources, **options)
        with open(name, "ab") as file:
            file.write(b"torn")
        summary = predict_images(sources, LABELS, **options, resume=True)
        assert (summary.images, summary.earlier) == (whole.images, 4 * (number - 1))
        assert (here / name).read_bytes() == expected, number


def test_videos_that_cannot_be_read_are_lines_and_the_others_go_on(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "text.mp4").write_text("no video" * 100)
    shutil.copy("v.avi", "cut.avi")
    cut_file(here / "cut.avi", 0.05)
    (here / "list.csv").write_text("path\nmissing.mp4\n")
    sources = ["text.mp4", "cut.avi", "list.csv", "a"]
    words = ["predict", *sources, "--model", "photo", "--labels", ",".join(LABELS), "--out", "o.jsonl"]
    assert main(words) == 0
    lines = read_lines(here / "o.jsonl")
    assert [line["path"] for line in lines] == ["text.mp4", "cut.avi", "missing.mp4", "a/11.png", "a/12.png"]
    assert ["error" in line for line in lines] == [True, True, True, False, False]
    assert "frame" not in lines[0]
    assert "lmr: 2 of 5 images labelled" in capfd.readouterr().err


def test_list_gives_the_lines_of_its_files(here: Path) -> None:
    name = "a/list.csv"
    cells = ["12.png", "nowhere.png", str(here / "a" / "11.png")]
    (here / name).write_text("n,photo\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)))
    summary = predict_images(name, LABELS, **MODEL, column="photo", out="o.jsonl")
    lines = read_lines(here / "o.jsonl")
    assert [line["path"] for line in lines] == ["a/12.png", "a/nowhere.png", str(here / "a" / "11.png")]
    assert lines[1]["error"] == "Cannot read 'a/nowhere.png': there is no such file."
    assert summary.errors == 1
    predict_images(["a/12.png", "a/11.png"], LABELS, **MODEL, out="p.jsonl")
    assert [line.get("top") for line in lines if "top" in line] == [
        line["top"] for line in read_lines(here / "p.jsonl")
    ]
    with pytest.raises(lmr.LmrError, match="Choose one with --column"):
        predict_images(name, LABELS, **MODEL, out="q.jsonl")
    assert not (here / "q.jsonl").exists()


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
@pytest.mark.parametrize("option", ["out", "state"])
def test_sources_are_not_written_over(here: Path, option: str, link: Any) -> None:
    table = "path\na/11.png\na/12.png\n"
    (here / "same.csv").write_text(table)
    if link is not None:
        link("same.csv", "other.csv")
    names = {"out": "o.csv", option: "same.csv" if link is None else "other.csv"}
    for how in ({"overwrite": True}, {"resume": True}):
        with pytest.raises(lmr.LmrError, match=f"is one of the sources; give another --{option}"):
            predict_images(["a", "same.csv"], LABELS, **MODEL, **names, **how)
    assert (here / "same.csv").read_text() == table
    assert not (here / "o.csv").exists()


def test_interruption_does_not_wait_for_frames_that_are_passed_over(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grabbed = [0]

    class LongVideo:
        def get(self, what: int) -> float:
            return 0.0

        def grab(self) -> bool:
            grabbed[0] += 1
            time.sleep(0.001)
            return grabbed[0] < 5000

        def retrieve(self) -> tuple[bool, Any]:
            return True, np.zeros((8, 8, 3), np.uint8)

        def release(self) -> None:
            pass

    monkeypatch.setattr(video, "_open_capture", lambda path: LongVideo())
    crash_at_step(1, ["v.avi"], **MODEL, every=10**6, batch_size=1)
    assert grabbed[0] < 5000
