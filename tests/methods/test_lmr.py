"""The library's LMR against the slow reference beside this file, batch by batch, over whole streams."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import lmr
import lmr_reference as book
from lmr_problem import SEED, copy_state, make_images, make_problem

DEFAULT = "lmr(preset='default')"


def follow(
    spec: dict[str, Any], classes: int = 12, size: int = 8, count: int = 53, dtype: Any = torch.float64, **how: Any
) -> tuple[lmr.Method, Any, float]:
    """Send one stream through the library and the reference; assert the info; return both and the worst difference."""
    seed = how.pop("seed", SEED)
    tower, prototypes, anchors = make_problem(classes, seed)
    tower, prototypes = tower.to(dtype), prototypes.to(dtype)
    words = ", ".join(f"{key}={value!r}" for key, value in spec.items())
    name = "lmr_variants" if spec.keys() & {"emit", "pace", "share", "prior"} else "lmr"
    method = lmr.create(f"{name}({words})", lmr.ZeroShot(tower, prototypes, 100.0), preset="default")
    reference = book.Reference(book.write_out(tower), tower.norms, prototypes, **spec, **how)
    worst, loose = 0.0, dtype == torch.float32
    batches = make_images(anchors, count, seed).to(dtype).split(size)
    assert len(batches) >= 6
    assert size == 1 or len(batches[-1]) < size
    for images in batches:
        answer, expected = method.step(images), reference.step(images)
        worst = max(worst, (answer.logits - expected).abs().max().item())
        check_info(answer.info, describe(reference), 1e-3 if loose else 1e-9)
    ahead = make_images(anchors, 5, seed + 1).to(dtype)
    corrected = reference.score(ahead, reference.norms) + torch.tensor(reference.bias, dtype=torch.float64)
    assert (method.predict(ahead).logits - corrected).abs().max() < (1e-3 if loose else 1e-9)
    return method, reference, worst


def describe(reference: Any) -> dict[str, Any]:
    """The numbers that ``answer.info`` must hold after the reference's last batch."""
    event = reference.history[-1]
    info = {"finite": True, "top_class_share": max(reference.predicted) / sum(reference.predicted)}
    if "samples" in event:
        samples = event["samples"]
        info["gate_share"] = sum(sample.weight > 0 for sample in samples) / len(samples)
        info["protected_size"] = sum(len(sample.protected) for sample in samples) / len(samples)
        moved = torch.sqrt(((reference.flat - reference.start) ** 2).sum() / (reference.start**2).sum())
        info |= {"loss": event["loss"], "stepped": event["stepped"], "drift": moved.item()}
    return info


