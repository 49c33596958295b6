from __future__ import annotations

from typing import Any

import pytest

from lmr.bench.running.row import Row
from lmr.report.groups import RunGroup, Setting, choose_main, gather
from lmr.report.published import find_published
from lmr.report.table import Layout, Table
from lmr.report.tables import (
    find_figure,
    lay_accuracy,
    lay_components,
    lay_costs,
    lay_measures,
    lay_sweeps,
    lay_variants,
)
from lmr.report.traits import LineKind
from lmr.watch.settings import WatchSettings
from row_maker import CORRUPTIONS, complete, make_row, make_world

PUBLISHED = find_published("cifar10-c")


def make_paper_rows(shift: float = 0.0, **changes: Any) -> list[Row]:
    """Runs that come out exactly as the paper's CIFAR-10-C table, moved by some points."""
    rows = []
    for published in PUBLISHED.rows:
        label = {"CLIPZS": "zero-shot", "Ours": "LMR"}.get(published.printed, published.printed)
        fields = {"batch_size": published.batch_size or 200, **changes}
        for domain in CORRUPTIONS:
            accuracy = (float(published.cells[domain]) + shift) / 100
            rows.append(make_row(label, complete(published.spec), domain, accuracy, **fields))
    return rows


def gather_one(rows: list[Row]) -> tuple[Setting, list[RunGroup]]:
    ((setting, series),) = gather(rows).items()
    return setting, series


def build(rows: list[Row]) -> Table:
    setting, series = gather_one(rows)
    return lay_accuracy(setting, choose_main(series)).build()


def test_the_papers_own_numbers_give_the_papers_table() -> None:
    table = build(make_paper_rows())
    assert [line.label for line in table.lines] == [
        "zero-shot", "TDA", "ECALP", "TENT", "ETA", "BATCLIP", "MINT", "BITTA", "LMR",
    ]  # fmt: skip
    heads = " ".join(column.head for column in table.columns)
    assert heads == "Gauss. Shot Impu. Defo. Glas. Moti. Zoom Snow Fros. Fog Brit. Cont. Elas. Pixl. Jpeg AVG"
    for line, published in zip(table.lines, PUBLISHED.rows, strict=True):
        assert line.differs == ()
        assert [f"{cell.published:.2f}" for cell in line.cells] == list(published.cells.values())
        assert all(abs(cell.difference or 0) < 0.00501 for cell in line.cells)
        assert all(len(cell.runs) == 1 for cell in line.cells[:-1])
        assert len(line.cells[-1].runs) == 15
    best = [line.label for line, ranks in zip(table.lines, table.rank(), strict=True) if ranks[-1] == 1]
    second = [line.label for line, ranks in zip(table.lines, table.rank(), strict=True) if ranks[-1] == 2]
    assert (best, second) == (["LMR"], ["BITTA"])
    assert table.published is PUBLISHED


def test_a_missing_domain_leaves_a_gap_and_no_average() -> None:
    rows = [row for row in make_paper_rows() if (row.label, row.domain) != ("TENT", "frost")]
    lines = {line.label: line for line in build(rows).lines}
    frost = CORRUPTIONS.index("frost")
    assert lines["TENT"].cells[frost].value is None
    assert lines["TENT"].cells[frost].published == 83.31
    assert lines["TENT"].cells[-1].value is None
    assert lines["LMR"].cells[-1].value == pytest.approx(77.91, abs=0.006)


def test_some_domains_have_an_average_but_not_the_published_one() -> None:
    table = build([row for row in make_paper_rows() if row.domain in ("frost", "fog")])
    assert [column.key for column in table.columns] == ["frost", "fog", "average"]
    assert table.lines[-1].cells[-1].value == pytest.approx((86.06 + 84.71) / 2)
    assert table.lines[-1].cells[-1].published is None
    assert len(build([row for row in make_paper_rows() if row.domain == "fog"]).columns) == 1


def test_the_main_table_has_each_method_once_with_its_own_batch_size() -> None:
    """Sweeps, parts and other numbers of images have tables of their own."""
    rows = [*make_paper_rows(), *make_paper_rows(batch_size=1)]
    rows.append(make_row("wide", complete("lmr(delta=0.3)", "cifar10-c"), "frost", 0.1))
    rows.append(make_row("no AM", complete("lmr(am=False)", "cifar10-c"), "frost", 0.1))
    rows.append(make_row("fast", complete("lmr(lr=0.1)", "cifar10-c"), "frost", 0.1))
    table, groups = build(rows), choose_main(gather_one(rows)[1])
    short = make_row("LMR", complete("lmr", "cifar10-c"), "frost", 0.1, batch_size=8, images=10)
    assert [setting.images for setting in gather([short, *rows])] == [10000, 10]
    assert {one.label: one.first.batch_size for one in groups} == {
        "zero-shot": 200, "TDA": 1, "ECALP": 1, "TENT": 200, "ETA": 200, "BATCLIP": 200, "MINT": 64, "BITTA": 200,
        "LMR": 64, "fast": 64,
    }  # fmt: skip
    assert {line.label: line.kind for line in table.lines if line.label in ("LMR", "fast")} == {
        "LMR": LineKind.OURS,
        "fast": LineKind.OTHER,
    }


