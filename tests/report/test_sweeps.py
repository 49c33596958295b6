from __future__ import annotations

import pytest

from lmr.report.groups import gather
from lmr.report.sweeps import Sweep, build_sweep_table, find_sweeps
from lmr.watch.settings import WatchSettings
from row_maker import complete, make_row, make_world


@pytest.fixture(scope="module")
def sweeps() -> dict[str, Sweep]:
    return {sweep.axis.name: sweep for sweep in find_sweeps(gather(make_world()))}


def test_a_sweep_is_found_for_every_kind(sweeps: dict[str, Sweep]) -> None:
    assert set(sweeps) == {"batch-size", "delta", "negatives"}


def test_batch_sizes_are_compared_on_the_domains_that_all_have(sweeps: dict[str, Sweep]) -> None:
    sweep = sweeps["batch-size"]
    assert set(sweep.lines) == {"MINT", "BATCLIP", "LMR"}
    assert sweep.domains == ("frost", "fog")
    assert sweep.means("MINT") == pytest.approx({1: 40.5, 4: 42.0, 16: 48.0, 64: 50.5})  # 64 is the main run


def test_the_varied_lmr_stands_in_its_place(sweeps: dict[str, Sweep]) -> None:
    assert sweeps["delta"].means("pocket-c") == pytest.approx({0.01: 44, 0.02: 45, 0.03: 54.5, 0.05: 44, 0.1: 39})
    assert list(sweeps["negatives"].means("gap")) == [1, 3, 5, 10, 20]
    assert sweeps["negatives"].means("top1")[5] == pytest.approx(42.5)


def test_the_table_has_a_column_for_every_value(sweeps: dict[str, Sweep]) -> None:
    table = build_sweep_table(sweeps["negatives"])
    assert [column.key for column in table.columns] == ["1", "3", "5", "10", "20"]
    assert [line.label for line in table.lines] == ["gap", "top1"]
    assert table.notes == ("Means over frost, fog.",)


def test_one_value_is_no_sweep() -> None:
    rows = [make_row("LMR", complete("lmr"), "frost", 0.5), make_row("wide", complete("lmr(delta=0.3)"), "fog", 0.5)]
    assert find_sweeps(gather(rows[:1])) == []
    assert find_sweeps(gather(rows)) == []  # no domain in common


def test_runs_without_an_accuracy_are_no_sweep() -> None:
    rows = [make_row("LMR", complete("lmr"), "frost", None, batch_size=size) for size in (1, 2)]
    assert find_sweeps(gather(rows)) == []


def test_more_seeds_of_one_value_do_not_count() -> None:
    rows = [make_row("LMR", complete("lmr"), "frost", 0.5 + seed / 10, seed=seed) for seed in (1, 2, 3)]
    rows.append(make_row("wide", complete("lmr(delta=0.3)"), "frost", 0.4))
    (sweep,) = find_sweeps(gather(rows))
    assert sweep.means("cifar10-c") == pytest.approx({0.03: 60.0, 0.3: 40.0})
    assert "seeds 2, 3" in build_sweep_table(sweep).notes[1]


def test_batch_sizes_in_other_precisions_are_other_lines() -> None:
    rows = [
        make_row(
            "LMR", complete("lmr"), "frost", 0.5, batch_size=size, backbone={"name": "x", "weights": d, "dtype": d}
        )
        for size in (1, 2)
        for d in ("float32", "float16")
    ]
    (sweep,) = find_sweeps(gather(rows))
    assert set(sweep.lines) == {"LMR (float32)", "LMR (float16)"}
    protocols = [dict(line.protocol) for line in build_sweep_table(sweep).lines]
    assert [protocol["batch size"] for protocol in protocols] == ["1 | 2", "1 | 2"]


def test_watched_runs_are_lines_of_their_own() -> None:
    watch = {"spec": WatchSettings().spec}
    rows = [make_row("LMR", complete("lmr"), "frost", 0.5, batch_size=size) for size in (1, 2)]
    rows += [make_row("LMR, watched", complete("lmr"), "frost", 0.4, batch_size=size, watch=watch) for size in (1, 2)]
    (sweep,) = find_sweeps(gather(rows))
    assert sweep.means("LMR") == pytest.approx({1: 50, 2: 50})
    assert sweep.means("LMR, watched") == pytest.approx({1: 40, 2: 40})


def test_watched_steps_do_not_replace_plain_ones() -> None:
    rows = [make_row("LMR", complete(f"lmr(delta={delta})"), "frost", 0.5) for delta in (0.03, 0.3)]
    rows += [make_row("LMR, watched", complete("lmr"), "frost", 0.1, watch={"spec": WatchSettings().spec})]
    (sweep,) = find_sweeps(gather(rows))
    assert sweep.means("cifar10-c") == pytest.approx({0.03: 50, 0.3: 50})


def test_what_is_left_out_of_a_sweep_is_named() -> None:
    rows = [make_row("x", complete(f"lmr(delta={delta})"), "frost", 0.4) for delta in (0.1, 0.2)]
    rows.append(make_row("x", complete("lmr(delta=0.2)"), "frost", 0.9, batch_size=8))
    (sweep,) = find_sweeps(gather(rows))
    assert sweep.means("cifar10-c") == pytest.approx({0.1: 40, 0.2: 40})
    assert "Also run, not shown here: x (batch 8)." in build_sweep_table(sweep).notes
    assert sweep.describe() == "cifar10-c, openai/clip-vit-base-patch16, severity 5, frost, 10000 images each, seed 1"


def test_other_numbers_of_images_are_not_mixed_in() -> None:
    rows = [make_row("LMR", complete("lmr"), "frost", 0.5, images=9)]
    rows += [make_row("x", complete(f"lmr(delta={delta})"), "frost", 0.4, images=5) for delta in (0.1, 0.2)]
    (sweep,) = find_sweeps(gather(rows))
    assert list(sweep.means("cifar10-c")) == [0.1, 0.2]


def test_two_batch_sizes_are_no_line_beside_more() -> None:
    """A published size and another one are compared in a table of their own; the figure needs more."""
    two = [make_row("TENT", complete("tent"), "frost", 0.5, batch_size=size) for size in (64, 200)]
    more = [make_row("LMR", complete("lmr"), "frost", 0.5, batch_size=size) for size in (1, 8, 64)]
    settings = gather(two)
    (sweep,) = find_sweeps(settings)
    assert list(sweep.lines) == ["TENT"]
    assert sweep.figure is None
    settings = gather([*two, *more])
    (sweep,) = find_sweeps(settings)
    assert list(sweep.lines) == ["LMR"]
    assert sweep.figure is not None
