"""The bench as a whole, in processes of its own: killed, interrupted, damaged, and then gone on with."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.bench.plans.plan import Plan, parse_plan
from lmr.bench.running.bench import run_bench
from lmr.bench.running.pack import pack_runs
from lmr.bench.running.row import Row, read_rows, read_samples
from lmr.cli.parser import parse
from lmr.core.files import hold_lock

TABLE = {"methods": ["lmr", "ecalp"], "datasets": "photo-c", "backbones": "photo",
         "corruptions": ["fog", "frost"], "images": 96,
         "batch_sizes": 8}  # fmt: skip
PROGRAM = """
import sys
import time
from pathlib import Path
from lmr.bench.plans.plan import parse_plan
from lmr.bench.running import run
from lmr.bench.running.bench import run_bench

hold, now, find_pace, take_step = Path({hold!r}), {{}}, run.find_pace, run.answers.take_step


def begin(task, method):  # workers import this file too
    now.update(domain=task.domain, steps=0)
    return find_pace(task, method)


def step_unless_held(*given, **more):
    now["steps"] += 1
    while now["steps"] > 4 and hold.exists() and now["domain"] in hold.name.split("."):
        time.sleep(0.01)
    return take_step(*given, **more)


run.find_pace, run.answers.take_step = begin, step_unless_held
if __name__ == "__main__":
    try:
        run_bench(parse_plan("test", "", Path(), {table!r}), {folder!r}, workers=2, save_seconds=0.0)
    except KeyboardInterrupt as stop:
        print(stop)
        sys.exit(130)
"""


def make_plan(**changes: Any) -> Plan:
    return parse_plan("test", "", Path(), TABLE | changes)


def start(folder: Path, *held: str) -> tuple[subprocess.Popen[str], Path]:
    """A bench in another process, and a file: while it exists, runs of the domains ``held`` stop after four batches.

    However slow the machine is, such a run is then neither unbegun nor finished. The program is a file because its
    workers import it again.
    """
    program, hold = folder.parent / f"{folder.name}.py", folder.parent / ".".join(["hold", *held])
    program.write_text(PROGRAM.format(table=TABLE, folder=str(folder), hold=str(hold)))
    hold.touch()
    process = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a process group, as a terminal gives it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore Ctrl-C
    )
    return process, hold


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.005)


def count_states(folder: Path) -> int:
    return len([path for path in (folder / "checkpoints").glob("*.state") if not path.name.startswith(".")])


def count_lines(folder: Path) -> int:
    """Whole lines of the rows."""
    path = folder / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def find_rows(folder: Path) -> dict[str, Row]:
    rows, words = read_rows(folder)
    assert words == []
    return {row.run: row for row in rows}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    outcome = run_bench(make_plan(), folder, workers=2, screen=io.StringIO())
    assert len(outcome.rows) == 4
    return folder


def expect_same(folder: Path, unbroken: Path) -> None:
    found, expected = find_rows(folder), find_rows(unbroken)
    assert {run: row.compare() for run, row in found.items()} == {run: row.compare() for run, row in expected.items()}
    for run in expected:
        theirs = read_samples(unbroken, run)
        for name, values in read_samples(folder, run).items():
            assert values.tobytes() == theirs[name].tobytes(), name
    assert list((folder / "checkpoints").iterdir()) == []


@pytest.mark.slow
def test_killed_bench_resumes_to_the_same_rows(unbroken: Path, tmp_path: Path) -> None:
    """Killed with two runs under way, killed again with two finished, and then left alone."""
    folder = tmp_path / "runs"
    first, _ = start(folder, "fog", "frost")
    wait_for(lambda: count_states(folder) == 2, first)
    first.kill()
    first.communicate()
    assert not (folder / "rows.jsonl").exists()
    second, _ = start(folder, "frost")
    wait_for(lambda: (count_lines(folder), count_states(folder)) == (2, 2), second)
    second.kill()
    second.communicate()
    assert len(find_rows(folder)) == 2
    with open(folder / "rows.jsonl", "ab") as file:
        file.write(b'{"run": "half a l')
    screen = io.StringIO()
    words = run_bench(make_plan(), folder, workers=2, screen=screen).describe()
    assert "The last line of" in screen.getvalue()
    assert "4 runs are finished: 2 now" in words
    assert "2 earlier" in words
    expect_same(folder, unbroken)


@pytest.mark.slow
def test_interrupted_bench_saves_where_it_is(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    process, hold = start(folder, "fog", "frost")
    wait_for(lambda: count_states(folder) == 2, process)
    os.killpg(process.pid, signal.SIGINT)  # to the workers too, as Ctrl-C does
    hold.unlink()  # the workers finish their batch, save and end
    words, _ = process.communicate()
    assert process.returncode == 130, words
    assert "give the same command again to resume" in words
    assert "Traceback" not in words
    assert count_states(folder) >= 1
    run_bench(make_plan(), folder, workers=2, screen=io.StringIO())
    expect_same(folder, unbroken)


def test_finished_runs_are_skipped(unbroken: Path) -> None:
    before = (unbroken / "rows.jsonl").read_bytes()
    outcome = run_bench(make_plan(), unbroken)
    assert (outcome.skipped, len(outcome.rows), outcome.failures) == (4, 4, [])
    assert (unbroken / "rows.jsonl").read_bytes() == before
    assert outcome.describe() == "4 runs are finished, all of them earlier."


def test_samples_that_are_gone_are_made_again(unbroken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And as they were, though one worker alone has something to do."""
    run = next(iter(find_rows(unbroken)))
    path = unbroken / "samples" / f"{run}.npz"
    content = path.read_bytes()
    path.unlink()
    outcome = run_bench(make_plan(), unbroken, workers=2)
    assert outcome.skipped == 3
    assert len(find_rows(unbroken)) == 4
    assert path.read_bytes() == content


