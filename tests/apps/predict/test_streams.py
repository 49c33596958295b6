"""Streams are labelled as if each were alone, and nothing that is finished is lost or done twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary
from lmr.apps.predict.streams import ImageStream, plan_streams, predict_streams, split_streams
from lmr.core.errors import LmrError
from predict_runs import (
    LABELS,
    TEXT,
    Crash,
    crash_at,
    draw_pictures,
    predict_images,
    read_lines,
    refuse,
    same_state,
)


@pytest.fixture
def cams(here: Path) -> Path:
    """Three cameras with 5, 3 and 4 images; one of them is broken."""
    Path("cams").mkdir()
    for name, numbers in (("a", range(5)), ("b", range(10, 13)), ("c", range(20, 24))):
        draw_pictures(Path("cams", name), numbers)
    Path("cams/b/img11.png").write_text("broken")
    return here


def label(out: str, sources: Any = "cams", **options: Any) -> PredictSummary:
    given: dict[str, Any] = {"labels": LABELS, "model": "photo", "method": "lmr", "batch_size": 2}
    given |= {"stream_by": r"cams/(\w)", "out": out}
    return predict_streams(plan_streams(sources, PredictOptions(**given | options)))


def read_outputs(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_streams_are_labelled_as_separate_runs_would(cams: Path) -> None:
    summary = label("all")
    for name in "abc":
        predict_images(f"cams/{name}", LABELS, batch_size=2, out=f"{name}.jsonl")
    assert read_outputs("all") == {f"{name}.jsonl": Path(f"{name}.jsonl").read_bytes() for name in "abc"}
    assert (summary.images, summary.errors, summary.earlier) == (12, 1, 0)
    assert sum(summary.counts.values()) == 11


@pytest.mark.parametrize(("when", "state"), [("before", "kept"), ("after", None)])
@pytest.mark.parametrize(("owner", "name", "numbers"), [(lmr.Method, "step", (1, 4, 7)), (os, "replace", (2, 3, 8))])
def test_dead_at_any_call_and_resumed_is_as_never_interrupted(
    cams: Path, owner: Any, name: str, numbers: tuple[int, ...], state: str | None, when: str
) -> None:
    label("straight", state="straight-states")
    for number in numbers:
        with crash_at(owner, name, number, when), pytest.raises(Crash):
            label("o", state=state)
        summary = label("o", state=state, resume=True)
        assert read_outputs("o") == read_outputs("straight"), number
        assert summary.images == 12
        if state is not None:
            for path in Path("straight-states").iterdir():
                assert same_state(path, Path(state, path.name), notes=False), number
            shutil.rmtree(state)
        shutil.rmtree("o")


def test_finished_streams_are_not_done_again(cams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with crash_at(lmr.Method, "step", 6, "before"), pytest.raises(Crash):  # a has 3 batches, b 2
        label("o")
    steps, real = [], lmr.Method.step
    monkeypatch.setattr(lmr.Method, "step", lambda self, images: steps.append(len(images)) or real(self, images))
    summary = label("o", resume=True)
    assert steps == [2, 2]
    assert (summary.images, summary.earlier) == (12, 8)
    assert label("o", resume=True).earlier == 12  # the progress was removed at the end
    draw_pictures(Path("cams/a"), range(5, 6))
    with pytest.raises(LmrError, match="cannot be resumed"):
        label("o", resume=True)


def test_states_carry_over_to_the_next_run_stream_by_stream(cams: Path) -> None:
    label("monday", state="states")
    assert sorted(path.name for path in Path("states").iterdir()) == ["a.state", "b.state", "c.state"]
    predict_images("cams/c", LABELS, batch_size=2, out="c.jsonl", state="c.state")
    label("tuesday", state="states")
    predict_images("cams/c", LABELS, batch_size=2, out="c2.jsonl", state="c.state")
    assert read_lines(Path("tuesday/c.jsonl")) == read_lines(Path("c2.jsonl"))
    assert same_state(Path("c.state"), Path("states/c.state"), notes=False)


@pytest.mark.parametrize("state", [None, "s"])
def test_overwriting_run_that_is_killed_takes_no_old_output_for_a_new_one(cams: Path, state: str | None) -> None:
    for out, kept in (("o", state), ("straight", state and "t")):
        label(out, state=kept)
    label("straight", state=state and "t", overwrite=True, batch_size=3)
    with crash_at(lmr.Method, "step", 2, "before"), pytest.raises(Crash):
        label("o", overwrite=True, batch_size=3, state=state)
    label("o", resume=True, batch_size=3, state=state)
    assert read_outputs("o") == read_outputs("straight")


def test_stream_names_become_names_of_files(cams: Path) -> None:
    names = {"x/y": "x%2Fy", "ä": "%C3%A4"}
    assert {name: ImageStream(name, ()).file_name for name in names} == names
    assert len(ImageStream("n" * 300, ()).file_name) == 64


def test_what_cannot_run_is_refused(cams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cams", "--labels", TEXT, "--stream-by", "folder"]
    Path("file").write_text("")
    for sentence, *more in (
        ("give the name of a folder",),
        ("--out is a folder", "--out", "file"),
        ("--state is a folder", "--out", "o", "--state", "file"),
        ("--every is for videos", "--out", "o", "--every", "2"),
    ):
        refuse(capsys, cams, sentence, *words, *more)
    refuse(capsys, cams, "--ray is for streams", "cams", "--labels", TEXT, "--ray")


# Which images belong to one stream, and how streams are shared out.


@pytest.fixture
def cameras(here: Path) -> Path:
    """Two folders of images that exist, under a folder."""
    Path("cams").mkdir()
    draw_pictures(Path("cams/b"), range(2))
    draw_pictures(Path("cams/a"), range(3))
    return here


def describe(streams: list[ImageStream]) -> dict[str, list[str]]:
    return {stream.name: list(map(str, stream.images)) for stream in streams}


def test_folder_is_the_one_that_holds_the_image(cameras: Path) -> None:
    assert describe(split_streams(["cams"], "folder")) == {
        "cams/a": ["cams/a/img0.png", "cams/a/img1.png", "cams/a/img2.png"],
        "cams/b": ["cams/b/img0.png", "cams/b/img1.png"],
    }
    assert describe(split_streams(["cams/b/img1.png", "cams/a", "cams/b"], "folder")) == {
        "cams/b": ["cams/b/img1.png", "cams/b/img0.png"],
        "cams/a": ["cams/a/img0.png", "cams/a/img1.png", "cams/a/img2.png"],
    }


def test_expression_gathers_images_from_several_folders(cameras: Path) -> None:
    assert describe(split_streams(["cams"], r"img(\d)")) == {
        "0": ["cams/a/img0.png", "cams/b/img0.png"],
        "1": ["cams/a/img1.png", "cams/b/img1.png"],
        "2": ["cams/a/img2.png"],
    }


@pytest.mark.parametrize(
    ("stream_by", "sentence"),
    [
        ("(", "Expected folder or a regular expression"),
        ("cam", "which has 0 groups"),
        ("(b)/img", "finds no stream in 'cams/a/img0"),
    ],
)
def test_unclear_streams_are_refused(cameras: Path, stream_by: str, sentence: str) -> None:
    with pytest.raises(LmrError, match=sentence):
        split_streams(["cams"], stream_by)
