from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from row_maker import complete, make_published_rows, make_row, write_runs

import lmr
from lmr.apps import reproduce as module
from lmr.bench.plans.plan import list_plans, read_plan
from lmr.bench.running.bench import Outcome
from lmr.cli.parser import parse
from lmr.report.paper.paper_tables import find_published, read_reference


@pytest.mark.parametrize("name", list(read_reference()))
def test_every_table_has_its_plan_with_its_methods(name: str) -> None:
    assert name in list_plans()
    if name == "imagenet-c-cupl":
        return  # needs a file that is not ours to ship
    plan = read_plan(name)
    specs = {contender.spec for part in plan.parts for contender in part.methods}
    table = find_published(name)
    for row in table.rows:
        assert any(table.find(spec) is row for spec in specs), row.printed
    for part in plan.parts:
        assert part.backbones == ("ViT-B-16" if name != "imagenet-c-vitl14" else "ViT-L-14",)
        assert part.prompts[0].name == "a photo of a {}."
        for contender in part.methods:
            published = table.find(contender.spec)
            assert published is not None
            size = part.batch_sizes[0] if part.batch_sizes else contender.batch_size
            assert published.batch_size in (None, size)


def run_command(*words: str) -> str | None:
    options = parse(["reproduce", *words])
    complaint: str | None = options.run(options)
    return complaint


@pytest.mark.parametrize(("shift", "complaint"), [(0.0, None), (0.6, "Not reproduced: CLIPZS, TDA")])
def test_the_command_runs_reports_and_judges(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shift: float,
    complaint: str | None,
) -> None:
    rows = make_published_rows("cifar10-c", shift)
    asked: list[Any] = []

    def run_bench(plan: Any, folder: str, *, workers: int | None, root: str | None) -> Outcome:
        asked.append((plan.name, folder, workers, root))
        write_runs(tmp_path, [*rows, make_row("old", complete("lmr"), "frost", 0.1, images=3)], samples=False)
        return Outcome(rows, [], 0, 1.0)

    monkeypatch.setattr(module, "run_bench", run_bench)
    monkeypatch.setattr(module, "make_report", lambda folders, out: SimpleNamespace(page=out / "index.html"))
    said = run_command("cifar10-c", "--out", str(tmp_path), "--workers", "2", "--root", "data")
    assert asked == [("cifar10-c", str(tmp_path), 2, "data")]
    assert said is None if complaint is None else said is not None and said.startswith(complaint)
    shown = capsys.readouterr().out
    assert ("9 of 9" if complaint is None else "0 of 9") in shown
    assert str(tmp_path / "report" / "index.html") in shown


def test_missing_data_name_the_command_that_fetches_them(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="lmr fetch cifar10-c"):
        run_command("cifar10-c", "--out", str(tmp_path / "runs"), "--root", str(tmp_path))


def test_a_table_the_paper_does_not_have_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="Its tables are"):
        run_command("pocket", "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
