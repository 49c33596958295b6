from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmr
from lmr.bench.running.row import METRICS, SAMPLES, Row, append_row, read_rows, read_samples, write_samples


def make_row(run: str = "0123456789abcdef", **changes: Any) -> Row:
    row = Row(
        run=run,
        method="lmr",
        spec="lmr(lr=0.001)",
        label="LMR",
        backbone={"name": "photo", "weights": "aa", "dtype": "float32"},
        dataset="photo-c",
        data_digest="bb",
        domain="fog",
        severity=5,
        prompts={"name": "a photo of a {}.", "count": 100, "digest": "cc"},
        batch_size=64,
        seed=1,
        order={"kind": "shuffle", "hash": "dd"},
        reset="domain",
        images=1000,
        emit="after",
        metrics={"accuracy": 0.5, "ms_per_image": 2.0},
        curve={"images": [500, 1000], "accuracy": [0.4, 0.5]},
        versions={"lmr": "1"},
        command="lmr bench --methods lmr",
        finished="2026-01-01T00:00:00+00:00",
    )
    return dataclasses.replace(row, **changes)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [make_row("a" * 16), make_row("b" * 16, domain="naïve ☃", domains={"fog": 0.5})]
    for row in rows:
        append_row(tmp_path, row)
    found, words = read_rows(tmp_path)
    full = dict.fromkeys(METRICS)
    assert found == [dataclasses.replace(row, metrics=full | row.metrics) for row in rows]
    assert words == []
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("length", [1, 40, -2])
def test_half_written_last_line_is_dropped_with_a_word(tmp_path: Path, length: int) -> None:
    append_row(tmp_path, make_row("a" * 16))
    path = tmp_path / "rows.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + make_row("b" * 16).to_json().encode()[:length])
    found, words = read_rows(tmp_path)
    assert [row.run for row in found] == ["a" * 16]
    assert len(words) == 1
    assert "last line" in words[0]
    append_row(tmp_path, make_row("c" * 16))
    assert path.read_bytes().startswith(whole)
    found, words = read_rows(tmp_path)
    assert [row.run for row in found] == ["a" * 16, "c" * 16]
    assert words == []


@pytest.mark.parametrize("kind", ["missing", "unknown", "list", "text", "deep"])
def test_damaged_line_is_dropped_with_its_number(tmp_path: Path, kind: str) -> None:
    content = json.loads(make_row().to_json())
    damaged = {"missing": json.dumps({key: value for key, value in content.items() if key != "images"}),
               "unknown": json.dumps(content | {"colour": "red"}),
               "list": "[1, 2]", "text": "not JSON", "deep": "[" * 100_000}  # fmt: skip
    (tmp_path / "rows.jsonl").write_text(damaged[kind] + "\n\n" + make_row("a" * 16).to_json())
    found, (word,) = read_rows(tmp_path)
    assert [row.run for row in found] == ["a" * 16]
    assert word.startswith("Line 1 of")


def test_folder_without_runs_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="lmr bench"):
        read_rows(tmp_path)
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(lmr.LmrError, match="Cannot read"):
        read_rows(tmp_path)
    with pytest.raises(lmr.LmrError, match="Cannot add a row"):
        append_row(tmp_path, make_row())


def make_samples() -> dict[str, np.ndarray]:
    return {name: np.arange(5.0) for name in SAMPLES}


def test_samples_that_cannot_be_read_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="samples"):
        read_samples(tmp_path, "abc")
    write_samples(tmp_path, "abc", make_samples())
    path = tmp_path / "samples" / "abc.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(lmr.LmrError, match="damaged"):
        read_samples(tmp_path, "abc")
    write_samples(tmp_path, "abc", {"index": np.arange(3)})
    with pytest.raises(lmr.LmrError, match="does not hold true, predicted"):
        read_samples(tmp_path, "abc")
