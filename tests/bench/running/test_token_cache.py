"""Tokens that runs share: what a run answers, measures and counts is what it would be without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lmr
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running import token_cache as module
from lmr.bench.running.row import Row, read_samples
from lmr.bench.running.run import Stop, run_task
from lmr.bench.running.token_cache import StepInputs, TokenCache, find_token_cache
from lmr.data.dataset import ImageArray

pytestmark = pytest.mark.usefixtures("tiny_models")

NOISE = np.random.default_rng(0)


def make_tasks(**changes: Any) -> list[Task]:
    given = {"datasets": "photo-c", "backbones": "photo", "corruptions": "contrast", "images": 36, "batch_sizes": 6}
    return list_tasks([parse_plan("test", "", Path(), given | {"forgetting": 6} | changes)])


def run_plainly(task: Task, folder: Path, report: Callable[[int], object] = lambda images: None) -> Row:
    """The run of a task whose steps get images, all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepInputs, "find", lambda self, arrays, images: images)
        patch.setattr(StepInputs, "begin", lambda self, arrays, images, number, measure: (images, 0.0))
        return run_task(task, folder, report)


def draw_arrays(count: int) -> list[ImageArray]:
    return list(NOISE.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    find_token_cache.cache_clear()


@pytest.mark.parametrize("spec", ["lmr", "batclip", "tda"])
def test_rows_and_samples_are_the_same_to_the_bit(spec: str, tmp_path: Path) -> None:
    """Also in a second run, which embeds next to nothing. The images come in another order there."""
    for task in make_tasks(methods=spec, seeds=[1, 2], recovery=True):
        shared, plain = run_task(task, tmp_path / "shared"), run_plainly(task, tmp_path / "plain")
        assert shared.compare() == plain.compare()
        found, expected = (read_samples(tmp_path / name, task.run) for name in ("shared", "plain"))
        for name, values in expected.items():
            assert np.array_equal(found[name], values, equal_nan=values.dtype.kind == "f"), name


def test_single_images_are_the_same_to_rounding(tmp_path: Path) -> None:
    """Convolutions of one image are others in their last digits than those of several."""
    (task,) = make_tasks(methods="lmr", batch_sizes=1, images=20)
    run_task(task, tmp_path / "shared")
    run_plainly(task, tmp_path / "plain")
    found, expected = (read_samples(tmp_path / name, task.run) for name in ("shared", "plain"))
    assert np.array_equal(found["predicted"], expected["predicted"])
    assert found["confidence"] == pytest.approx(expected["confidence"], abs=1e-4)


def test_a_run_that_was_stopped_is_the_same(tmp_path: Path) -> None:
    """A watched one keeps canaries, which are tokens here and were images before the stop."""
    (task,) = make_tasks(methods="lmr", watch="on", images=64)

    def stop(images: int) -> None:
        if images >= 24:
            raise Stop

    with pytest.raises(Stop):
        run_plainly(task, tmp_path / "stopped", stop)
    assert run_task(task, tmp_path / "stopped").compare() == run_plainly(task, tmp_path / "plain").compare()


def test_an_image_is_embedded_once_whatever_the_order() -> None:
    seen: list[int] = []

    def embed(images: Tensor) -> Tensor:
        seen.extend(images.flatten(1)[:, 0].int().tolist())
        return images.flatten(1)[:, :6].reshape(-1, 2, 3)

    arrays, kept = draw_arrays(5), TokenCache()
    images = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 4, 4)
    for order in ([0, 1, 2], [2, 1, 3, 3, 0], [4], [4, 0]):
        found = kept.find([arrays[k] for k in order], images[order], embed)
        assert found.shape == (len(order), 2, 3)
        assert found[:, 0, 0].tolist() == order
    assert seen == [0, 1, 2, 3, 3, 4, 4]  # one alone goes twice


def test_tokens_are_those_of_the_content() -> None:
    """Orders may change an image by its place in the stream, so its number in the set does not identify it."""
    kept, first = TokenCache(), draw_arrays(1)[0]
    changed = first.copy()
    changed[0, 0, 0] ^= 1
    tall = first.reshape(64, 16, 3)
    for number, array in enumerate([first, changed, tall, first]):
        found = kept.find([array], torch.full((1, 3), float(number)), lambda images: images.unsqueeze(1))
        assert found.item() if found.numel() == 1 else found[0, 0, 0] == (0 if array is first else number)


def test_memory_is_bounded_and_what_was_used_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_TOKEN_BYTES", 3 * 24)
    kept, arrays, asked = TokenCache(), draw_arrays(5), list[int]()

    def embed(images: Tensor) -> Tensor:
        asked.append(len(images))
        return images

    for order in ([0, 1, 2], [0, 3], [0, 2, 3], [1], [4, 0, 1, 2, 3]):
        found = kept.find([arrays[k] for k in order], torch.randn(len(order), 2, 3), embed)
        assert found.shape == (len(order), 2, 3)
        assert len(kept._rows) <= 3
    assert asked == [3, 2, 2, 2]  # 0, 1, 2; 3 and then 1, each alone; 4 and 0, which was used longest ago


def test_time_of_embedding_counts_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 40.0, 0.0, 24.0, 0.0, 16.0])
    clip = lmr.load("photo").classifier(["cat", "dog"])
    inputs = StepInputs(lmr.create("zeroshot", clip), TokenCache())
    arrays, images = draw_arrays(4), torch.randn(4, 3, 32, 32)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    given, seconds = inputs.begin(arrays, images, 0, False)
    assert (clip.is_embedded(given), seconds) == (True, 40.0)
    given, seconds = inputs.begin(arrays, images, 1, True)  # its memory is measured, so it starts from images
    assert (given is images, seconds) == (True, 0.0)
    given, seconds = inputs.begin(arrays[:2], images[:2], 3, False)
    assert (clip.is_embedded(given), seconds) == (True, 2 * 8.0)  # of one image: 10 and 6
    assert inputs.begin(arrays, images, module.TIMED, False)[1] == 16.0
    assert torch.equal(given, clip.embed(images[:2]))


def test_a_method_that_needs_images_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(4, 3, 32, 32)
    for model in ("photo", "pocket"):
        method = lmr.create(
            "lmr", lmr.load(model).classifier(["red ring", "blue star"] if model == "pocket" else ["cat", "dog"])
        )
        monkeypatch.setattr(lmr.find_method("lmr"), "needs_images", model == "photo")
        inputs = StepInputs(lmr.Watched(method), TokenCache())
        assert inputs.find(draw_arrays(4), images) is images
        assert inputs.begin(draw_arrays(4), images, 0, False) == (images, 0.0)