def test_watched_and_plain_runs_are_lines_of_their_own() -> None:
    """The watched run has more domains and another batch size: it must not stand for the plain one."""
    lmr, watch = complete("lmr", "cifar10-c"), {"spec": WatchSettings().spec}
    rows = [make_row("zero-shot", "zeroshot()", domain, 0.3) for domain in ("frost", "fog")]
    rows += [make_row("LMR", lmr, "frost", 0.5, batch_size=size) for size in (64, 200)]
    rows += [make_row("LMR, watched", lmr, domain, 0.4, batch_size=200, watch=watch) for domain in ("frost", "fog")]
    table = build(rows)
    assert [(line.label, line.cells[-2].value) for line in table.lines] == [
        ("zero-shot", 30),
        ("LMR", None),
        ("LMR, watched", 40),
    ]
    plain, watched = table.lines[1:]
    assert (plain.kind, watched.kind) == (LineKind.OURS, LineKind.OTHER)
    assert [any(cell.published for cell in line.cells) for line in (plain, watched)] == [True, False]
    assert watched.watched


@pytest.mark.parametrize("domains", [15, 3])
def test_components_have_datasets_as_columns_and_published_means(domains: int) -> None:
    """The paper's means are over 15 corruptions: a mean over fewer has no published number beside it."""
    published, names = find_published("ablation-components"), {"ZS": "zero-shot", "Full": "LMR"}
    rows = []
    for row in published.rows:
        for dataset, preset in (
            ("cifar10-c", "cifar10-c"),
            ("cifar100-c", "cifar100-c"),
            ("imagenet-c-5000", "imagenet"),
        ):
            images = 5000 if preset == "imagenet" else 10000
            for number, domain in enumerate(CORRUPTIONS[:domains]):
                accuracy = float(row.cells[dataset]) / 100 + (number % 3 - 1) / 100
                fields = {"dataset": dataset, "images": images}
                label = names.get(row.printed, row.printed)
                rows.append(make_row(label, complete(row.spec, preset), domain, accuracy, **fields))
    (layout,) = lay_components(gather(rows))
    table = layout.build()
    assert [line.label for line in table.lines] == [
        "zero-shot", "Bias only", "PMR only", "PMR + AM", "PMR + BC", "LMR",
    ]  # fmt: skip
    for line in table.lines:
        assert [cell.difference for cell in line.cells] == (
            pytest.approx([0] * 3, abs=1e-9) if domains > 3 else [None] * 3
        )
        assert line.differs == ()
        assert [len(cell.runs) for cell in line.cells] == [domains] * 3


def test_variants_have_their_average() -> None:
    published = find_published("imagenet-variants")
    rows = [
        make_row(
            row.printed.replace("Ours", "LMR"), complete(row.spec), "clean", float(row.cells[dataset]) / 100,
            dataset=dataset, severity=0, batch_size=row.batch_size or 64,
            images=published.describe(dataset)["images"],
        )
        for row in published.rows
        for dataset in published.columns[:-1]
    ]  # fmt: skip
    (layout,) = lay_variants(gather(rows))
    table = layout.build()
    assert [column.head for column in table.columns] == ["IN-A", "IN-R", "IN-S", "IN-V2", "AVG"]
    for line in table.lines:
        assert all(abs(cell.difference or 0) < 0.00501 for cell in line.cells)
        assert line.differs == ()
    assert {line.label: ranks for line, ranks in zip(table.lines, table.rank(), strict=True)}["LMR"] == [1, 1, 2, 1, 1]
    assert lay_variants({}) == []


def test_costs_are_for_single_images_only() -> None:
    published = find_published("efficiency")
    fields = {"dataset": "imagenet-c-5000", "images": 200}
    rows = [
        make_row(
            row.printed, complete(row.spec), "gaussian_noise", 0.1, batch_size=1, **fields,
            **{key: row.value(key) for key in published.columns},
        )
        for row in published.rows
    ]  # fmt: skip
    rows += [make_row("LMR", complete("lmr", "imagenet"), "gaussian_noise", 0.1, batch_size=64, **fields)]
    setting, series = gather_one(rows)
    (layout,) = lay_costs(setting, series)
    table = layout.build()
    assert len(table.lines) == 9
    assert all(cell.difference == 0 for line in table.lines for cell in line.cells)
    assert [column.higher for column in table.columns] == [False, False, None]
    assert lay_costs(setting, [one for one in series if one.first.batch_size != 1]) == []
    assert lay_costs(setting, [one for one in series if one.first.method in ("tda", "ecalp")]) == []


