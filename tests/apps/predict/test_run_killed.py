"""Nothing that `lmr predict` has finished is lost, whatever ends it: a crash at any call, a signal, a full disk."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.data.names import read_list
from predict_runs import (
    LABELS,
    TEXT,
    USUAL,
    Crash,
    crash_at,
    draw_pictures,
    posix,
    predict_images,
    run_here,
    same_state,
    start,
    wait_for_growth,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, bytes, Path]]:
    """Pictures, and what an uninterrupted run over them leaves: (folder, bytes of the output, a copy of the state)."""
    folder = tmp_path_factory.mktemp("straight")

    def run(out: Path) -> tuple[Path, bytes, Path]:
        """The output must have the same path in both runs, for the state knows it."""
        pictures = draw_pictures(folder / "photos", range(7))
        (pictures / "img3.png").write_text("broken")
        predict_images(pictures, LABELS, batch_size=2, out=out, state=f"{out}.kept")
        kept = folder / f"{out.parent.name}.state"
        shutil.move(f"{out}.kept", kept)
        content = out.read_bytes()
        out.unlink()
        return pictures, content, kept

    return run


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name", "most"),
    [
        (os, "fsync", 15),
        (os, "replace", 5),
        (lmr.Method, "step", 4),
    ],
)
def test_dead_at_any_call_and_resumed_is_as_never_interrupted(
    here: Path, straight: Callable[..., Any], owner: Any, name: str, most: int, when: str
) -> None:
    out = here / ("o.csv" if name == "replace" else "o.jsonl")
    pictures, content, kept = straight(out)
    for number in range(1, most + 1):
        options: dict[str, Any] = {"batch_size": 2, "out": out, "state": f"{out}.kept"}
        with crash_at(owner, name, number, when), pytest.raises(Crash):
            predict_images(pictures, LABELS, **options)
        if out.exists():
            with out.open("ab") as file:
                file.write(b'{"path": "a torn li')
        with crash_at(owner, name, 2, "before"), suppress(Crash):  # and dead again, unless too little was left to do
            predict_images(pictures, LABELS, **options, resume=out.exists())
        summary = predict_images(pictures, LABELS, **options, resume=out.exists())
        assert out.read_bytes() == content, (name, number, when)
        assert same_state(kept, Path(f"{out}.kept")), (name, number, when)
        assert (summary.images, summary.errors) == (7, 1)
        assert sorted(path.name for path in here.iterdir()) == [out.name, f"{out.name}.kept"]
        out.unlink()
        os.unlink(f"{out}.kept")
    with crash_at(owner, name, most + 1, when) as calls:
        predict_images(pictures, LABELS, **options)
    assert calls == [most], "the loop above must reach every call"


def test_without_a_state_of_its_own_the_progress_lies_beside_the_output_and_goes_at_the_end(
    here: Path, straight: Callable[..., Any]
) -> None:
    out = here / "o.jsonl"
    pictures, content, _ = straight(out)
    with crash_at(lmr.Method, "step", 3, "before"), pytest.raises(Crash):
        predict_images(pictures, LABELS, batch_size=2, out=out)
    assert (here / "o.jsonl.state").exists()
    summary = predict_images(pictures, LABELS, batch_size=2, out=out, resume=True)
    assert out.read_bytes() == content
    assert [path.name for path in here.iterdir()] == ["o.jsonl"]
    assert (summary.images, summary.earlier, summary.state, summary.out) == (7, 4, None, out)
    assert "7 images (4 of them finished earlier), 1 with an error" in str(summary)
    assert sum(summary.counts.values()) == 6


def test_overwrite_replaces_only_once_it_can_be_resumed(here: Path, straight: Callable[..., Any]) -> None:
    out = here / "o.jsonl"
    pictures, content, _ = straight(out)
    out.write_bytes(b"precious\n" * 1000)
    with crash_at(lmr.Method, "save", 1, "before"), pytest.raises(Crash):
        predict_images(pictures, LABELS, batch_size=2, out=out, overwrite=True)
    assert out.read_bytes() == b"precious\n" * 1000
    with crash_at(lmr.Method, "save", 1, "after"), pytest.raises(Crash):
        predict_images(pictures, LABELS, batch_size=2, out=out, overwrite=True)
    predict_images(pictures, LABELS, batch_size=2, out=out, resume=True)
    assert out.read_bytes() == content
    out.write_bytes(b"precious\n" * 1000)
    predict_images(pictures, LABELS, batch_size=2, out=out, overwrite=True)
    assert out.read_bytes() == content


@posix
def test_killed_interrupted_and_terminated_processes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "a", range(12))
    out, kept = here / "o.jsonl", here / "camera.state"
    words = ["a", "--labels", TEXT, "--batch-size", "1", "--out", out.name, "--state", kept.name]
    assert run_here(capsys, *words)[0] == 0
    content = out.read_bytes()
    shutil.move(kept, here / "straight.state")
    out.unlink()

    size = 0  # each dies after some lines more, at the latest in the fourth step
    for death in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        process = start("predict", *USUAL, *words, *["--resume"] * out.exists(), hold=4)
        wait_for_growth(process, out, size)
        process.send_signal(death)
        said = process.communicate()[1].decode()
        if death == signal.SIGKILL:
            assert (process.returncode, said) == (-signal.SIGKILL, "")
        else:
            assert process.returncode == 130
            assert said.startswith("lmr: Interrupted. To continue after the ")
            assert said.endswith("finished images, run the same command with --resume.\n")
            assert said.count("\n") == 1
        size = out.stat().st_size
    assert run_here(capsys, *words, "--resume")[0] == 0
    assert out.read_bytes() == content
    assert same_state(kept, here / "straight.state")


@posix
def test_a_full_disk(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import resource

    draw_pictures(here / "a", range(40))
    words = ["a", "--labels", ",".join(read_list("cifar100")), "--top", "100", "--batch-size", "8", "--out", "o.jsonl"]
    assert run_here(capsys, *words)[0] == 0
    content = (here / "o.jsonl").read_bytes()
    (here / "o.jsonl").unlink()

    @contextmanager
    def limited_to(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with limited_to(1000):  # not even the first progress fits
        code, _, said = run_here(capsys, *words)
    assert code == 2
    assert said.startswith("lmr: Cannot write 'o.jsonl.state': File too large.")
    assert [path.name for path in here.iterdir()] == ["a"]

    with limited_to(len(content) * 2 // 3 + 7):  # the output stops in the middle of a line
        code, _, said = run_here(capsys, *words)
    assert code == 2
    assert said == (
        "lmr: Cannot write 'o.jsonl': File too large. To continue after the 24 finished images, run the same command "
        "with --resume.\n"
    )
    assert not (here / "o.jsonl").read_bytes().endswith(b"\n")
    assert run_here(capsys, *words, "--resume")[0] == 0
    assert (here / "o.jsonl").read_bytes() == content
