"""What `lmr predict` refuses: one sentence, the code 2, and every file as it was."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import lmr
from lmr.core.state import read_state
from predict_runs import (
    LABELS,
    TEXT,
    USUAL,
    draw_pictures,
    posix,
    predict_images,
    prepare,
    read_lines,
    refuse,
    run_here,
    start,
    wait_for_growth,
)


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with an interrupted run and files that no run can use, and the words that would resume it.

    For tests in which every file must stay as it is.
    """
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "foreign").write_bytes(b"12345678 no state")
    (folder / "latin").write_bytes("grün\nblau\n".encode("latin-1"))
    (folder / "empty").write_bytes(b"\n\n")
    (folder / "bare").mkdir()
    (folder / "folder.jsonl").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, prepare(folder)


@pytest.fixture
def stopped(stopped_run: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(stopped_run[0])
    return stopped_run[1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--labels", ",".join(LABELS[1:])], "other classes or prompts"),
        (
            ["--labels", TEXT.replace("aquarium fish", "aquarium_fish")],
            "The run had --labels with the digest",
        ),
        (["--template", "a picture of a {}."], "other classes or prompts"),
        (
            ["--method", "lmr(lr=2e-3)"],
            "The state 'o.jsonl.state' belongs to the method lmr(",
        ),
        (["--method", "steady"], "or another --out to start anew."),
        (["--model", "photos"], "Did you mean 'photo'?"),
        (["--batch-size", "3"], "The run had --batch-size 2, not 3"),
        (["--top", "4"], "The run had --top 5, not 4"),
        (["--out", "p.jsonl", "--state", "o.jsonl.state"], "holds the progress of the output '"),
        (["--state", "other.state"], "there is no 'other.state': the run has finished, or it had another --state"),
    ],
)
def test_resuming_something_else_is_refused(
    stopped: list[str], capsys: pytest.CaptureFixture[str], change: list[str], sentence: str
) -> None:
    refuse(capsys, Path.cwd(), sentence, *stopped, *change, "--resume")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"img0", b"img9"))


def forget_notes(path: Path) -> None:
    method = lmr.create("lmr", lmr.load().classifier(LABELS), preset="auto")
    method.load(path)
    method.save(path)


def spoil_notes(path: Path) -> None:
    method = lmr.create("lmr", lmr.load().classifier(LABELS), preset="auto")
    notes = method.load(path)
    method.save(path, notes=notes | {"offset": "many"})


@pytest.mark.parametrize(
    ("name", "tamper", "sentence"),
    [
        ("o.jsonl", cut, "has changed since the run ended"),
        ("o.jsonl", Path.unlink, "has changed since the run ended"),
        ("o.jsonl", edit, "has changed since the run ended"),
        ("o.jsonl.state", cut, "is not a complete state file"),
        ("o.jsonl.state", lambda path: path.write_bytes(b""), "is not a complete state file"),
        ("o.jsonl.state", Path.unlink, "'o.jsonl' cannot be resumed, because there is no 'o.jsonl.state'"),
        ("o.jsonl.state", forget_notes, "holds the progress of no output, not of"),
        ("o.jsonl.state", spoil_notes, "does not say how much of the output is finished"),
    ],
)
def test_resuming_what_was_tampered_with_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, tamper: Callable[[Path], None], sentence: str
) -> None:
    words = prepare(here)
    tamper(here / name)
    refuse(capsys, here, sentence, *words, "--resume")
    assert run_here(capsys, *words, "--overwrite")[0] == 0
    assert len(read_lines(here / "o.jsonl")) == 6


def test_a_finished_run_without_a_state_is_not_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = prepare(here)
    assert run_here(capsys, *words, "--resume")[0] == 0
    refuse(capsys, here, "the run has finished, or it had another --state", *words, "--resume")