def test_failed_run_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BATCLIP takes one prompt per class and fails; zero-shot does not mind."""
    two = [["a photo of a {}.", "a picture of a {}."]]
    outcome = run_bench(make_plan(methods=["batclip", "zeroshot"], corruptions="fog", images=16, prompts=two), tmp_path)
    assert [row.method for row in outcome.rows] == ["zeroshot"]
    (failure,) = outcome.failures
    assert failure.task.method == "batclip"
    assert f"Failed: BATCLIP    photo-c fog 5 batch 8 seed 1 photo: {failure.message}" in outcome.describe()
    details = (tmp_path / "failures" / f"{failure.task.run}.txt").read_text()
    assert details.startswith("lmr bench --methods")
    assert "Traceback" in details
    assert "failed: " in capsys.readouterr().err


def test_every_row_that_finishes_is_handed_out_and_its_taker_may_fail(tmp_path: Path) -> None:
    plan = make_plan(methods=["zeroshot", "tent"], corruptions="fog", images=16)
    seen: list[str] = []

    def fail(row: Row) -> None:
        seen.append(row.run)
        raise ConnectionError("the tracker is away")

    screen = io.StringIO()
    outcome = run_bench(plan, tmp_path, workers=1, screen=screen, on_row=fail)
    assert sorted(seen) == sorted(row.run for row in outcome.rows)
    assert (len(outcome.rows), outcome.failures) == (2, [])
    assert screen.getvalue().count("ConnectionError: the tracker is away") == 2
    run_bench(plan, tmp_path, workers=1, screen=screen, on_row=fail)
    assert len(seen) == 2  # not those of earlier


def test_second_bench_in_a_folder_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmr.bench.running.bench.LOCK_SECONDS", 0.1)
    with (
        hold_lock(tmp_path / ".lock", "unused"),
        pytest.raises(lmr.LmrError, match="Another bench is running"),
    ):
        run_bench(make_plan(), tmp_path)


def run_command(*words: str) -> str | None:
    options = parse(["bench", *words])
    complaint: str | None = options.run(options)
    return complaint


def test_a_dry_run_leaves_out_what_is_finished(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the folder of runs, and in folders or packs that runs are taken from."""
    words = ["--datasets", "photo-c", "--corruptions", "fog", "--images", "8", "--batch-sizes", "8"]
    assert run_command("--methods", "zeroshot", *words, "--out", str(tmp_path / "runs")) is None
    pack_runs([tmp_path / "runs"], tmp_path / "pack")
    for where in (["--out", str(tmp_path / "runs")], ["--out", str(tmp_path), "--from", str(tmp_path / "pack")]):
        capsys.readouterr()
        assert run_command("--methods", "zeroshot", "tent", *words, *where, "--dry-run") is None
        (run, total) = capsys.readouterr().out.splitlines()
        assert "tent" in run
        assert total.startswith("Runs: 1, images: 8.")
        assert total.endswith(" 1 more are finished.")


def test_a_pattern_names_several_plans_once(capsys: pytest.CaptureFixture[str]) -> None:
    def list_runs(*plans: str) -> list[str]:
        assert run_command(*plans, "--dry-run") is None
        return capsys.readouterr().out.splitlines()

    assert list_runs("photo-[q]*", "photo-quick") == list_runs("photo-quick")
    for words, message in (((), "Say what to run"), (("--methods", "lmr"), "--datasets")):
        with pytest.raises(lmr.LmrError, match=message):
            run_command(*words)
