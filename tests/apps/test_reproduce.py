from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import checkpoint_maker as maker
import lmr
from lmr.apps import reproduce as module
from lmr.bench.flops import count_image
from lmr.bench.plans.plan import Plan, list_plans, read_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running.bench import BenchResult, Failure
from lmr.cli.parser import parse
from lmr.report.published import find_published, read_tables
from row_maker import complete, make_published_rows, make_row, write_runs
from set_maker import make_cifar


@pytest.mark.parametrize("name", list(read_tables()))
def test_every_table_has_its_plan_with_its_methods(name: str) -> None:
    assert name in list_plans()
    if name == "imagenet-c-cupl":
        return  # needs a file that is not ours to ship
    plan = read_plan(name)
    specs = {entry.spec for part in plan.parts for entry in part.methods}
    table = find_published(name)
    for row in table.rows:
        assert any(table.find(spec) is row for spec in specs), row.printed
    for part in plan.parts:
        assert part.backbones == ("ViT-B-16" if name != "imagenet-c-vitl14" else "ViT-L-14",)
        assert part.prompts[0].name == "a photo of a {}."
        for entry in part.methods:
            published = table.find(entry.spec)
            assert published is not None
            size = part.batch_sizes[0] if part.batch_sizes else entry.batch_size
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

    def run_bench(plan: Any, folder: str, *, workers: int | None, root: str | None) -> BenchResult:
        asked.append((plan.name, folder, workers, root))
        write_runs(tmp_path, [*rows, make_row("old", complete("lmr"), "frost", 0.1, images=3)], samples=False)
        return BenchResult(rows, [], 0, 1.0)

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


# The quick form.


@pytest.fixture(scope="module")
def small_clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CLIP with random weights that reads CLIP's words."""
    return str(maker.write_huggingface(maker.make_model(words=49_408), tmp_path_factory.mktemp("model")))


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch, small_clip: str) -> None:
    """The quick plan with a small model and little data."""

    def read(name: str, overrides: dict[str, Any]) -> Plan:
        small = {"corruptions": ["fog", "contrast"], "methods": ["zeroshot", "lmr"], "images": 20}
        return read_plan(name, overrides | small | {"backbones": small_clip})

    monkeypatch.setattr(module, "read_plan", read)


def test_the_quick_form_says_what_it_takes_and_shows_the_published_numbers(
    tmp_path: Path, shortened: None, small_clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cifar10-c", "--quick", "--out", str(tmp_path / "runs"), "--root", str(tmp_path), "--workers", "1"]
    assert run_command(*words, "--dry-run") is None
    first = capsys.readouterr()
    assert "Runs: 4, 2 methods (zero-shot, LMR), 80 images.\n" in first.out
    one = count_image(lmr.load(small_clip).encoder)  # ten classes add next to nothing
    backward = one.backward / one.forward
    cost = re.search(r"Cost: (\d+) forwards of one image", first.out)
    assert cost is not None
    assert int(cost[1]) == pytest.approx(40 + 40 * (2 + backward), rel=0.01)
    assert "Estimated time on this machine: about " in first.out
    assert "'photo-c' is used instead" in first.err
    assert not (tmp_path / "runs").exists()
    assert run_command(*words) is None
    shown = capsys.readouterr()
    assert shown.out.index("Estimated time on this machine") < shown.out.index("The quick form is not judged")
    assert shown.err.count("'photo-c' is used instead") == 1
    assert {"70.26", "62.32", "84.71", "86.15"} <= set(shown.out.split())  # as the paper prints them
    assert "Images: 20 of photo-c (paper: 10,000). Corruptions: 2 (paper: 15)." in shown.out
    assert "(paper: openai/clip-vit-base-patch16)" in shown.out
    assert "reproduced" not in shown.out
    assert (tmp_path / "runs" / "report" / "index.html").is_file()
    assert run_command(*words, "--dry-run") is None
    assert "All 4 runs are finished." in capsys.readouterr().out


def test_runs_of_the_quick_form_that_fail_are_a_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortened: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(plan: Plan, folder: str, **given: Any) -> BenchResult:
        tasks = list_tasks([plan], given["root"])
        return BenchResult([], [Failure(task, "no memory") for task in tasks], 0, 1.0)

    monkeypatch.setattr(module, "run_bench", fail)
    words = ["cifar10-c", "--quick", "--out", str(tmp_path / "runs"), "--root", str(tmp_path)]
    assert run_command(*words) == "4 runs failed."
    assert "no memory" in capsys.readouterr().err


def test_a_table_without_a_quick_form_is_a_sentence(tmp_path: Path) -> None:
    for words in (["imagenet-c", "--quick"], ["imagenet-c", "--quick", "--dry-run"]):
        with pytest.raises(lmr.LmrError, match="'imagenet-c' has no quick form; these have one: cifar10-c"):
            run_command(*words, "--out", str(tmp_path))
    assert set(module.QUICK_PLANS) <= set(read_tables())
    assert set(module.QUICK_PLANS.values()) <= set(list_plans())


def test_methods_and_corruptions_of_the_quick_form_are_in_its_table() -> None:
    for name, quick in module.QUICK_PLANS.items():
        table = find_published(name)
        for part in read_plan(quick).parts:
            assert all(table.find(entry.spec) for entry in part.methods)
            assert set(part.corruptions) <= set(table.columns)


def test_a_whole_table_can_be_estimated_too(
    tmp_path: Path, shortened: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(lmr.LmrError, match="lmr fetch cifar10-c"):
        run_command("cifar10-c", "--dry-run", "--root", str(tmp_path))
    images, labels = make_cifar(10_000, 10)
    np.savez(tmp_path / "cifar10_test.npz", images=images, labels=labels)
    assert run_command("cifar10-c", "--dry-run", "--root", str(tmp_path), "--out", str(tmp_path / "runs")) is None
    assert "Runs: 4, 2 methods (zero-shot, LMR), 80 images." in capsys.readouterr().out
