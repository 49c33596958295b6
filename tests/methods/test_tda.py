"""The library's TDA against lists, loops and plain floats, image by image, over whole streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr


class Plain:
    """TDA on unit features, straight from the paper: dicts of sorted lists, one image at a time."""

    def __init__(self, prototypes: Tensor, scale: float, **given: Any) -> None:
        own = {"pos_alpha": 2.0, "pos_beta": 5.0, "pos_capacity": 3, "neg_alpha": 0.117, "neg_beta": 1.0}
        own |= {"neg_capacity": 2, "entropy": (0.2, 0.5), "mask": (0.03, 1.0), **given}
        self.own, self.scale = own, scale
        self.prototypes = [[x / math.hypot(*row) for x in row] for row in prototypes.tolist()]
        self.positive: dict[int, list[dict[str, Any]]] = {}
        self.negative: dict[int, list[dict[str, Any]]] = {}
        self.events: set[str] = set()

    def insert(self, cache: dict[int, list[dict[str, Any]]], word: str, label: int, item: dict[str, Any]) -> None:
        places = cache.setdefault(label, [])
        if len(places) < self.own[f"{word}_capacity"]:
            places.append(item)
            self.events.add(f"{word} appended")
        elif places and item["h"] < places[-1]["h"]:
            places[-1] = item
            self.events.add(f"{word} replaced")
        else:
            self.events.add(f"{word} refused")
        places.sort(key=lambda entry: entry["h"])

    def step(self, feature: list[float]) -> list[float]:
        own, length = self.own, math.hypot(*feature)
        z = [x / length for x in feature]
        logits = [self.scale * sum(a * b for a, b in zip(z, t, strict=True)) for t in self.prototypes]
        total = sum(math.exp(x - max(logits)) for x in logits)
        q = [math.exp(x - max(logits)) / total for x in logits]
        h = -sum(x * math.log(x) for x in q if x > 0)
        label = logits.index(max(logits))
        self.insert(self.positive, "pos", label, {"key": z, "h": h})
        share = h / math.log2(len(logits))
        if share <= own["entropy"][0] or share >= own["entropy"][1]:
            self.events.add("too certain" if share <= own["entropy"][0] else "too doubtful")
        else:
            self.insert(self.negative, "neg", label, {"key": z, "h": h, "q": q})
        out = list(logits)
        for c, places in self.positive.items():
            for entry in places:
                near = sum(a * b for a, b in zip(z, entry["key"], strict=True))
                out[c] += own["pos_alpha"] * math.exp(-own["pos_beta"] * (1 - near))
        for places in self.negative.values():
            for entry in places:
                near = sum(a * b for a, b in zip(z, entry["key"], strict=True))
                for c, x in enumerate(entry["q"]):
                    if own["mask"][0] < x < own["mask"][1]:
                        out[c] -= own["neg_alpha"] * math.exp(-own["neg_beta"] * (1 - near))
        return out

    def count(self, cache: dict[int, list[dict[str, Any]]]) -> int:
        return sum(len(places) for places in cache.values())


def make_stream(classes: int, count: int, width: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Prototypes [C, D], and features [N, D] from clear to hopeless that are not of unit length."""
    torch.manual_seed(seed)
    prototypes = torch.randn(classes, width, dtype=torch.float64)
    noise = torch.rand(count, 1, dtype=torch.float64) * 1.5
    features = prototypes[torch.randint(classes, (count,))] + noise * torch.randn(count, width, dtype=torch.float64)
    return prototypes, features * (0.5 + torch.rand(count, 1, dtype=torch.float64))


def make(prototypes: Tensor, spec: str = "tda", scale: float = 12.0) -> lmr.Method:
    return lmr.create(spec, lmr.ZeroShot(nn.Identity(), prototypes, scale))


def copy_state(method: lmr.Method) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in method.state.items()}


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


EVERYTHING = {f"{word} {what}" for word in ("pos", "neg") for what in ("appended", "replaced", "refused")}
EVERYTHING |= {"too certain", "too doubtful"}


