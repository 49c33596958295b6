"""Packing runs, merging packs, and benches that take finished runs from elsewhere."""

from __future__ import annotations

import io
import lzma
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmr
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running import bench, pack
from lmr.bench.running.bench import run_bench
from lmr.bench.running.pack import pack_runs, read_answers
from lmr.bench.running.row import append_row, read_rows, read_samples, write_samples
from lmr.bench.running.run import run_task
from lmr.cli import main
from lmr.report.runs import read_runs
from pack_maker import write_runs


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def read_lines(pack: Path) -> bytes:
    return lzma.decompress((pack / "rows.jsonl.xz").read_bytes())


def test_rows_are_those_of_the_bench(tmp_path: Path) -> None:
    rows = write_runs(tmp_path / "runs")
    outcome = pack_runs([tmp_path / "runs"], tmp_path / "pack")
    assert read_lines(tmp_path / "pack") == (tmp_path / "runs" / "rows.jsonl").read_bytes()
    assert (outcome.runs, outcome.added, outcome.notes) == (len(rows), len(rows), ())
    again = read_all(tmp_path / "pack")
    assert pack_runs([tmp_path / "runs"], tmp_path / "pack").added == 0
    assert read_all(tmp_path / "pack") == again  # so a repository sees no change


def test_packs_are_merged_and_a_run_in_both_counts_once(tmp_path: Path) -> None:
    write_runs(tmp_path / "a", ("fog",))
    rows = write_runs(tmp_path / "b", ("fog", "contrast"))
    other = read_samples(tmp_path / "b", rows[0].run)
    write_samples(tmp_path / "b", rows[0].run, other | {"predicted": other["predicted"][::-1]})
    for name in "ab":
        pack_runs([tmp_path / name], tmp_path / f"pack {name}")
    both = pack_runs([tmp_path / "pack a", tmp_path / "pack b"], tmp_path / "both")
    assert (both.runs, both.notes) == (12, ())  # the first counts
    kept = read_samples(tmp_path / "a", rows[0].run)["predicted"]
    assert np.array_equal(read_answers(tmp_path / "both", rows[0])["predicted"], kept)
    (note,) = pack_runs([tmp_path / "pack b"], tmp_path / "both").notes
    assert note == f"The run {rows[0].run} has other answers in '{tmp_path / 'pack b'}'; the pack keeps its own."
    assert np.array_equal(read_answers(tmp_path / "both", rows[0])["predicted"], kept)


@pytest.mark.parametrize("moment", ["write_streams", "write_packed", "write_atomically"])
def test_a_kill_leaves_a_sound_pack(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before or after each file of the pack is written; the same command then completes it."""
    first = write_runs(tmp_path / "runs", ("fog",), (1,))
    pack_runs([tmp_path / "runs"], tmp_path / "pack")
    every = first + write_runs(tmp_path / "runs", ("fog", "contrast"), (2, 3))
    write = getattr(pack, moment)
    for after in (False, True):

        def die(*given: Any, after: bool = after) -> None:
            if after:
                write(*given)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(pack, moment, die)
            with pytest.raises(KeyboardInterrupt):
                pack_runs([tmp_path / "runs"], tmp_path / "pack")
        (tmp_path / "pack" / "answers" / ".fog.npz.xz.x.part").write_bytes(b"half")
        rows, words = read_rows(tmp_path / "pack")
        assert not words
        assert rows[:3] == first
        for row in rows:
            expected = read_samples(tmp_path / "runs", row.run)["predicted"]
            assert np.array_equal(read_answers(tmp_path / "pack", row)["predicted"], expected)
    pack_runs([tmp_path / "runs"], tmp_path / "pack")
    assert read_rows(tmp_path / "pack")[0] == every
    assert not list((tmp_path / "pack").rglob("*.part"))


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs")
    with pytest.raises(lmr.LmrError, match="is a folder of runs; give another folder for the pack"):
        pack_runs([tmp_path / "runs"], tmp_path / "runs")
    with pytest.raises(lmr.LmrError, match="There are no runs in"):
        pack_runs([tmp_path / "nothing"], tmp_path / "pack")
    pack_runs([tmp_path / "runs"], tmp_path / "pack")
    (tmp_path / "pack" / "rows.jsonl.xz").write_bytes(lzma.compress(read_lines(tmp_path / "pack") + b'{"run": "half'))
    before = read_all(tmp_path / "pack")
    with pytest.raises(lmr.LmrError, match="damaged"):
        pack_runs([tmp_path / "runs"], tmp_path / "pack")
    assert read_all(tmp_path / "pack") == before
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "rows.jsonl").touch()
    with pytest.raises(lmr.LmrError, match="finished"):
        pack_runs([tmp_path / "empty"], tmp_path / "pack")


def test_a_report_of_a_pack_has_the_tables_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs"), "--pack", str(tmp_path / "pack")]) in (0, None)
    assert "12 runs were added to" in capsys.readouterr().out
    for name in ("runs", "pack"):
        main(["report", str(tmp_path / name), "--out", str(tmp_path / f"report {name}")])
        capsys.readouterr()
    first, second = (read_all(tmp_path / f"report {name}" / "tables") for name in ("runs", "pack"))
    assert first == second
    assert any("97.5" in content.decode() for content in second.values())  # the paired intervals are there
    assert "figures of margins" in (tmp_path / "report pack" / "index.html").read_text()
    assert "figures of margins" not in (tmp_path / "report runs" / "index.html").read_text()
    assert not read_runs([tmp_path / "runs"]).notes


# Taking runs.


def test_a_bench_continues_from_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three runs are finished elsewhere, and the pack has lost the answers of one of them."""
    plan = parse_plan("test", "", Path(), {
        "methods": ["zeroshot", "lmr"], "datasets": "photo-c", "backbones": "photo", "images": 20,
        "corruptions": ["jpeg_compression", "contrast"], "batch_sizes": 16,
    })  # fmt: skip
    tasks = list_tasks([plan])
    for task in tasks[:3]:
        append_row(tmp_path, run_task(task, tmp_path))
    pack_runs([tmp_path], tmp_path / "pack")
    (path,) = (p for p in (tmp_path / "pack" / "answers").iterdir() if tasks[2].domain in p.name)
    path.write_bytes(b"")
    left: list[str] = []

    def run_nothing(tasks: Any, *rest: Any) -> list[Any]:
        left.extend(task.run for task in tasks)
        return []

    monkeypatch.setattr(bench, "_run_all", run_nothing)
    screen = io.StringIO()
    outcome = run_bench(plan, tmp_path / "new", sources=[tmp_path / "pack"], screen=screen, workers=1)
    assert left == [task.run for task in tasks[2:]]
    assert [row.run for row in outcome.rows] == [task.run for task in tasks[:2]]
    assert outcome.skipped == 2
    assert "2 finished runs were taken from" in screen.getvalue()
    assert f"The run {tasks[2].run} is not taken from there" in screen.getvalue()
    shutil.rmtree(tmp_path / "pack")
    left.clear()
    assert run_bench(plan, tmp_path / "new", sources=[tmp_path], screen=screen, workers=1).skipped == 3
    assert left == [tasks[3].run]
