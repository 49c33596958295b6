"""The output, the files and the errors of python -m lab.scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.scale.__main__ import main, run_scale
from lab.scale.capacity import work_out
from lab.scale.options import ScaleOptions
from lab.scale.report import describe_bottleneck, measure_loads
from lab.scale.simulation import SimulationPlan
from lmr.core.errors import LmrError

SMALL: dict[str, Any] = {
    "streams": 400, "fps": 1.0, "model": "pocket", "gpu_tflops": 0.5, "classes": 10, "gpus_per_machine": 1,
}  # fmt: skip
OPTIONS = ScaleOptions(**SMALL)
ARGUMENTS = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]


def test_the_command_prints_tables_and_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--simulate", "--seconds", "2", "--simulate-streams", "200"]) == 0
    shown = capsys.readouterr()
    assert "400 streams at 1 images/s, pocket, 10 classes, lmr" in shown.out
    assert "Simulation: 200 streams on 1 replica for 2 s, regular arrivals, seed 1" in shown.out
    assert "break" in shown.out


def test_json_has_every_number() -> None:
    found = json.loads(run_scale(OPTIONS, SimulationPlan(seconds=2.0), simulated=True, as_json=True))
    assert found["options"]["streams"] == 400
    assert found["simulation"]["result"]["sent"] == 800
    assert found["breaks_first"] == found["resources"][0]["name"]
    assert found["written_bytes_per_second"]["answer"] == pytest.approx(400 * found["commit_bytes"])
    assert "simulation" not in json.loads(run_scale(OPTIONS, SimulationPlan(), as_json=True))


def test_latency_rises_with_load() -> None:
    capacity = work_out(OPTIONS)
    found = measure_loads(capacity, SimulationPlan(), (0.2, 0.9), seconds=3.0)
    assert all(values == sorted(values) for values in found.values())
    assert found[0.2][1] < found[0.9][1]


def test_figure_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.scale.__main__.measure_loads", lambda *_: {0.1: [1, 2, 3], 0.9: [4, 6, 9]})
    for name, begin in (("latency.png", b"\x89PNG"), ("new/latency.svg", b"<?xml")):
        assert f"Figure: {tmp_path / name}" in run_scale(OPTIONS, SimulationPlan(), figure=str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(begin)
    with pytest.raises(LmrError, match=r"ends in \.png or \.svg"):
        run_scale(OPTIONS, SimulationPlan(), figure="latency.pdf")


def test_a_replica_with_too_many_streams_is_named() -> None:
    values = SMALL | {"streams": 100_000, "load": 1.0, "virtual_nodes": 2}
    assert "lower --load, or raise --virtual-nodes" in describe_bottleneck(work_out(ScaleOptions(**values)))
    assert "lower --load" not in describe_bottleneck(work_out(OPTIONS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fps=-1"], "Expected --fps to be positive and finite, got -1."),
        (["--model=ViT-B-61"], "There is no architecture 'ViT-B-61'."),
        (["--method=tpt"], "tpt adapts the text tower, which is not counted here"),
    ],
)
def test_errors_are_sentences(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--streams=1.5", "--streams=many", "--durability=never", "--streams=inf"])
def test_invalid_values_are_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*ARGUMENTS, argument])
    assert argument.partition("=")[0] in capsys.readouterr().err
