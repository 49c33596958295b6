from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.class_counts import collect_class_counts, main
from lmr.bench.running.row import Row
from lmr.report.groups import gather
from lmr.watch.settings import WatchSettings
from row_maker import complete, make_row, write_runs

FEW, MANY = "lmr(gamma0=0.3, beta=3.0)", "lmr(gamma0=4.0, beta=1.0)"


def make_class_rows(dataset: str, classes: int, few: float, many: float, **changes: Any) -> list[Row]:
    values = {"zeroshot()": 0.5, FEW: few, MANY: many, "lmr(gamma0=4.0, beta=1.0, lr=0.5)": 0.1}
    return [
        make_row(spec, complete(spec), domain, accuracy, dataset=dataset, protocol={"classes": str(classes)}, **changes)
        for spec, accuracy in values.items()
        for domain in ("fog", "frost")
    ]


def test_gains_are_means_over_subsets() -> None:
    rows = make_class_rows("pocket-c@5", 5, 0.6, 0.4) + make_class_rows("pocket-c@5.1", 5, 0.8, 0.5)
    rows += make_class_rows("pocket-c", 100, 0.55, 0.6)
    (counts,) = collect_class_counts(gather(rows))
    assert (counts.dataset, counts.batch_size, counts.domains, counts.limit) == ("pocket-c", 64, 2, 30)
    assert set(counts.gains) == {"gamma0=0.3, beta=3", "gamma0=4, beta=1"}
    assert counts.gains["gamma0=0.3, beta=3"] == pytest.approx({5: 20.0, 100: 5.0})
    assert counts.gains["gamma0=4, beta=1"] == pytest.approx({5: -5.0, 100: 10.0})


@pytest.mark.parametrize(
    "changes",
    [
        {"images": 2000},
        {"backbone": {"name": "openai/clip-vit-base-patch16", "weights": "other", "dtype": "float32"}},
        {"prompts": {"name": "a photo of a {}.", "count": 10, "digest": "other"}},
    ],
)
def test_runs_of_other_plans_are_not_averaged(changes: dict[str, Any]) -> None:
    """Another plan on the whole set, with one of the values: neither its gain nor its baseline counts."""
    rows = make_class_rows("pocket-c@5", 5, 0.6, 0.4) + make_class_rows("pocket-c", 100, 0.55, 0.6)
    others = [row for row in make_class_rows("pocket-c", 100, 0.0, 0.9, **changes) if row.spec != complete(FEW)]
    assert collect_class_counts(gather(others + rows)) == collect_class_counts(gather(rows))


def test_small_subsets_have_fewer_images() -> None:
    """Five classes of a test set may be 500 images where every other run has 1,000."""
    rows = make_class_rows("pocket-c@10", 10, 0.7, 0.5, images=1000) + make_class_rows(
        "pocket-c", 100, 0.55, 0.6, images=1000
    )
    rows += make_class_rows("pocket-c@5", 5, 0.6, 0.4, images=500)
    rows += make_class_rows(
        "pocket-c@20", 20, 0.9, 0.9, images=500
    )  # of another plan: not fewer classes than any other
    (counts,) = collect_class_counts(gather(rows))
    assert counts.gains["gamma0=0.3, beta=3"] == pytest.approx({5: 10.0, 10: 20.0, 100: 5.0})
    assert counts.images == 1000


def test_prompts_of_subsets_are_not_the_same() -> None:
    """The digest of the prompts is over the names of the classes, too."""
    prompts = {"name": "a photo of a {}.", "count": 10}
    rows = make_class_rows("pocket-c@5", 5, 0.6, 0.4, prompts=prompts | {"digest": "five"})
    rows += make_class_rows("pocket-c", 100, 0.55, 0.6, prompts=prompts | {"digest": "all"})
    (counts,) = collect_class_counts(gather(rows))
    assert counts.gains["gamma0=0.3, beta=3"] == pytest.approx({5: 10.0, 100: 5.0})


def test_watched_runs_do_not_count() -> None:
    rows = make_class_rows("pocket-c@5", 5, 0.6, 0.4) + make_class_rows("pocket-c", 100, 0.55, 0.6)
    watch = {"spec": WatchSettings().spec}
    watched = [
        make_row(
            f"{FEW}, watched", complete(FEW), "fog", 0.1, dataset="pocket-c@5", protocol={"classes": "5"}, watch=watch
        )
    ]
    assert collect_class_counts(gather(rows + watched)) == collect_class_counts(gather(rows))


def test_one_number_of_classes_is_no_figure() -> None:
    assert collect_class_counts(gather(make_class_rows("pocket-c", 100, 0.55, 0.6))) == []


def test_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_class_rows("pocket-c@5", 5, 0.6, 0.4) + make_class_rows("pocket-c", 100, 0.55, 0.6)
    write_runs(tmp_path / "runs", rows, samples=False)
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "classes-pocket-c-lmr-64.png",
        "classes-pocket-c-lmr-64.svg",
    }
    assert "subsets of pocket-c in batches of 64" in capsys.readouterr().out
