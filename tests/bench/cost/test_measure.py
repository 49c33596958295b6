"""``lmr cost``: what the table says is what was measured, and what does not fit gets an error message."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from lmr.bench.cost import measure
from lmr.bench.cost.measure import FILES, CostReport, CostRequest, MeasuredStep, choose_rounds, measure_cost
from lmr.bench.cost.model import ModelSource, find_measured_model
from lmr.bench.machine import call_fresh
from lmr.cli import main
from lmr.core.errors import LmrError

SOURCE = ModelSource(random="small")
SMALL: dict[str, Any] = {"source": SOURCE, "batch_sizes": (4,), "classes": 16, "threads": 1, "memory": False}
NORMS = 2 * 64 * (2 * 3 + 2)


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[CostReport, Path]:
    out = tmp_path_factory.mktemp("cost") / "new"
    methods = ("zeroshot", "lmr", "lmr(emit='before')", "tent", "batclip")
    return measure_cost(CostRequest(**SMALL, methods=methods, rounds=3), out), out


def test_table_has_every_entry_with_its_own_numbers(measured: tuple[CostReport, Path]) -> None:
    rows = {row.name: row for row in measured[0].tables[4]}
    assert list(rows) == ["forward", "zeroshot", "lmr", "lmr(emit='before')", "tent", "batclip"]
    assert all(len(row.seconds) == 3 and min(row.seconds) > 0 and row.images == 4 for row in rows.values())
    assert rows["forward"].trainable == rows["zeroshot"].trainable == 0
    assert rows["lmr"].trainable == rows["tent"].trainable == NORMS
    assert rows["batclip"].trainable == NORMS + 2 * 32 * (2 * 2 + 1)
    assert rows["forward"].counted == rows["zeroshot"].counted == 1
    assert rows["lmr"].counted == pytest.approx(1 + rows["tent"].counted)  # a forward, a backward, a forward
    assert rows["lmr(emit='before')"].counted == pytest.approx(rows["tent"].counted)
    assert rows["batclip"].counted > rows["tent"].counted  # its prompts are counted too


def test_files_hold_what_was_measured(measured: tuple[CostReport, Path]) -> None:
    report, out = measured
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    read = json.loads((out / "cost.json").read_text())
    assert {"model", "digest", "machine", "cores", "threads", "torch", "date", "classes"} <= set(read["protocol"])
    for row, kept in zip(report.tables[4], read["tables"][0]["rows"], strict=True):
        each = [1000 * seconds / row.images for seconds in row.seconds]
        assert kept["seconds"] == list(row.seconds)
        assert kept["median_ms"] == statistics.median(each)
        assert kept["forwards"] == kept["median_ms"] / report.tables[4][0].median_ms
    text = (out / "cost.txt").read_text()
    assert text == report.to_text()
    for row in report.tables[4]:
        line = next(line for line in text.splitlines() if line.startswith(f"{row.name}  "))
        assert f" {row.median_ms:.{1 if row.median_ms >= 10 else 3}f} " in line


@pytest.mark.parametrize("spec", ["lmr", "tent", "mint", "batclip"])
def test_every_image_takes_part_in_the_step(spec: str) -> None:
    step = MeasuredStep(find_measured_model(SOURCE), spec, 8, 16, 1)
    step.reset()
    info = step.method.step(step._batch).info
    assert info["stepped"] is True
    assert info.get("gate_share", 1.0) == 1.0


def test_streams_share_a_batch() -> None:
    model = find_measured_model(SOURCE)
    together, alone = (MeasuredStep(model, "lmr", size, 16, size) for size in (4, 1))
    assert together.trainable == 4 * alone.trainable == 4 * NORMS
    together.reset()
    assert together.answer().shape == (4, 16)
    share = MeasuredStep(model, "lmr(share=0.25)", 4, 16, 4)
    assert share.counted == pytest.approx(together.counted)  # the only image of a stream is always selected


@pytest.mark.parametrize(("batch_size", "images"), [(4, 12), (16, 16)])
def test_a_method_with_a_memory_is_measured_over_a_whole_cycle(batch_size: int, images: int) -> None:
    step = MeasuredStep(find_measured_model(SOURCE), "rotta(memory=8, every=12)", batch_size, 16, 1)
    assert step.images == images


def test_memory_is_that_of_the_step_in_a_fresh_process() -> None:
    peak = call_fresh(measure.measure_memory, "memory", SOURCE, "lmr", 40, 16, 1, 1)
    assert 3_000_000 < peak < 200_000_000  # 40 images x 17 tokens x 3 blocks x (about 10 widths of 64) x 4 bytes


def test_a_step_without_enough_memory_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "call_fresh", lambda *given: None)
    report = measure_cost(CostRequest(**(SMALL | {"memory": True}), methods=("zeroshot",), rounds=1))
    assert report.notes[1] == "zeroshot did not fit into memory at batch size 4."
    assert report.tables[4][1].peak_bytes is None


def test_answers_that_are_not_finite_end_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuredStep, "answer", lambda step: torch.full((4, 16), math.nan))
    with pytest.raises(LmrError, match="NaN"):
        measure_cost(CostRequest(**SMALL, methods=("zeroshot",), rounds=1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": ModelSource(random="ViT-B-17")}, "ViT-B-17"),
        ({"batch_sizes": (4, -1)}, "batch size of at least 1, got -1"),
        ({"batch_sizes": ()}, "at least one batch size"),
        ({"rounds": 0}, "number of rounds of at least 1"),
        ({"threads": 0}, "number of threads"),
        ({"classes": 1}, "at least 12 classes"),
        ({"streams": 0}, "number of streams"),
        ({"minutes": math.nan}, "minutes"),
        ({"methods": ("lmrr",)}, "'lmrr'"),
        ({"methods": ("lmr(speed=9)",)}, "'speed'"),
        ({"methods": ("tent", "tent")}, "once"),
        ({"batch_sizes": (48,)}, "fewer images than the model has features"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_measured(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(LmrError, match=message):
        measure_cost(CostRequest(**(SMALL | {"memory": True, "methods": ("zeroshot",)} | wrong)))


def test_folder_that_cannot_be_written_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "cost.txt").mkdir()
    with pytest.raises(LmrError, match="is a folder, but a file is written there"):
        measure_cost(CostRequest(**SMALL, methods=("zeroshot",)), tmp_path)


def test_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--small", "--no-memory", "--threads=1", "--batch-size", "1", "3", "--methods", "lmr"]
    assert main(["cost", *words, "--minutes=1e-9", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Batch size 1\n" in shown
    assert "Batch size 3\n" in shown
    assert (tmp_path / "cost.txt").read_text() in shown
    rows = json.loads((tmp_path / "cost.json").read_text())["tables"][1]["rows"]
    assert [len(row["seconds"]) for row in rows] == [3, 3]
    assert main(["cost", "--small", "pocket"]) == 2
    assert "--small" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["pocket", "photo"])
def test_embedded_models_can_be_measured(model: str) -> None:
    given = SMALL | {"source": ModelSource(model=model), "classes": 12, "methods": ("lmr", "batclip"), "rounds": 1}
    report = measure_cost(CostRequest(**given))
    assert [row.name for row in report.tables[4]] == ["forward", "lmr", "batclip"]


def test_methods_that_adapt_a_text_tower_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmr.bench.cost.model.MeasuredModel.write_prompts", lambda *given, **more: None)
    report = measure_cost(CostRequest(**SMALL, methods=("lmr", "batclip"), rounds=1))
    assert [row.name for row in report.tables[4]] == ["forward", "lmr"]
    assert "text tower" in report.notes[0]


@pytest.mark.parametrize(("left", "rounds"), [(-100.0, 3), (100.0, 10), (1e9, 30)])
def test_rounds_fill_the_time_that_is_left(left: float, rounds: int) -> None:
    assert choose_rounds(10.0, left) == rounds