@pytest.mark.parametrize(
    ("classes", "count", "given"),
    [
        (10, 400, {}),
        (100, 500, {}),
        (2, 200, {}),
        (10, 300, {"pos_alpha": 0.7, "pos_beta": 2.5, "neg_alpha": 1.3, "neg_beta": 4.0}),
        (10, 300, {"pos_capacity": 1, "neg_capacity": 5, "entropy": (0.1, 0.6), "mask": (0.2, 0.6)}),
        (10, 150, {"pos_capacity": 0}),
        (10, 150, {"neg_capacity": 0}),
    ],
    ids=str,
)
def test_stream_is_that_of_the_reference(classes: int, count: int, given: dict[str, Any]) -> None:
    prototypes, features = make_stream(classes, count)
    words = ", ".join(f"{key}={value!r}" for key, value in given.items())
    method, plain = make(prototypes, f"tda({words})"), Plain(prototypes, 12.0, **given)
    for images in features.split(32):
        answer = method.step(images)
        expected = torch.tensor([plain.step(row) for row in images.tolist()], dtype=torch.float64)
        torch.testing.assert_close(answer.logits, expected, atol=1e-9, rtol=0)
        assert answer.info["positive"] == plain.count(plain.positive)
        assert answer.info["negative"] == plain.count(plain.negative)
        assert (answer.info["stepped"], answer.info["finite"]) == (True, True)
    for sign, cache in (("pos", plain.positive), ("neg", plain.negative)):
        for c, places in cache.items():
            kept = method.state[f"{sign}_keys"][0, c, : len(places)]
            expected = torch.tensor([entry["key"] for entry in places], dtype=torch.float64).view(kept.shape)
            torch.testing.assert_close(kept, expected, atol=1e-12, rtol=0)
    if not given and classes == 10:
        assert plain.events == EVERYTHING  # otherwise the stream is too tame to test anything


def make_twins(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features that differ only where no prototype looks: equal entropies to the last bit, other keys."""
    torch.manual_seed(seed)
    prototypes = nn.functional.pad(torch.randn(3, 4, dtype=torch.float64), (0, 3))
    seen = torch.randn(5, 4, dtype=torch.float64)[torch.randint(5, (count,))]
    unseen = torch.tensor([[x, y, z] for x in (1, -1) for y in (1, -1) for z in (1, -1)], dtype=torch.float64)
    return prototypes, torch.cat([seen, unseen[torch.randint(8, (count,))]], 1)


def test_among_equal_entropies_the_first_comes_first_and_stays() -> None:
    prototypes, features = make_twins(200)
    spec = {"entropy": (-1.0, 1.0), "pos_capacity": 4}
    method, plain = make(prototypes, "tda(entropy=(-1.0, 1.0), pos_capacity=4)", 3.0), Plain(prototypes, 3.0, **spec)
    for images in features.split(7):
        expected = torch.tensor([plain.step(row) for row in images.tolist()], dtype=torch.float64)
        torch.testing.assert_close(method.step(images).logits, expected, atol=1e-9, rtol=0)
    assert {"pos replaced", "neg replaced", "pos refused", "neg refused"} <= plain.events
    ties = [row.unique().numel() < row.numel() for row in method.state["pos_entropy"][0]]
    assert any(ties)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_both_ends_of_the_entropy_window_are_outside(classes: int) -> None:
    prototypes, features = make_stream(classes, 1, seed=3)
    probe = make(prototypes)
    probe.step(features)
    share = probe.state["pos_entropy"].min().item() / math.log2(classes)
    assert 0 < share < math.log(2)
    below, above = math.nextafter(share, 0), math.nextafter(share, 1)
    for window, entered in (((below, above), 1), ((share, 1.0), 0), ((0.0, share), 0)):
        assert make(prototypes, f"tda(entropy={window})").step(features).info["negative"] == entered


def test_both_ends_of_the_mask_are_outside_and_the_own_class_is_in_it() -> None:
    prototypes, features = make_stream(4, 1, seed=1)
    p = make(prototypes, "zeroshot", 1.0).predict(features).probabilities[0]
    low, high = p.min().item(), p.max().item()
    cases = [((low, high), (p > low) & (p < high)), ((low, 1.0), p > low), ((0.0, high), p < high)]
    for mask, expected in cases:
        method = make(prototypes, f"tda(entropy=(-1.0, 1.0), mask={mask})", 1.0)
        method.step(features)
        assert 0 < int(expected.sum()) < 4
        assert torch.equal(method.state["neg_mask"][0, p.argmax(), 0], expected.double())
    assert cases[1][1][p.argmax()]


def test_predict_answers_as_if_the_image_came_now() -> None:
    prototypes, features = make_stream(10, 120)
    method = make(prototypes)
    for images in features.split(8):
        before = copy_state(method)
        ahead = method.predict(images).logits
        assert are_equal(before, method.state)
        kept = method.state_dict()
        for k in range(len(images)):
            method.load_state_dict(kept)
            assert torch.equal(method.step(images[k : k + 1]).logits[0], ahead[k])
        method.load_state_dict(kept)
        method.step(images)
