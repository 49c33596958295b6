from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmr
from lmr.apps import demo as demo_file
from lmr.apps.demo import (
    FIGURES,
    Comparison,
    StreamResult,
    compare_entries,
    format_comparison,
    format_gain,
    run_demo,
)
from lmr.bench.plans.plan import Plan, read_plan
from lmr.bench.running.row import Row, read_rows, write_samples
from lmr.cli.parser import build_command, parse
from lmr.data.photographs import Photographs
from lmr.report.statistics import Difference, measure_difference
from row_maker import make_row


def run_command(out: Path) -> None:
    options = parse(["demo", "--images", "4", "--out", str(out)])
    assert options.run(options) is None


COMPARED = [name for name in lmr.list_methods() if lmr.find_method(name).card.in_paper]


@pytest.fixture
def short_plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan with all of its methods, on one corruption."""

    def shorten(name: str, overrides: Mapping[str, Any]) -> Plan:
        plan = read_plan(name, overrides)
        return replace(plan, parts=tuple(replace(part, corruptions=part.corruptions[:1]) for part in plan.parts))

    monkeypatch.setattr(demo_file, "read_plan", shorten)
    return shorten("demo", {})


def test_demo_prints_every_entry_and_resumes(
    tmp_path: Path, short_plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "demo"
    run_command(out)
    done = capsys.readouterr().out
    for part in short_plan.parts[:2]:
        for entry in part.methods:
            assert f"\n{entry.label} " in done
    for name in (*FIGURES, "rows.jsonl"):
        assert str(out / name) in done
        assert (out / name).stat().st_size > 1000
    with Image.open(out / "demo.png") as figure:
        assert figure.size[0] > 300 * len(short_plan.parts[0].corruptions)
    rows, words = read_rows(out)
    assert words == []
    corruptions = short_plan.parts[0].corruptions
    assert len(rows) == 1 + len(corruptions) * (len(COMPARED) + 4)  # zero-shot and LMR are in both tables
    assert {row.domain for row in rows} == {"clean", *corruptions}
    for row in rows:
        assert (row.images, row.batch_size, row.order["kind"]) == (4, 64, "file")
        assert (row.backbone["name"], row.dataset) == ("photo", "photo-c")
        assert row.protocol["images"] == Photographs().protocol["images"]
    assert max(map(len, done.partition("Files:")[0].splitlines())) <= 120
    assert "lmr demo --images 2000 " in done
    # What is finished is not run again: a row that a killed demo did not write is all that is added.
    kept = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(b"".join(kept[:-1]))
    run_command(out)
    again = capsys.readouterr().out
    after = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    assert after[:-1] == kept[:-1]
    assert Row.from_json(after[-1]).compare() == Row.from_json(kept[-1]).compare()
    strip = [line[:60] for line in done.splitlines() if " ms" not in line and "Ran for" not in line]
    assert [line[:60] for line in again.splitlines() if " ms" not in line and "Ran for" not in line] == strip


def make_result(folder: Path, spec: str, domain: str, right: Sequence[int], images: int = 10) -> StreamResult:
    """The right answers are to the images of these numbers, which come last to first in the stream."""
    row = make_row(spec, spec, domain, len(right) / images, top_share=1.0, protocol={"classes": "4"})
    index = np.arange(images)[::-1]
    names = dict.fromkeys(("confidence", "gap", "margin", "recovery"), np.zeros(images))
    answers = {"index": index, "predicted": np.zeros(images, np.int64), "true": 1 - np.isin(index, right)}
    write_samples(folder, row.run, names | answers)
    return StreamResult(row, folder)


def make_comparison(folder: Path, numbers: dict[str, dict[str, Sequence[int]]]) -> Comparison:
    """Contenders by their spec: the images that each answers correctly in each stream."""
    results = {
        spec: {domain: make_result(folder, spec, domain, right) for domain, right in by_domain.items()}
        for spec, by_domain in numbers.items()
    }
    return Comparison("Title", "photo-c", 5, results)


def test_table_shows_the_numbers_of_the_rows(tmp_path: Path) -> None:
    comparison = make_comparison(
        tmp_path, {"tent()": {"fog": range(3, 10), "blur": range(3)}, "zeroshot()": {"fog": [0, 9], "blur": range(4)}}
    )
    assert comparison.baseline == "zeroshot()"
    head, line, first, second = format_comparison(comparison).splitlines()
    assert re.split("  +", head.strip()) == ["fog", "blur", "mean", "gain over zeroshot() (95 %)", "top class", "ms"]
    assert set(line) == {"-"}
    gain = format_gain(compare_entries(comparison, "tent()", "zeroshot()"))
    assert re.split("  +", first) == ["tent()", "70.0", "30.0", "50.0", gain, "100.0", "2.00"]
    assert re.split("  +", second) == ["zeroshot()", "20.0", "40.0", "30.0", "100.0", "2.00"]
    accuracy, share = comparison.results["tent()"]["fog"].curves
    assert accuracy.tolist() == [1.0] * 7 + [7 / 8, 7 / 9, 0.7]
    assert share.tolist() == [1.0] * 10


def test_gain_is_that_of_the_means_with_an_image_drawn_in_all_of_its_streams(tmp_path: Path) -> None:
    """Two streams that agree on every image are as certain as one of them: they are not twenty images."""
    pair = {"tent()": {"fog": [0, 1, 2, 5, 6]}, "zeroshot()": {"fog": [3, 5, 6]}}
    one = make_comparison(tmp_path / "one", pair)
    two = make_comparison(tmp_path / "two", {spec: by | {"blur": by["fog"]} for spec, by in pair.items()})
    found = compare_entries(one, "tent()", "zeroshot()")
    again = compare_entries(two, "tent()", "zeroshot()")
    assert (again.low, again.high) == pytest.approx((found.low, found.high))
    assert found.images == 10
    assert found.mean == pytest.approx(0.2)
    assert found.low < 0.2 < found.high
    right, other = np.isin(np.arange(10), [0, 1, 2, 5, 6]), np.isin(np.arange(10), [3, 5, 6])
    by_hand = measure_difference(right, other)
    assert (found.low, found.high) == (pytest.approx(by_hand.low), pytest.approx(by_hand.high))
    assert format_gain(Difference(0.0482, -0.0012, 0.0571, 10)) == "+4.8 (-0.1 to +5.7)"


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="whole numbers"):
        run_demo(tmp_path / "demo", 0)
    assert not (tmp_path / "demo").exists()


def test_file_that_could_not_be_written_is_noticed_before_the_runs(tmp_path: Path) -> None:
    (tmp_path / "demo.png").mkdir()
    with pytest.raises(lmr.LmrError, match="written"):
        run_demo(tmp_path, images=10**9)


@pytest.mark.parametrize(("asked", "used"), [(5000, 2000), (2000, 2000), (300, 300)])
def test_more_images_than_there_are_means_all_of_them(
    asked: int, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[Plan] = []

    def stop(plan: Plan, *_: object, **__: object) -> None:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_file, "run_bench", stop)
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "demo", images=asked)
    said = capsys.readouterr().out
    assert [part.images for part in plans[0].parts] == [used] * 3
    assert f"Streams of {used} images in batches of 64, severity 5 of 5" in said
    assert ("5000 images were requested, but the set has 2000; all of them are used.\n" in said) == (asked > used)
    assert "airplane, automobile, bird, " in said


def test_default_of_the_command_is_that_of_the_plan() -> None:
    assert {part.images for part in read_plan("demo").parts} == {parse(["demo"]).images}
    assert f"{Photographs().count('clean')} at most" in " ".join(build_command("demo").format_help().split())