def check_info(info: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """The same keys and numbers; shares and sizes are counted in float32."""
    assert set(info) == set(expected)
    for key, value in expected.items():
        counted = key in ("gate_share", "protected_size", "top_class_share")
        assert info[key] == pytest.approx(value, abs=1e-6 if counted else tolerance), key
    assert info["finite"] is expected["finite"]
    assert info.get("stepped") is expected.get("stepped")


def check_state(method: lmr.Method, reference: Any, tolerance: float = 1e-9) -> None:
    """All that the stream has learned."""
    state = {key: value[0].double() for key, value in method.state.items()}
    expected = {"bias": reference.bias, "images": sum(reference.predicted), "predicted": reference.predicted}
    if reference.bc:
        expected["running"] = reference.running
    if reference.pace == "image" and reference.pmr:
        expected["waiting"] = reference.waiting
    if reference.pmr:
        expected |= {"norms": reference.flat, "mass": reference.mass, "steps": reference.steps}
        expected["first"] = torch.cat([t.flatten() for t in reference.first])
        expected["second"] = torch.cat([t.flatten() for t in reference.second])
    assert set(expected) <= set(state)
    for key, value in expected.items():
        difference = (state[key] - torch.as_tensor(value, dtype=torch.float64)).abs().max().item()
        assert difference <= tolerance, f"{key} is off by {difference}"


def list_samples(reference: Any) -> list[Any]:
    return [sample for event in reference.history for sample in event["samples"]]


# One stream.


def test_stream_holds_every_kind_of_sample() -> None:
    """What the comparisons below stand on: all branches occur, and no decision is near enough to its border to tip."""
    _, reference, _ = follow({})
    samples = list_samples(reference)
    past = [sample for sample in samples if sample.weight > 0]
    assert 0.2 < len(past) / len(samples) < 0.8
    assert len({len(sample.protected) for sample in samples}) >= 8
    assert {len(sample.negatives) for sample in samples} == {0, 1, 2, 3, 4, 5}
    assert {len(sample.negatives) for sample in past} == {3, 4, 5}
    assert len({sample.label for sample in past}) >= 6
    assert all(event["stepped"] for event in reference.history)
    assert min(event["slack"] for event in reference.history) > 1e-6
    assert max(map(abs, reference.bias)) > 0.2


@pytest.mark.parametrize(("pmr", "am", "bc"), list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize("positives", ["gap", "top1"])
@pytest.mark.parametrize("emit", ["after", "before"])
def test_switches(pmr: bool, am: bool, bc: bool, positives: str, emit: str) -> None:
    spec = {"pmr": pmr, "am": am, "bc": bc, "positives": positives, "emit": emit}
    method, reference, worst = follow(spec)
    assert worst < 1e-9
    check_state(method, reference)
    assert reference.steps >= 6 * pmr


@pytest.mark.parametrize(
    "spec",
    [
        {"negatives": 1},
        {"negatives": 5, "delta": 0.05},
        {"negatives": 40},
        {"delta": 0.0},
        {"delta": 0.3},
        {"tau": 0.0},
        {"tau": 0.95},
        {"gamma0": 0.3, "beta": 3.0},
        {"beta": 0.0},
        {"eta": 0.4},
        {"eta": 0.0},
        {"mu": 0.0},
        {"mu": 0.95, "eta": 0.2},
        {"clip": 0.1},
        {"eps": 1e-2},
        {"lr": 1e-2},
        {"prior": (3.0, 0.0, *[1.0] * 10), "eta": 0.2},
        {"prior": tuple(float(k + 1) for k in range(12)), "emit": "before", "pace": "image"},
        {"lr": 1.5e-3, "tau": 0.5, "delta": 0.01, "negatives": 3, "eta": 0.1, "emit": "before"},
    ],
    ids=str,
)
def test_values(spec: dict[str, Any]) -> None:
    method, reference, worst = follow(spec)
    assert worst < 1e-9
    check_state(method, reference)


@pytest.mark.parametrize(
    ("classes", "size", "count", "spec"),
    [
        (2, 8, 45, {"delta": 0.002}),
        (2, 8, 45, {"positives": "top1"}),
        (3, 8, 45, {"delta": 0.005}),
        (12, 1, 12, {}),
        (12, 1, 12, {"positives": "top1", "negatives": 50}),
        (40, 5, 33, {"tau": 0.1}),
    ],
)
def test_few_classes_and_single_images(classes: int, size: int, count: int, spec: dict[str, Any]) -> None:
    method, reference, worst = follow(spec, classes, size, count)
    assert worst < 1e-9
    check_state(method, reference)
    assert reference.steps >= 4


# Time constants per image.


@pytest.mark.parametrize(
    "spec",
    [{}, {"emit": "before"}, {"pmr": False}, {"mu": 0.95, "eta": 0.4, "lr": 1e-2}, {"tau": 0.6}, {"share": 0.25}],
    ids=str,
)
@pytest.mark.parametrize(("size", "count"), [(1, 80), (20, 150), (90, 500)])
def test_pace_by_images(spec: dict[str, Any], size: int, count: int) -> None:
    """Past the first 64 images, in batches of one image, of less than 64 and of more, with a short one at the end."""
    method, reference, worst = follow(spec | {"pace": "image"}, size=size, count=count)
    assert worst < 1e-9
    check_state(method, reference)
    assert reference.images == count > 64


def test_pace_by_images_is_the_published_one_in_batches_of_64() -> None:
    tower, prototypes, anchors = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    published, paced = lmr.create("lmr", clip), lmr.create('lmr_variants(pace="image")', clip)
    for images in make_images(anchors, 5 * 64).split(64):
        assert (published.step(images).logits - paced.step(images).logits).abs().max() < 1e-9
    assert paced.state["images"].item() == published.state["images"].item() == 5 * 64
    assert paced.state["steps"].item() == 64 * published.state["steps"].item()


@pytest.mark.parametrize("spec", [{}, {"emit": "before", "lr": 5e-3}], ids=str)
def test_second_opinion(spec: dict[str, Any]) -> None:
    """Autograd instead of the closed form."""
    method, reference, worst = follow(spec, step_by_autograd=True)
    assert worst < 1e-9
    check_state(method, reference)


@pytest.mark.parametrize("spec", [{}, {"emit": "before"}, {"positives": "top1"}, {"gamma0": 0.3, "beta": 3.0}], ids=str)
@pytest.mark.parametrize("seed", [1, 12, 22, 27])
def test_float32_follows_the_float64_reference(spec: dict[str, Any], seed: int) -> None:
    """Adam's early steps are nearly signs: the test also makes sure that rounding can turn neither a sign nor a set."""
    method, reference, worst = follow(spec, dtype=torch.float32, seed=seed)
    assert worst < 1e-3
    assert min(event["slack"] for event in reference.history) > 1e-6
    for event in reference.history:
        if event["stepped"]:
            size = torch.cat([gradient.flatten() for gradient in event["gradients"]]).abs()
            assert size.min() > 1e-5 * size.max()
    check_state(method, reference, 1e-3)


def test_nothing_reliable_means_no_step() -> None:
    """Not even one of momentum: norms, moments, count and mass stay, and the answer is that of the tower as it was."""
    tower, prototypes, anchors = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    method = lmr.create("lmr(tau=0.4)", clip)
    images = make_images(anchors, 40)
    method.step(images[:20])
    sure = method.predict(images).logits - method.state["bias"]
    doubtful = images[sure.softmax(1).amax(1) < 0.4]
    assert len(doubtful) >= 4
    before, expected = copy_state(method), method.predict(doubtful).logits
    answer = method.step(doubtful)
    assert torch.equal(answer.logits, expected)
    assert answer.info["gate_share"] == 0
    assert answer.info["loss"] == 0
    assert answer.info["stepped"] is False
    assert before["steps"].item() == 1
    for key in ("norms", "first", "second", "steps", "mass"):
        assert torch.equal(method.state[key], before[key]), key
    assert not torch.equal(method.state["bias"], before["bias"])


@pytest.mark.parametrize("classes", [2, 12])
def test_all_classes_protected_means_no_step(classes: int) -> None:
    method, reference, worst = follow({"delta": 3.0, "tau": 0.0}, classes)
    assert worst < 1e-9
    check_state(method, reference)
    assert method.state["steps"].item() == 0
    assert not method.state["mass"].any()
    assert torch.equal(method.state["norms"][0], method.bank.start)


def test_values_for_few_classes_are_those_published_for_ten() -> None:
    method = lmr.find_method("lmr")
    for classes in (2, 10, 29):
        assert method.choose_values(classes) == method.card.presets["cifar10-c"].values == {"gamma0": 0.3, "beta": 3.0}
    for classes in (30, 100, 1000):
        assert method.choose_values(classes) == {}
