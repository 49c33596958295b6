"""How long runs would take: what is counted, what is measured, and that the quick plan fits into an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lmr
from lmr.bench.flops import count_blocks, count_image
from lmr.bench.plans.plan import parse_plan, read_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running import estimate as module
from lmr.bench.running.estimate import PassSeconds, estimate_time, measure_passes
from lmr.models.towers.architectures import find_architecture
from lmr.models.towers.image import VisionTower

pytestmark = pytest.mark.usefixtures("tiny_models")

COST = {"zeroshot": 1.0, "tent": 3.0, "lmr": 4.0}  # forwards


def make_tasks(**table: Any) -> list[Task]:
    given = {"methods": "lmr", "datasets": "photo-c", "corruptions": "fog", "images": 10, "batch_sizes": 4} | table
    return list_tasks([parse_plan("test", "", Path(), given)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Passes of known times and methods of known costs; the batch sizes that were measured."""
    found: list[int] = []

    def measure(task: Task, count: int) -> PassSeconds:
        found.append(count)
        return PassSeconds(0.5, 1.0)

    monkeypatch.setattr(module, "measure_passes", measure)
    monkeypatch.setattr(module, "count_forwards", lambda method, batch_size: COST.get(method.name))
    monkeypatch.setattr(module, "count_cores", lambda: 4)
    monkeypatch.setattr(module, "_find_embedding_share", lambda classifier: 0.0)
    return found


@pytest.mark.parametrize(
    ("table", "seconds"),
    [
        ({"methods": "zeroshot"}, 10 * (0.5 + 1)),
        ({"methods": "lmr"}, 10 * (0.5 + 4)),
        ({"methods": "zeroshot", "recovery": True}, 10 * (0.5 + 2)),
        ({"methods": "zeroshot", "forgetting": 3}, 13 * (0.5 + 1)),
        ({"methods": ["zeroshot", "tent"]}, 10 * (1.5 + 3.5)),
    ],
)
def test_forwards_are_counted(table: dict[str, Any], seconds: float, asked: list[int]) -> None:
    assert estimate_time(make_tasks(**table), workers=1).seconds == pytest.approx(seconds)


def test_images_are_embedded_once_for_all_runs_on_them(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """And in every run for one batch in 16, whose time is measured; but for every pass of a method that needs them."""
    monkeypatch.setattr(module, "_find_embedding_share", lambda classifier: 0.5)
    tasks = make_tasks(methods=["zeroshot", "lmr"], corruptions=["fog", "contrast"], images=32, forgetting=5)
    every = 2 * (32 * (1 + 4) + 2 * 5)
    assert estimate_time(tasks, workers=1).forwards == every - 2 * 32 * 0.5 * 15 / 16
    monkeypatch.setattr(lmr.find_method("lmr"), "needs_images", True)
    assert estimate_time(tasks, workers=1).forwards == every


def test_the_share_of_embedding_is_that_of_the_tower() -> None:
    photo = lmr.load("photo").classifier(["cat", "dog"])
    tower = photo.encoder
    assert isinstance(tower, VisionTower)
    blocks = count_blocks(tower).forward / count_image(tower).forward
    assert module._find_embedding_share(photo) == pytest.approx(1 - blocks)


def test_workers_share_the_runs(asked: list[int]) -> None:
    tasks = make_tasks(methods=["zeroshot", "tent", "lmr"])
    two = estimate_time(tasks, workers=2)
    assert (two.workers, two.threads) == (2, 2)
    assert two.seconds == pytest.approx(10 * (1.5 + 3.5 + 4.5) / 2)
    assert estimate_time(tasks, workers=4).seconds == pytest.approx(45)  # no sooner than the longest run
    with pytest.raises(lmr.LmrError, match="at least one worker"):
        estimate_time(tasks, workers=0)


def test_each_batch_size_is_measured_once_and_none_is_large(asked: list[int]) -> None:
    estimate_time(make_tasks(methods=["zeroshot", "lmr"], batch_sizes=[1, 64, 200]), workers=1)
    assert asked == [1, 16]


def test_the_estimate_in_words(asked: list[int]) -> None:
    words = estimate_time(make_tasks(methods=["zeroshot", "tent"], images=1000), workers=1).describe()
    assert words.splitlines() == [
        "Runs: 2, 2 methods (zero-shot, TENT), 2,000 images.",
        "Cost: 4,000 forwards of one image, backwards and prompts included.",
        "Measured with photo, batches of 4, 4 threads: a forward 1000.00 ms, preparing an image 500.00 ms.",
        "Estimated time on this machine: about 83 min with 1 process.",
    ]


CODE = """
from lmr import Method, Step, register

@register("silent")
class Silent(Method):
    def adapt(self, images, state, streams):
        return Step(self.classifier(images) + 0 * self.classifier.encoder.config.width)  # fails on the stand-in model
"""


def test_a_method_that_states_no_passes_is_named(
    tmp_path: Path, own_methods: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure_passes", lambda task, count: PassSeconds(0.5, 1.0))
    (tmp_path / "own.py").write_text(CODE)
    found = estimate_time(make_tasks(methods=["zeroshot", f"{tmp_path / 'own.py'}:silent"]), workers=1)
    assert found.unknown == ("SILENT",)
    assert found.seconds == pytest.approx(15)
    assert "Not included, as their cost cannot be counted: SILENT." in found.describe()


def test_real_passes_are_measured() -> None:
    (task,) = make_tasks()
    assert min(measure_passes(task, 4)) > 0
    tent, batclip = (estimate_time(make_tasks(methods=name), workers=1) for name in ("tent", "batclip"))
    assert 10 < tent.forwards < batclip.forwards  # backwards and prompts are counted too


def test_a_measurement_uses_the_threads_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    measure = measure_passes

    def watch(task: Task, count: int) -> PassSeconds:
        found: PassSeconds = measure(task, count)
        seen.append(torch.get_num_threads())
        return found

    monkeypatch.setattr(module, "measure_passes", watch)
    monkeypatch.setattr(module, "count_cores", lambda: 3)
    before = torch.get_num_threads()
    estimate_time(make_tasks(), workers=1)
    assert seen == [3]
    assert torch.get_num_threads() == before


def test_the_median_of_some_calls_after_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 100, 100, 103, 103, 104, 104, 106])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    assert module._time(lambda: None) == 2


def count_forward(name: str) -> tuple[float, float]:
    with torch.device("meta"):
        found = count_image(VisionTower(find_architecture(name)[0]))
    return found.forward, found.backward


@pytest.mark.usefixtures("real_models")
def test_the_quick_plan_takes_at_most_an_hour_on_four_cores() -> None:
    """By arithmetic, at the speed that docs/cost.md measures: 120 ms a forward of ViT-B/16 on two cores."""
    rate = 2 * count_forward("ViT-B-16-quickgelu")[0] / 0.120  # of four cores
    forward, backward = count_forward("ViT-B-32-quickgelu")
    (part,) = read_plan("cifar10-c-quick").parts
    classifier = lmr.load("photo").classifier(["cat", "dog"])
    passes = [lmr.count_passes(lmr.create(entry.spec, classifier)) for entry in part.methods]
    per_image = sum(p.forwards * forward + p.backwards * backward for p in passes if p is not None)
    assert None not in passes
    assert part.images is not None
    total = len(part.corruptions) * part.images * per_image
    assert total == pytest.approx(491e12, rel=0.02)  # as docs/bench.md says; prompts of ten classes add little
    assert total / rate < 3600