def test_relative_paths_are_resumed_where_they_begin(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = prepare(here)
    (here / "b").mkdir()
    monkeypatch.chdir("b")
    elsewhere = ["../a", *words[1:-1], "../o.jsonl", "--resume"]
    refuse(capsys, here, f"The run was started in {str(here)!r} and its paths are relative to it", *elsewhere)
    monkeypatch.chdir(here)
    other_spelling = ["./a/../a", *words[1:-1], "./o.jsonl", "--resume"]
    assert run_here(capsys, *other_spelling)[0] == 0
    assert len(read_lines(here / "o.jsonl")) == 6


@pytest.mark.parametrize(
    ("change", "sentence"),
    [  # options are added; a name takes the folder's place
        ([], "'o.jsonl' exists; continue it with --resume, replace it with --overwrite, or give another --out."),
        (["--out", "o.txt"], "Expected an output file that ends in .jsonl or .csv, got 'o.txt'; rename it."),
        (
            ["--out", "nowhere/o.jsonl"],
            "Cannot write 'nowhere/o.jsonl': there is no folder 'nowhere'; create it first.",
        ),
        (
            ["--out", "p.jsonl", "--state", "nowhere/s"],
            "Cannot write 'nowhere/s': there is no folder 'nowhere'; create",
        ),
        (["--out", "p.jsonl", "--state", "./p.jsonl"], "--state and --out are both 'p.jsonl'; give them different"),
        (["--out", "p.jsonl", "--state", "foreign"], "'foreign' is not a complete state file"),
        (["--out", "p.jsonl", "--state", "a"], "'a' is a folder; give --state the name of a file."),
        (["--out", "folder.jsonl"], "'folder.jsonl' is a folder; give --out the name of a file."),
        (["--out", "p.jsonl", "--state", "o.jsonl.state", "--labels", "apple,bird"], "other classes or prompts"),
        (["--out", "p.jsonl", "--state", "o.jsonl.state", "--method", "steady"], "or another --state to start anew."),
        (["--out", "p.jsonl", "--batch-size", "0"], "Expected a batch size of at least 1, got 0."),
        (["--out", "p.jsonl", "--labels", "nams.txt"], "got 'nams.txt', and there is no such file."),
        (["--out", "p.jsonl", "--labels", "aquarium fish,aquarium_fish"], "Name every class once"),
        (["--out", "p.jsonl", "--labels", "apple,blu fish"], "does not know the word 'blu'"),
        (["missing", "--out", "p.jsonl"], "There is no file or folder 'missing'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_touched(
    stopped: list[str], capsys: pytest.CaptureFixture[str], change: list[str], sentence: str
) -> None:
    named = bool(change) and not change[0].startswith("-")
    refuse(capsys, Path.cwd(), sentence, *(change[:1] if named else stopped[:1]), *stopped[1:], *change[named:])


@posix
def test_two_runs_cannot_use_one_state(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first, a process, is held in the middle of its run, so that the others always come at that moment."""
    draw_pictures(here / "a", range(6))
    shared = ["--labels", TEXT, "--batch-size", "1", "--state", "camera.state"]
    first = start("predict", *USUAL, "a", *shared, "--out", "a.jsonl", hold=4)
    wait_for_growth(first, here / "a.jsonl", 0)
    first.send_signal(signal.SIGSTOP)
    try:
        for output in (["--out", "b.jsonl"], []):
            sentence = "lmr: Another run is using the state 'camera.state'; wait for it, or give another"
            refuse(capsys, here, sentence, "a", *shared, *output)
    finally:
        first.send_signal(signal.SIGCONT)
        said = first.communicate()[1]
    assert said.startswith(b"lmr: 6 images labelled")
    predict_images("a", LABELS, batch_size=1, state="camera.state", out="b.jsonl")
    assert sorted(path.name for path in here.iterdir()) == ["a", "a.jsonl", "b.jsonl", "camera.state"]
    assert read_state(here / "camera.state")[0]["predicted"].sum() == 12  # of both runs


def test_a_run_in_which_every_image_fails_is_exit_code_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "good", range(1))
    (here / "bad").mkdir()
    for number in range(3):
        (here / "bad" / f"{number}.png").write_text("x")
    code, _, said = run_here(capsys, "bad", "--labels", TEXT, "--out", "o.jsonl")
    assert code == 1
    summary, complaint = said.splitlines()
    assert summary.startswith("lmr: 0 of 3 images labelled")
    first = read_lines(here / "o.jsonl")[0]["error"]
    assert complaint == (
        f"lmr: None of the 3 images could be labelled. The first error: {first} Then label them again with "
        "--overwrite; 'o.jsonl' holds the errors."
    )
    assert run_here(capsys, "bad", "good", "--labels", TEXT, "--out", "o.jsonl", "--overwrite")[0] == 0
