from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmr
from lmr.apps.demo import ABLATIONS, CONTENDERS, DOMAINS, METHODS, Demo, format_table, run_demo
from lmr.apps.demo_run import Run


def test_demo_prints_every_method_and_writes_what_it_says(tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo"
    command = [sys.executable, "-m", "lmr", "demo", "--images", "40", "--batch-size", "16", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for label in CONTENDERS:
        assert f"\n{label} " in done.stdout
    for name in ("demo.png", "ablation.png", "world.png", "demo.jsonl"):
        assert str(out / name) in done.stdout
        assert (out / name).stat().st_size > 1000
    with Image.open(out / "demo.png") as picture:
        assert picture.size[0] > 1000
    rows = [json.loads(line) for line in (out / "demo.jsonl").read_text().splitlines()]
    assert len(rows) == 1 + len(DOMAINS) * len(CONTENDERS)
    assert {row["domain"] for row in rows} == {"clean", *DOMAINS}
    for row in rows:
        assert row["images"] == 40
        assert 0 <= row["accuracy"] <= 1
        assert {"method", "backbone", "classes", "severity", "batch_size", "templates", "lmr", "torch"} <= set(row)
        assert lmr.create(row["method"], lmr.load("pocket").classifier(["red star", "blue ring"])).spec == row["method"]


def test_every_registered_method_takes_part() -> None:
    assert {spec.split("(")[0] for spec in METHODS.values()} == set(lmr.list_methods())
    assert set(ABLATIONS.values()) <= set(CONTENDERS.values())


def test_table_shows_the_numbers_of_the_runs() -> None:
    def run(right: int) -> Run:
        return Run(np.zeros(10, np.int64), np.array([0] * right + [1] * (10 - right)), 0.02, 2)

    demo = Demo({"fog": {"A": run(7), "B": run(2)}, "blur": {"A": run(3), "B": run(4)}}, run(9), 1.0)
    head, line, first, second = format_table(demo, ["A", "B"]).splitlines()
    assert head.split() == ["fog", "blur", "mean", "top", "class", "ms"]
    assert set(line) == {"-"}
    assert first.split() == ["A", "70.0", "30.0", "50.0", "100.0", "2.00"]
    assert second.split() == ["B", "20.0", "40.0", "30.0", "100.0", "2.00"]


@pytest.mark.parametrize("wrong", [{"images": 0}, {"batch_size": 0}, {"severity": 6}])
def test_what_cannot_be_run_gets_a_sentence(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="severity from 1 to 5"):
        run_demo(tmp_path / "demo", **wrong)
    assert not (tmp_path / "demo").exists()


def test_folder_that_cannot_be_made_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(lmr.LmrError, match="Cannot make the folder"):
        run_demo(tmp_path / "file" / "demo", images=1)


def test_file_that_could_not_be_written_is_noticed_before_the_runs(tmp_path: Path) -> None:
    (tmp_path / "demo.jsonl").mkdir()
    with pytest.raises(lmr.LmrError, match="is a folder where a file is to go"):
        run_demo(tmp_path, images=10**9)
