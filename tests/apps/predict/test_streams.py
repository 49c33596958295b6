"""Streams are labelled as if each were alone, and nothing that is finished is lost or done twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary
from lmr.apps.predict.streams import (
    ImageStream,
    StreamParts,
    plan_streams,
    predict_streams,
    split_streams,
)
from lmr.core import files as files_file
from lmr.core.errors import LmrError
from lmr.core.state import read_state
from predict_runs import (
    DRAWINGS,
    LABELS,
    TEXT,
    Crash,
    crash_at,
    draw_pictures,
    photograph,
    posix,
    predict_images,
    read_lines,
    refuse,
    run_here,
    same_state,
    start,
    wait_for_growth,
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
    given: dict[str, Any] = {"labels": LABELS, "model": "pocket", "method": "lmr", "batch_size": 2}
    given |= {"stream_by": "folder", "out": out}
    return predict_streams(plan_streams(sources, PredictOptions(**given | options)))


def test_streams_are_labelled_as_separate_runs_would(cams: Path) -> None:
    summary = label("all.jsonl")
    for name in "abc":
        predict_images(f"cams/{name}", LABELS, batch_size=2, out=f"{name}.jsonl")
    assert Path("all.jsonl").read_bytes() == b"".join(Path(f"{name}.jsonl").read_bytes() for name in "abc")
    assert (summary.images, summary.errors, summary.earlier) == (12, 1, 0)
    assert sum(summary.counts.values()) == 11
    assert sorted(path.name for path in cams.iterdir()) == ["a.jsonl", "all.jsonl", "b.jsonl", "c.jsonl", "cams"]


def test_csv_has_its_column_names_once(cams: Path) -> None:
    label("all.csv")
    for name in "abc":
        predict_images(f"cams/{name}", LABELS, batch_size=2, out=f"{name}.csv")
    first, *others = (Path(f"{name}.csv").read_bytes() for name in "abc")
    assert Path("all.csv").read_bytes() == first + b"".join(other.partition(b"\n")[2] for other in others)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name", "numbers"), [(lmr.Method, "step", (1, 4, 7)), (files_file, "sync_folder", ())]
)
def test_dead_at_any_call_and_continued_is_as_never_interrupted(
    cams: Path, owner: Any, name: str, numbers: tuple[int, ...], when: str
) -> None:
    """``sync_folder`` ends every change of the work folder: a death at each of them."""
    label("straight.jsonl", state="straight")
    if not numbers:
        with crash_at(owner, name, 10**6, when) as calls:
            label("counted.jsonl", state="counted")
        numbers = tuple(range(1, calls[0] + 1, 5))
    for number in numbers:
        with crash_at(owner, name, number, when), pytest.raises(Crash):
            label("o.jsonl", state="kept")
        summary = label("o.jsonl", state="kept")
        assert Path("o.jsonl").read_bytes() == Path("straight.jsonl").read_bytes(), number
        assert summary.images == 12
        for state in Path("straight").glob("*.state"):
            assert same_state(state, Path("kept", state.name), notes=False), number
        assert not Path("o.jsonl.parts").exists()
        shutil.rmtree("kept")
        os.unlink("o.jsonl")


def test_finished_streams_are_not_done_again(cams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with crash_at(lmr.Method, "step", 6, "before"), pytest.raises(Crash):  # a has 3 batches, b 2
        label("o.jsonl")
    assert sorted(path.name for path in Path("o.jsonl.parts").iterdir()) == [
        "000000.jsonl", "000001.jsonl", "000002.part.jsonl", "000002.state", "run.json",
    ]  # fmt: skip
    steps, real = [], lmr.Method.step
    monkeypatch.setattr(lmr.Method, "step", lambda self, images: steps.append(len(images)) or real(self, images))
    summary = label("o.jsonl")
    assert steps == [2, 2]
    assert (summary.images, summary.earlier) == (12, 8)


def test_states_carry_over_to_the_next_run_stream_by_stream(cams: Path) -> None:
    label("monday.jsonl", state="states", stream_by=r"cams/(\w)")
    assert sorted(path.name for path in Path("states").iterdir()) == ["a.state", "b.state", "c.state"]
    predict_images("cams/c", LABELS, batch_size=2, out="c.jsonl", state="c.state")
    assert same_state(Path("c.state"), Path("states/c.state"), notes=False)
    label("tuesday.jsonl", state="states", stream_by=r"cams/(\w)")
    predict_images("cams/c", LABELS, batch_size=2, out="c2.jsonl", state="c.state")
    assert read_lines(Path("tuesday.jsonl"))[8:] == read_lines(Path("c2.jsonl"))
    assert same_state(Path("c.state"), Path("states/c.state"), notes=False)
    assert read_state(Path("states/a.state"))[1]["note.finished"] == "yes"


def test_stream_names_become_names_of_state_files(cams: Path) -> None:
    names = {"x/y": "x%2Fy.state", "ä": "%C3%A4.state"}
    long = "n" * 300
    Path("list.csv").write_text("path,s\n" + "".join(f"cams/a/img{k}.png,{s}\n" for k, s in enumerate([*names, long])))
    label("o.jsonl", sources="list.csv", stream_by="column:s", state="states")
    found = sorted(path.name for path in Path("states").iterdir())
    assert len(found) == 3
    assert set(names.values()) < set(found)


@posix
def test_killed_command_continues_and_ctrl_c_says_how(cams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cams", "--labels", TEXT, "--batch-size", "1", "--stream-by", "folder"]
    assert run_here(capsys, *words, "--out", "straight.jsonl")[0] == 0
    for out, sent, code in (("killed.jsonl", signal.SIGKILL, -9), ("stopped.jsonl", signal.SIGINT, 130)):
        process = start("predict", *DRAWINGS, *words, "--out", out, hold=4)
        wait_for_growth(process, Path(f"{out}.parts/000000.part.jsonl"), 0)
        process.send_signal(sent)
        said = process.communicate()[1].decode()
        assert process.returncode == code, said
    assert said.splitlines()[-1].startswith("lmr: Interrupted. ")
    assert said.endswith("of 3 streams are finished; to continue, give the same command again.\n")
    for out in ("killed.jsonl", "stopped.jsonl"):
        assert run_here(capsys, *words, "--out", out)[0] == 0
        assert Path(out).read_bytes() == Path("straight.jsonl").read_bytes()


def test_dry_run_shows_streams_and_writes_nothing(cams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = photograph(cams)
    words = ("cams", "--labels", TEXT, "--stream-by", "folder", "--out", "o.jsonl", "--dry-run")
    code, out, err = run_here(capsys, *words)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["       5  cams/a", "       3  cams/b", "       4  cams/c", "Streams: 3, images: 12."]
    assert photograph(cams) == before


def test_names_of_folders_do_nothing_to_the_terminal(cams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cams/a").rename("cams/\x1b[2Ja")
    words = ("cams", "--labels", TEXT, "--stream-by", "folder", "--out", "o.jsonl")
    for more in (("--dry-run",), ()):
        code, out, err = run_here(capsys, *words, *more)
        assert code == 0
        assert "\x1b" not in out + err
        assert r"cams/\x1b[2Ja" in out + err


def test_what_cannot_run_is_refused(cams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cams", "--labels", TEXT, "--stream-by", "folder"]
    Path("done.jsonl").write_text("{}\n")
    Path("file").write_text("")
    for sentence, *more in (
        ("Streams are merged into a file; give --out",),
        ("Expected at least one shard, got 0", "--out", "o.jsonl", "--shards", "0"),
        ("--shards is for a cluster; give --ray with it", "--out", "o.jsonl", "--shards", "2"),
        ("Expected at least one shard, got -1", "--out", "o.jsonl", "--shards", "-1"),
        ("'done.jsonl' exists and there is no unfinished run", "--out", "done.jsonl"),
        ("'done.jsonl' exists and there is no unfinished run", "--out", "done.jsonl", "--resume"),
        ("ends in .jsonl or .csv", "--out", "o.txt"),
        ("--state is a folder with one state per stream", "--out", "o.jsonl", "--state", "file"),
        ("--every is for videos", "--out", "o.jsonl", "--every", "2"),
    ):
        refuse(capsys, cams, sentence, *words, *more)
    for flag in (("--shards", "2"), ("--ray",), ("--dry-run",)):
        refuse(capsys, cams, f"{flag[0]} is for streams; say with --stream-by", "cams", "--labels", TEXT, *flag)


def test_unfinished_run_is_continued_only_by_the_same_command(cams: Path) -> None:
    with crash_at(lmr.Method, "step", 4, "before"), pytest.raises(Crash):
        label("o.jsonl")
    before = photograph(cams)
    for change, sentence in (
        ({"batch_size": 3}, "not finished and had --batch-size 2, not 3; give the same command"),
        ({"method": "tent"}, "had --method lmr, not tent"),
        ({"labels": LABELS[:5]}, "had options with the digest"),
        ({"stream_by": "(.)/img"}, "had a listing with the digest"),
        ({"sources": ["cams/a"]}, "had images 12 in 3 streams, not 5 in 1 streams"),
        ({"state": "states"}, "had --state none"),
    ):
        with pytest.raises(LmrError, match=sentence):
            label("o.jsonl", **change)  # type: ignore[arg-type]
        assert photograph(cams) == before
    Path("o.jsonl.parts/run.json").write_text("{")
    with pytest.raises(LmrError, match=r"run\.json' cannot be read .*; start again with --overwrite"):
        label("o.jsonl")
    assert label("o.jsonl", overwrite=True, batch_size=3).earlier == 0


def test_overwrite_keeps_the_old_output_until_the_new_one_is_complete(cams: Path) -> None:
    Path("o.jsonl").write_text("old\n")
    with crash_at(lmr.Method, "step", 4, "before"), pytest.raises(Crash):
        label("o.jsonl", overwrite=True)
    assert Path("o.jsonl").read_text() == "old\n"
    assert label("o.jsonl", resume=True).images == 12
    assert len(read_lines(Path("o.jsonl"))) == 12


@posix
def test_second_run_on_the_same_output_is_refused(cams: Path) -> None:
    with crash_at(lmr.Method, "step", 1, "before", LmrError), pytest.raises(LmrError) as failed:
        label("o.jsonl")
    assert str(failed.value).endswith("0 of 3 streams are finished; to continue, give the same command again.")
    process = start("predict", *DRAWINGS, "cams", "--labels", TEXT, "--batch-size", "1", "--stream-by", "folder",
                    "--out", "p.jsonl", hold=4)  # fmt: skip
    wait_for_growth(process, Path("p.jsonl.parts/000000.part.jsonl"), 0)
    try:
        with pytest.raises(LmrError, match=r"Another run is writing 'p\.jsonl'; wait for it"):
            label("p.jsonl")
    finally:
        process.communicate()
    assert process.returncode == 0


def test_every_image_broken_is_a_complaint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        Path(name).mkdir()
        Path(name, "x.png").write_text("broken")
    code, _, err = run_here(capsys, "a", "b", "--labels", TEXT, "--stream-by", "folder", "--out", "o.jsonl")
    assert code == 1
    assert "None of the 2 images could be labelled. The first error: Cannot read 'a/x.png'" in err


def test_images_at_an_address_are_streams_too(cams: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'lmr[remote]'")
    system = fsspec.filesystem("memory")
    for path in sorted(Path("cams").rglob("*.png")):
        system.pipe(f"/{path}", path.read_bytes())
    try:
        label("remote.jsonl", sources="memory://cams")
    finally:
        system.rm("/", recursive=True)
    label("local.jsonl")
    remote, local = (read_lines(Path(f"{name}.jsonl")) for name in ("remote", "local"))
    assert [json.dumps(line).replace("memory:///", "") for line in remote] == [json.dumps(line) for line in local]


# Which images belong to one stream, and how streams are shared out.


@pytest.fixture
def cameras(here: Path) -> Path:
    """Two folders of images that exist, under a folder."""
    Path("cams").mkdir()
    draw_pictures(Path("cams/b"), range(2))
    draw_pictures(Path("cams/a"), range(3))
    return here


def describe(streams: list[ImageStream]) -> dict[str, list[str]]:
    assert [stream.number for stream in streams] == list(range(len(streams)))
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


def test_column_of_a_list(cameras: Path) -> None:
    Path("list.csv").write_text("path,camera\ncams/b/img0.png,2\ncams/a/img0.png,1\ncams/b/img0.png,1\nno.png,2\n")
    assert describe(split_streams(["list.csv"], "column:camera")) == {
        "2": ["cams/b/img0.png", "no.png"],
        "1": ["cams/a/img0.png"],
    }


@pytest.mark.parametrize(
    ("stream_by", "sentence"),
    [
        ("(", r"Expected folder, column:NAME or a regular expression for --stream-by, got '\('"),
        ("cam", r"a regular expression with one group .* got 'cam', which has 0 groups"),
        ("(a)(b)", "which has 2 groups"),
        ("(b)/img", r"finds no stream in the path 'cams/a/img0\.png'; change the expression"),
        ("column:x", r"--stream-by column:x is for \.csv and \.parquet lists, and 'cams' is none"),
    ],
)
def test_unclear_streams_are_refused(cameras: Path, stream_by: str, sentence: str) -> None:
    with pytest.raises(LmrError, match=sentence):
        split_streams(["cams"], stream_by)


def test_column_that_is_missing_or_empty_is_refused(here: Path) -> None:
    Path("list.csv").write_text("path,camera\na.png,1\nb.png,\n")
    with pytest.raises(LmrError, match=r"Line 3 of the list 'list\.csv' has no stream"):
        split_streams(["list.csv"], "column:camera")
    with pytest.raises(LmrError, match="has no column 'cam'"):
        split_streams(["list.csv"], "column:cam")


# The work folder, on this machine and at an address: files are replaced whole, and merged whole or not at all.


@pytest.fixture(params=["path", "address"])
def parts(tmp_path: Path, request: pytest.FixtureRequest) -> StreamParts:
    made = StreamParts(tmp_path / "o.jsonl" if request.param == "path" else f"file://{tmp_path}/o.jsonl")
    made.begin({"--top": "5"})
    return made


def test_files_of_the_work_folder_are_replaced_whole(parts: StreamParts, tmp_path: Path) -> None:
    assert parts.exists
    assert parts.read(parts.part(0)) is None
    for content in (b"one\n", b"two\n"):
        parts.write(parts.part(0), content)
        assert parts.read(parts.part(0)) == content
    assert parts.list_finished() == set()
    parts.write(parts.answers(3), b'{"path": "a", "label": "x"}\n')
    assert parts.list_finished() == {3}
    assert [line.label for line in parts.read_lines(3)] == ["x"]
    assert sorted(path.name for path in (tmp_path / "o.jsonl.parts").iterdir()) == [
        "000000.part.jsonl", "000003.jsonl", "run.json",
    ]  # fmt: skip


def test_merge_that_fails_changes_nothing(parts: StreamParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "o.jsonl"
    out.write_text("old\n")
    assert not parts.is_output_empty
    parts.write(parts.answers(0), b"new\n")

    def refuse(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", refuse)
    with pytest.raises(LmrError, match=r"No space left on device\. Nothing is lost: when there is room"):
        parts.merge([0])
    assert out.read_text() == "old\n"
    monkeypatch.undo()
    parts.merge([0])
    assert out.read_text() == "new\n"
    parts.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["o.jsonl"]


def test_work_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LmrError, match=r"Cannot \w+ .*file/o\.jsonl.*: Not a directory\."):
        StreamParts(f"file://{tmp_path}/file/o.jsonl").begin({})


def test_another_run_is_not_continued(parts: StreamParts) -> None:
    parts.check({"--top": "5"})
    with pytest.raises(LmrError, match=r"not finished and had --top 5, not 3; give the same command to continue it"):
        parts.check({"--top": "3"})


def test_summary_counts_the_images_that_were_answered_adapted(cams: Path) -> None:
    quiet = label("quiet.jsonl", method="steady")
    assert quiet.adaptation is not None
    assert quiet.adaptation.startswith("The images did not change: all 11 answers are the frozen model's.")
    assert label("bad.jsonl", method="steady", prior="uniform").adaptation == "Adapted on all 11 images."
    assert label("published.jsonl").adaptation is None
    mixed = replace(quiet, tally=replace(quiet.tally, adapted=4, drifted=2))
    assert mixed.adaptation == "Adapted on 4 of 11 images, after a change of 2 streams."
