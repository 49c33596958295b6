from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from row_maker import make_row

import lmr
from lmr.apps.demo import FIGURES, Comparison, StreamResult, format_table, gather_results, run_demo
from lmr.apps.demo_figures import BASELINE, OURS, choose_styles
from lmr.bench.plans.plan import read_plan
from lmr.bench.running.row import Row, read_rows, write_samples
from lmr.core.spec import parse_spec


def run_command(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmr", "demo", "--images", "24", "--batch-size", "12", "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_demo_prints_every_contender_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo"
    done = run_command(out)
    plan = read_plan("demo")
    for part in plan.parts[:2]:
        for contender in part.methods:
            assert f"\n{contender.label} " in done.stdout
    for name in (*FIGURES, "world.png", "rows.jsonl"):
        assert str(out / name) in done.stdout
        assert (out / name).stat().st_size > 1000
    with Image.open(out / "demo.png") as figure:
        assert figure.size[0] > 1000
    rows, words = read_rows(out)
    assert words == []
    corruptions = plan.parts[0].corruptions
    assert len(rows) == 1 + len(corruptions) * (len(lmr.list_methods()) + 4)  # zero-shot and LMR are in both tables
    assert {row.domain for row in rows} == {"clean", *corruptions}
    for row in rows:
        assert (row.images, row.batch_size, row.order["kind"]) == (24, 12, "file")
    # What is finished is not run again: a row that a killed demo did not write is all that is added.
    kept = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(b"".join(kept[:-1]))
    again = run_command(out)
    after = (out / "rows.jsonl").read_bytes().splitlines(keepends=True)
    assert after[:-1] == kept[:-1]
    assert Row.from_json(after[-1]).compare() == Row.from_json(kept[-1]).compare()
    strip = [line[:60] for line in done.stdout.splitlines() if " ms" not in line and "Ran for" not in line]
    assert [line[:60] for line in again.stdout.splitlines() if " ms" not in line and "Ran for" not in line] == strip


def test_every_method_takes_part_with_its_values_for_cifar100() -> None:
    methods, parts, clean = read_plan("demo").parts
    found = {parse_spec(contender.spec)[0]: contender.spec for contender in methods.methods}
    assert list(found) == lmr.core.registry.sort_methods(lmr.list_methods())
    classifier = lmr.load("pocket").classifier(["red star", "blue ring"])
    for name, spec in found.items():
        preset = "cifar100-c" if "cifar100-c" in lmr.find_method(name).presets else None
        assert lmr.create(name, classifier, preset=preset).spec == spec
    everything = {contender.spec for contender in (*methods.methods, *parts.methods)}
    assert len(everything) == len(found) + 4
    assert (clean.corruptions, clean.severities, clean.images) == (("clean",), (5,), 1280)


def make_result(folder: Path, label: str, domain: str, right: int) -> StreamResult:
    row = make_row(label, "zeroshot()", domain, right / 10, top_share=1.0, protocol={"classes": "4"})
    true = np.array([0] * right + [1] * (10 - right))
    names = dict.fromkeys(("index", "confidence", "gap", "margin", "recovery"), np.zeros(10))
    write_samples(folder, row.run, names | {"predicted": np.zeros(10, np.int64), "true": true})
    return StreamResult(row, folder)


def test_table_shows_the_numbers_of_the_rows(tmp_path: Path) -> None:
    numbers = {"A": {"fog": 7, "blur": 3}, "B": {"fog": 2, "blur": 4}}
    results = {
        label: {domain: make_result(tmp_path, label, domain, right) for domain, right in by_domain.items()}
        for label, by_domain in numbers.items()
    }
    head, line, first, second = format_table(Comparison("Title", "pocket-c", 5, results)).splitlines()
    assert head.split() == ["fog", "blur", "mean", "top", "class", "ms"]
    assert set(line) == {"-"}
    assert first.split() == ["A", "70.0", "30.0", "50.0", "100.0", "2.00"]
    assert second.split() == ["B", "20.0", "40.0", "30.0", "100.0", "2.00"]
    accuracy, share = results["A"]["fog"].curves
    assert accuracy.tolist() == [1.0] * 7 + [7 / 8, 7 / 9, 0.7]
    assert share.tolist() == [1.0] * 10


def test_rows_are_sorted_into_the_parts_of_the_plan(tmp_path: Path) -> None:
    parts = read_plan("demo").parts
    rows = []
    for part in parts:
        for contender in part.methods:
            for place, domain in enumerate(part.corruptions):
                accuracy = 0.99 if domain == "clean" else 0.1 * place
                rows.append(make_row(contender.label, contender.spec, domain, accuracy))
    demo = gather_results(parts, rows, tmp_path)
    assert demo.clean == 0.99
    assert [len(comparison.results) for comparison in demo.comparisons] == [len(lmr.list_methods()), 6]
    for comparison, part in zip(demo.comparisons, parts, strict=False):
        assert comparison.title == part.title
        assert comparison.domains == list(part.corruptions)
        for by_domain in comparison.results.values():
            assert [result.accuracy for result in by_domain.values()] == [0.1 * k for k in range(5)]


def test_lines_are_styled_by_the_role_of_the_method() -> None:
    contenders = read_plan("demo").parts[1].methods
    rows = {c.label: make_row(c.label, c.spec, "fog", 0.5) for c in contenders}
    styles = choose_styles(rows)
    assert BASELINE.items() <= styles["zero-shot"].items()
    assert OURS.items() <= styles["LMR"].items()
    others = [style["color"] for label, style in styles.items() if label not in ("zero-shot", "LMR")]
    assert len(set(others)) == 4
    assert OURS["color"] not in others


@pytest.mark.parametrize(
    ("wrong", "key"), [({"images": 0}, "images"), ({"batch_size": 0}, "batch_sizes"), ({"severity": 6}, "severities")]
)
def test_what_cannot_be_run_is_refused(wrong: dict[str, int], key: str, tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match=f"whole numbers (from|of at least) 1 .*for {key}"):
        run_demo(tmp_path / "demo", **wrong)
    assert not (tmp_path / "demo").exists()


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(lmr.LmrError, match="Cannot create the folder"):
        run_demo(tmp_path / "file" / "demo", images=1)


def test_file_that_could_not_be_written_is_noticed_before_the_runs(tmp_path: Path) -> None:
    (tmp_path / "demo.png").mkdir()
    with pytest.raises(lmr.LmrError, match="is a folder, but a file is written there"):
        run_demo(tmp_path, images=10**9)
