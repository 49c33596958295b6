"""Runs on another device: the same run, a row that says where it was made, and nothing replaced in silence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lmr
from lmr.bench import inputs
from lmr.bench.machine import describe_device, measure_peak
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.bench import run_bench
from lmr.bench.running.row import append_row, write_samples
from lmr.bench.running.run import Stop, run_task
from lmr.report.runs import read_runs
from row_maker import make_row, make_samples, write_runs
from second_device import DEVICE, move_backbone
from tiny_models import load_tiny

pytestmark = pytest.mark.usefixtures("tiny_models")


def make_task(method: str, device: str = "cpu", **changes: Any) -> Task:
    table = {"methods": method, "datasets": "photo-c", "corruptions": "fog", "images": 40, "batch_sizes": 16}
    (task,) = list_tasks([parse_plan("test", "", Path(), table | {"device": device} | changes)])
    return task


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are loaded on the device of a run."""

    def load(name: str, device: str = "cpu") -> lmr.Backbone:
        backbone = load_tiny(name)
        return backbone if device == "cpu" else move_backbone(backbone)

    for function in (inputs.load_backbone, inputs.describe_backbone, inputs.is_small_model, inputs.load_classifier):
        function.cache_clear()
    monkeypatch.setattr(inputs, "load", load)


@pytest.mark.parametrize(("method", "changes"), [("lmr", {"recovery": True}), ("tda", {"labels": 4}), ("zeroshot", {})])
def test_a_run_on_a_gpu_is_that_of_the_cpu(
    two_devices: None, tmp_path: Path, method: str, changes: dict[str, Any]
) -> None:
    here, there = make_task(method, **changes), make_task(method, str(DEVICE), **changes)
    assert there.run == here.run
    assert f"device={DEVICE}" in there.command
    expected, found = run_task(here, tmp_path / "cpu"), run_task(there, tmp_path / "gpu")
    assert (expected.device, found.device) == ("cpu", DEVICE.type)
    assert found.metrics["accuracy"] == expected.metrics["accuracy"]
    assert found.metrics["nll"] == pytest.approx(expected.metrics["nll"], rel=1e-5)


def test_a_run_is_not_resumed_on_another_device(two_devices: None, tmp_path: Path) -> None:
    def stop(images: int) -> None:
        if images >= 16:
            raise Stop

    with pytest.raises(Stop):
        run_task(make_task("lmr"), tmp_path, report=stop)
    messages: list[str] = []
    run_task(make_task("lmr", str(DEVICE)), tmp_path, log=messages.append)
    (message,) = messages
    assert "made on cpu" in message


def test_finished_runs_of_another_device_are_kept_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task("zeroshot")
    row = dataclasses.replace(make_row("zero-shot", "zeroshot()", "fog", 0.5), run=task.run)
    row = dataclasses.replace(row, versions={"device": "cuda (A GPU)"})
    append_row(tmp_path, row)
    write_samples(tmp_path, task.run, make_samples(row))
    plan = parse_plan("test", "", Path(), {"methods": "zeroshot", "datasets": "photo-c", "corruptions": "fog",
                                           "images": 40, "batch_sizes": 16})  # fmt: skip
    result = run_bench(plan, tmp_path)
    assert result.skipped == 1
    assert "on cuda" in capsys.readouterr().err


def test_reports_do_not_mix_devices_in_silence(tmp_path: Path) -> None:
    rows = [make_row("zero-shot", "zeroshot()", domain, 0.5) for domain in ("fog", "snow")]
    there = [dataclasses.replace(row, versions={"device": "cuda (A GPU)"}) for row in rows]
    first, second = write_runs(tmp_path / "cpu", rows[:1], False), write_runs(tmp_path / "gpu", there, False)
    runs = read_runs([first, second])
    assert [row.device for row in runs.rows] == ["cpu", "cuda"]
    left_out, times = runs.notes
    assert "left out" in left_out
    assert "cuda (A GPU)" in times


def test_the_peak_on_a_gpu_is_that_of_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    gpu = {
        "synchronize": lambda device: done.append("wait"),
        "reset_peak_memory_stats": lambda device: done.append("reset"),
        "memory_allocated": lambda device: 300,
        "max_memory_allocated": lambda device: 1000,
        "get_device_name": lambda device: "A GPU",
    }
    for name, function in gpu.items():
        monkeypatch.setattr(torch.cuda, name, function)
    assert measure_peak(lambda: done.append("work"), torch.device("cuda")) == 700
    assert done == ["wait", "reset", "work"]
    assert describe_device(torch.device("cuda")).startswith("cuda (A GPU, ")
    assert describe_device(torch.device("cpu")) == "cpu"


def test_threads_read_for_a_gpu_and_keep_the_order(two_devices: None, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("zeroshot", images=64, batch_sizes=4)
    stream = task.open_stream(inputs.find_dataset("photo-c"))
    backbone, moved = load_tiny("photo"), SimpleNamespace(type="fake_gpu")
    monkeypatch.setattr(torch.Tensor, "to", lambda images, *given, **more: images)
    with inputs.read_inputs(backbone, stream, 3, moved) as ahead:
        found = [batch.index.tolist() for batch, *_ in ahead]
    assert found == [stream.index[first : first + 4].tolist() for first in range(12, 64, 4)]
