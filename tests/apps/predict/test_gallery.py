"""The answers to a folder in Python, and the page that shows them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.apps.predict.gallery import Answers, make_page
from lmr.apps.predict.results import ImageAnswer
from lmr.core.answer import Answer
from predict_runs import LABELS, TEXT, draw_pictures, read_lines, run_here

pytestmark = pytest.mark.usefixtures("tiny_models")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = draw_pictures(tmp_path / "pictures", range(5))
    (folder / "img9.png").write_text("broken")
    return folder


def test_answers_are_those_of_the_command(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"method": "lmr", "batch_size": 2}
    found = lmr.predict("pictures", LABELS, **given)
    code, _, _ = run_here(
        capsys,
        "pictures",
        "--labels",
        TEXT,
        "--batch-size",
        "2",
        "--passes",
        "2",
        "--out",
        "o.jsonl",
        "--html",
        "o.html",
    )
    lines = read_lines(tmp_path / "o.jsonl")
    assert code == 0
    assert [one.path for one in found] == [line["path"] for line in lines]
    assert [one.label for one in found] == [line.get("label") for line in lines]
    assert [list(map(list, one.top)) for one in found] == [line.get("top", []) for line in lines]
    assert all(line["frozen"] in LABELS for line in lines[:5])
    assert "could not be read" in repr(found)
    assert found[-1].error
    assert len(found[:2]) == 2
    table = found.to_dataframe()
    assert list(table["path"]) == [one.path for one in found]
    for name in ("a.csv", "a.csv", "a.jsonl"):
        found.save(tmp_path / name)
    with open(tmp_path / "a.csv") as file:
        assert [row["label"] for row in csv.DictReader(file)] == [one.label or "" for one in found]
    assert [line | {"frozen": None} for line in read_lines(tmp_path / "a.jsonl")] == [
        line | {"frozen": None} for line in lines
    ]
    page = (tmp_path / "o.html").read_text()
    assert page.count("<figure") == 5
    assert page.count("data:image/jpeg") == 5
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.parametrize("method", ["lmr", "zeroshot"])
def test_page_needs_no_output(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str) -> None:
    words = [str(pictures), "--labels", TEXT, "--method", method]
    assert run_here(capsys, *words, "--out", str(tmp_path / "o.jsonl"), "--html", str(tmp_path / "a.html"))[0] == 0
    code, lines, said = run_here(capsys, *words, "--html", str(tmp_path / "b.html"))
    assert (code, lines) == (0, (tmp_path / "o.jsonl").read_text())
    assert "5 of 6 images labelled, 1" in said
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_names_and_paths_are_text_on_the_page() -> None:
    name = "<script>alert('@CARDS@')</script>"
    sure, unsure = (
        ImageAnswer(f'a"{share}<b>.png', Answer(name, share, 0.5, ((name, share),), frozen="dog"))
        for share in (0.9, 0.4)
    )
    page = make_page(Answers([sure, unsure, ImageAnswer("c.png", Answer(error="Broken."))]))
    assert page.count("<script>") == 1
    assert page.count("<figure") == 2
    assert page.index("0.4&lt;b&gt;") < page.index("0.9&lt;b&gt;")
    assert "frozen: dog" in page
    assert "1 could not be read" in page
