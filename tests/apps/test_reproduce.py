from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import checkpoint_maker as maker
import lmr
from lmr.apps import reproduce as module
from lmr.bench.plans.plan import Plan, list_plans, read_plan
from lmr.bench.running.bench import BenchResult
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
    monkeypatch.setattr(module, "describe_prospects", lambda job, published: "the prospects")
    monkeypatch.setattr(module, "check_model", lambda job: None)
    report = SimpleNamespace(page=tmp_path / "report" / "index.html", drawings=[])
    monkeypatch.setattr(module, "make_report", lambda folders, out: report)
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
        run_command("photo", "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# Before hours of work.


def write_clean_set(root: Path) -> None:
    """CIFAR-10's test set with random images, of which lmr makes the corrupted ones."""
    images, labels = make_cifar(10_000, 10)
    np.savez(root / "cifar10_test.npz", images=images, labels=labels)


def test_prospects_are_those_of_the_plan(tmp_path: Path, small_clip: str) -> None:
    """The rows that are foreseen have everything that verdicts look at."""
    write_clean_set(tmp_path)
    job = module.Reproduction("cifar10-c", tmp_path / "runs", root=str(tmp_path), model=small_clip)
    said = module.describe_prospects(job, find_published("cifar10-c"))
    assert "data made by lmr (paper: official files)" in said
    assert small_clip in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("share", "stops"), [(0.107, True), (0.13, False)])
def test_a_model_at_chance_stops_before_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float, stops: bool
) -> None:
    write_clean_set(tmp_path)
    asked: list[tuple[int, str]] = []

    def run_bench(plan: Plan, folder: str, **given: Any) -> BenchResult:
        (part,) = plan.parts
        (entry,) = part.methods
        asked.append((len(part.corruptions), entry.spec))
        row = make_row("zero-shot", "zeroshot()", "gaussian_noise", share, protocol={"classes": "10"})
        return BenchResult([row], [], 0, 1.0)

    monkeypatch.setattr(module, "run_bench", run_bench)
    job = module.Reproduction("cifar10-c", tmp_path / "runs", root=str(tmp_path), model="photo")
    with pytest.raises(lmr.LmrError, match="chance for 10 classes") if stops else nullcontext():
        module.check_model(job)
    assert asked == [(1, "zeroshot()")]


def test_a_figure_is_run_and_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[str] = []

    def run_bench(plan: Plan, folder: str, **given: Any) -> BenchResult:
        plans.append(plan.name)
        return BenchResult(make_published_rows("cifar10-c")[:1], [], 0, 1.0)

    drawing = SimpleNamespace(number="1a", name="figure-1a")
    report = SimpleNamespace(page=tmp_path / "index.html", drawings=[drawing])
    monkeypatch.setattr(module, "run_bench", run_bench)
    monkeypatch.setattr(module, "check_model", lambda job: None)
    monkeypatch.setattr(module, "make_report", lambda folders, out: report)
    assert run_command("figure-1a", "--out", str(tmp_path)) is None
    assert plans == ["failure-patterns"]
    assert f"{tmp_path}/report/figures/figure-1a.png" in capsys.readouterr().out
    with pytest.raises(lmr.LmrError, match="figure-1a"):
        run_command("figure-9", "--out", str(tmp_path))


# The quick form.


@pytest.fixture(scope="module")
def small_clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CLIP with random weights."""
    return str(maker.write_huggingface(maker.make_model(), tmp_path_factory.mktemp("model")))


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch, small_clip: str) -> None:
    """The quick plan with a small model and little data."""

    def read(name: str, overrides: dict[str, Any]) -> Plan:
        small = {"corruptions": ["fog", "contrast"], "methods": ["zeroshot", "lmr"], "images": 20}
        return read_plan(name, overrides | small | {"backbones": small_clip})

    monkeypatch.setattr(module, "read_plan", read)


def test_the_quick_form_shows_the_published_numbers(
    tmp_path: Path, shortened: None, small_clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cifar10-c", "--quick", "--out", str(tmp_path / "runs"), "--root", str(tmp_path), "--workers", "1"]
    assert run_command(*words) is None
    shown = capsys.readouterr()
    assert "The quick form is not judged" in shown.out
    assert {"70.26", "62.32", "84.71", "86.15"} <= set(shown.out.split())  # as the paper prints them
    assert "Images: 20 of photo-c (paper: 10,000). Corruptions: 2 (paper: 15)." in shown.out
    assert "(paper: openai/clip-vit-base-patch16)" in shown.out
    assert "reproduced" not in shown.out
    assert (tmp_path / "runs" / "report" / "index.html").is_file()
