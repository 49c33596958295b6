"""Folders of runs as one table of answers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import lmr
from lmr.cli.parser import parse
from lmr.report.runs import read_runs, write_answers
from row_maker import make_row, make_samples, write_runs


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_answers_are_a_line_for_each_image_of_each_run(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_row(name, f"{name}()", "fog", 0.6, seed=seed) for name in ("zeroshot", "tent") for seed in (1, 2)]
    folder, file = write_runs(tmp_path / "runs", rows), tmp_path / f"answers.{ending}"
    options = parse(["report", str(folder), "--answers", str(file)])
    options.run(options)
    assert "800 answers of 4 runs" in capsys.readouterr().out
    table = pd.read_parquet(file) if ending == "parquet" else pd.read_csv(file)
    assert len(table) == 800
    for row in rows:
        own, samples = table[table["run"] == row.run], make_samples(row)
        assert own["place"].tolist() == list(range(200))
        assert (own["predicted"] == samples["predicted"]).all()
        assert {(row.method, row.label, "fog", row.seed)} == set(
            own[["method", "label", "domain", "seed"]].itertuples(index=False, name=None)
        )
    assert not (folder / "report").exists()


def test_answers_that_cannot_be_written_get_a_sentence(tmp_path: Path) -> None:
    row = make_row("zero-shot", "zeroshot()", "fog", 0.6)
    runs = read_runs([write_runs(tmp_path / "runs", [row])])
    with pytest.raises(lmr.LmrError, match="parquet"):
        write_answers(runs, tmp_path / "answers.json")
    with pytest.raises(lmr.LmrError, match="Cannot write"):
        write_answers(runs, tmp_path / "gone" / "answers.csv")
    bare = read_runs([write_runs(tmp_path / "bare", [row], samples=False)])
    with pytest.raises(lmr.LmrError, match="no answers"):
        write_answers(bare, tmp_path / "answers.csv")