def test_measures_leave_out_what_was_not_measured() -> None:
    rows = [make_row("LMR", complete("lmr"), d, 0.5, ece=e, nll=None) for d, e in (("frost", 0.1), ("fog", 0.3))]
    table = lay_measures(*gather_one(rows)).build()
    assert {c.key: cell.value for c, cell in zip(table.columns, table.lines[0].cells, strict=True)} == {
        "accuracy": pytest.approx(50.0),
        "ece": pytest.approx(20.0),
        "ms_per_image": 2.0,
    }


def test_measures_are_means_over_the_domains_that_all_have() -> None:
    """A method that was run on the easy corruptions alone does not win by that."""
    rows = [make_row("LMR", complete("lmr"), d, a, ece=0.1) for d, a in (("frost", 0.2), ("fog", 0.8))]
    rows.append(make_row("TENT", complete("tent"), "fog", 0.7, ece=0.1))
    table = lay_measures(*gather_one(rows)).build()
    assert [line.cells[0].value for line in table.lines] == pytest.approx([80, 70])
    assert "Domains: fog." in table.notes


def test_other_data_has_nothing_beside_it_unless_asked() -> None:
    setting, series = gather_one(make_paper_rows(dataset="photo-c"))
    main = choose_main(series)
    table, beside = (lay_accuracy(setting, main, paper).build() for paper in (None, PUBLISHED))
    assert not any(cell.published for line in table.lines for cell in line.cells)
    assert len(table.notes) == 1  # the batch sizes
    assert all("dataset photo-c (paper: cifar10-c)" in line.differs for line in beside.lines)


@pytest.fixture(scope="module")
def sweeps() -> dict[str, Layout]:
    return {sweep.detail: sweep for sweep in lay_sweeps(gather(make_world()))}


def read(sweep: Layout, line: str) -> dict[float, float | None]:
    table = sweep.build()
    cells = next(own.cells for own in table.lines if own.label == line)
    found = {float(column.key): cell.value for column, cell in zip(table.columns, cells, strict=True)}
    return {value: number for value, number in found.items() if number is not None}


def test_batch_sizes_are_compared_on_the_domains_that_all_have(sweeps: dict[str, Layout]) -> None:
    assert set(sweeps) == {"batch-size", "delta", "negatives"}
    sweep = sweeps["batch-size"]
    assert {one.label for one in sweep.lines} == {"MINT", "BATCLIP", "LMR"}
    assert sweep.notes[0] == "Domains: frost, fog."
    assert read(sweep, "MINT") == pytest.approx({1: 40.5, 4: 42.0, 16: 48.0, 64: 50.5})  # 64 is the main run


def test_the_varied_lmr_stands_in_its_place(sweeps: dict[str, Layout]) -> None:
    assert read(sweeps["delta"], "photo-c") == pytest.approx({0.01: 44, 0.02: 45, 0.03: 54.5, 0.05: 44, 0.1: 39})
    assert list(read(sweeps["negatives"], "gap")) == [1, 3, 5, 10, 20]
    assert read(sweeps["negatives"], "top1")[5] == pytest.approx(42.5)


def test_one_value_is_no_sweep() -> None:
    rows = [make_row("LMR", complete("lmr"), "frost", 0.5), make_row("wide", complete("lmr(delta=0.3)"), "fog", 0.5)]
    assert lay_sweeps(gather(rows[:1])) == []
    assert lay_sweeps(gather(rows)) == []  # no domain in common


def test_two_batch_sizes_are_no_line_beside_more() -> None:
    """A published size and another one are compared in a table of their own; the figure needs more."""
    two = [make_row("TENT", complete("tent"), "frost", 0.5, batch_size=size) for size in (64, 200)]
    more = [make_row("LMR", complete("lmr"), "frost", 0.5, batch_size=size) for size in (1, 8, 64)]
    settings = gather(two)
    (sweep,) = lay_sweeps(settings)
    assert [one.label for one in sweep.lines] == ["TENT"]
    assert find_figure(sweep) is None
    settings = gather([*two, *more])
    (sweep,) = lay_sweeps(settings)
    assert [one.label for one in sweep.lines] == ["LMR"]
    assert find_figure(sweep) is not None
