"""The tables of skewed classes against numbers counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmr.bench.running.metrics import judge_classes
from lmr.bench.running.row import Row, append_row, write_samples
from lmr.report.groups import gather
from lmr.report.leaderboard import name_order
from lmr.report.report import build_tables, make_report
from lmr.report.runs import read_runs
from lmr.report.skew import build_skew
from lmr.report.table import Table
from row_maker import complete, make_row, make_samples

LMR, TENT = complete("lmr"), complete("tent")
TRUE = np.array([0, 0, 0, 0, 1, 0, 0, 0, 2, 1])  # half-way: 0 0 0 2 1


def add(folder: Path, spec: str, wrong: list[int], measured: bool = True, **changes: Any) -> Row:
    """A run on ten images, of which some are answered wrongly; an old row has no measures but accuracy."""
    order = changes.pop("order", {})
    if order.get("kind") != "shuffle":
        order = {"kind": "skew", "majority": "0.8", "dominant": "0", "hash": "h"} | order
    true = np.concatenate([np.full(int(order.get("onset", 0)), 2), TRUE])
    predicted = true.copy()
    predicted[np.array(wrong, int) + len(true) - 10] = 3
    found = judge_classes(predicted[-10:], TRUE)
    given: dict[str, Any] = {"order": order, "images": len(true), "domain": "fog", "protocol": {}} | changes
    domain, accuracy = given.pop("domain"), found.pop("accuracy")
    label = {"z": "zero-shot", "l": "LMR", "t": "TENT"}[spec[0]]
    row = make_row(label, spec, domain, accuracy, **given, **(found if measured else {}))
    append_row(folder, row)
    write_samples(folder, row.run, make_samples(row, images=len(true)) | {"true": true, "predicted": predicted})
    return row


def build(folder: Path) -> list[Table]:
    runs = read_runs([folder])
    return build_skew(runs, gather(runs.rows))


def read_cells(table: Table) -> dict[str, list[float | None]]:
    return {line.label: [cell.value for cell in line.cells] for line in table.lines}


def add_skewed(folder: Path, measured: bool = True) -> None:
    """Two dominant classes: LMR is 10 points below the frozen model on one stream and 20 above it on the other."""
    for dominant, frozen, ours in (("0", [0], [0, 9]), ("1", [0, 1, 4], [8])):
        order = {"dominant": dominant, "hash": dominant}
        add(folder, "zeroshot()", frozen, measured, order=order)
        add(folder, LMR, ours, measured, order=order)


# Classes have 7, 2 and 1 images, in the second half 3, 1 and 1. Recalls of the frozen model are 6/7, 1, 1 and
# 5/7, 1/2, 1 (second half: all 1); of LMR 6/7, 1/2, 1 (second half 1, 0, 1) and 1, 1, 0 (second half 1, 1, 0).
RECALL = 100 * np.array([-1 / 6, (2 / 7 + 1 / 2 - 1) / 3])
EXPECTED = [5, -10, -20, -20, RECALL.mean(), RECALL.min(), -100 / 3, -100 / 3, 2]


@pytest.mark.parametrize("measured", [True, False])
def test_mean_and_worst_over_dominant_classes(tmp_path: Path, measured: bool) -> None:
    """Rows from before these measures get them from their answers."""
    add_skewed(tmp_path, measured)
    (table,) = build(tmp_path)
    assert table.title == "Against the frozen model, 80 % one class: cifar10-c, openai/clip-vit-base-patch16"
    assert table.name == "skew-80-one-class-cifar10-c-openai-clip-vit-base-patch16-s0"
    assert read_cells(table) == {"LMR": [pytest.approx(value) for value in EXPECTED]}
    assert "10 images of cifar10-c; fog; dominant classes 0, 1; seeds 1." in table.notes
    assert table.notes[-1].startswith(
        "The frozen model: accuracy 80.0 %; accuracy, second half 100.0 %; macro recall 84.5"
    )


def test_old_rows_without_answers_have_empty_cells(tmp_path: Path) -> None:
    add_skewed(tmp_path, measured=False)
    for path in (tmp_path / "samples").iterdir():
        path.unlink()
    (table,) = build(tmp_path)
    assert read_cells(table) == {"LMR": [pytest.approx(5), pytest.approx(-10), *[None] * 6, 2]}


def test_every_scenario_has_a_table_with_a_line_for_each_batch_size(tmp_path: Path) -> None:
    add_skewed(tmp_path)
    for size in (8, 64):
        add(tmp_path, LMR, [], order={"onset": "5"}, batch_size=size)
    add(tmp_path, "zeroshot()", [2], order={"onset": "5"})
    add(tmp_path, TENT, [], order={"onset": "5", "hash": "other"})  # without the frozen model on its stream
    for spec in ("zeroshot()", LMR):
        add(tmp_path, spec, [], order={"kind": "shuffle"})
        add(tmp_path, spec, [], order={"kind": "shuffle"}, images=77)  # of another length
    titles = {table.title.removeprefix("Against the frozen model, ").split(":")[0]: table for table in build(tmp_path)}
    tables = {title: read_cells(table) for title, table in titles.items()}
    assert list(tables) == ["shuffled", "80 % one class", "80 % one class, after 5 clean images"]
    onset = tables["80 % one class, after 5 clean images"]
    assert list(onset) == ["TENT", "LMR (batch 64)", "LMR (batch 8)"]
    assert onset["LMR (batch 8)"][:2] == [pytest.approx(10), pytest.approx(10)]
    assert onset["TENT"] == [*[None] * 8, 0]
    assert tables["shuffled"]["LMR"] == [*[0] * 8, 1]


def test_severities_have_tables_of_their_own_and_share_clean_images(tmp_path: Path) -> None:
    for domain, severity in (("clean", 0), ("fog", 3), ("fog", 5)):
        for spec in ("zeroshot()", LMR):
            add(tmp_path, spec, [], domain=domain, severity=severity or 5)
    tables = build(tmp_path)
    assert [table.title.split(":")[0][-10:] for table in tables] == ["severity 5", "severity 3"]
    assert [read_cells(table)["LMR"][-1] for table in tables] == [2, 2]


def test_skewed_streams_are_in_no_other_table(tmp_path: Path) -> None:
    add_skewed(tmp_path)
    runs = read_runs([tmp_path])
    assert [table.kind.value for table in build_tables(runs, gather(runs.rows))] == ["skew"]
    report = make_report([tmp_path], tmp_path / "out", figures=False)
    assert "Against the frozen model, 80 % one class" in report.page.read_text()


@pytest.mark.parametrize(
    ("order", "name"),
    [
        ({"majority": "0.95"}, "95 % one class"),
        ({"majority": "0.8", "dominant": "1+3"}, "80 % two classes"),
        ({"majority": "0.8", "dominant": "1+3+4"}, "80 % 3 classes"),
        ({"majority": "0.6", "dominant": "1>3"}, "60 % one class, which changes"),
        ({"tail": "0.6", "dominant": "1"}, "long tail 0.6"),
        ({"kind": "shuffle", "onset": "300"}, "shuffled, after 300 clean images"),
        ({"kind": "bursts", "onset": "300"}, "bursts, after 300 clean images"),
    ],
)
def test_names_of_scenarios(order: dict[str, str], name: str) -> None:
    assert name_order({"kind": "skew"} | order) == name
