"""MEMO against torch.optim on a copy of the tower for each image."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
from bimodal_reference import list_norms
from lmr.methods.memo import MEMO
from pocket import load_pocket
from view_problem import ViewProblem, encode_image, make_view_problem, make_views, measure_mean_entropy

SIZES, VIEWS = (3, 2, 2), 7


def adapt(problem: ViewProblem, views: Tensor, name: str, lr: float, decay: float, everything: bool) -> Tensor:
    """The logits [C] of one image after its step."""
    tower = copy.deepcopy(problem.model.image)
    norms = [number for norm in list_norms(tower) for number in (norm.weight, norm.bias)]
    numbers = list(tower.parameters()) if everything else norms
    for number in numbers:
        number.requires_grad_()
    kinds: dict[str, Any] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optim = kinds[name](numbers, lr, weight_decay=decay)
    with torch.no_grad():
        texts = problem.encode_texts(problem.context)

    def compare(images: Tensor) -> Tensor:
        return problem.scale * torch.stack([encode_image(tower, image) for image in images]) @ texts.T

    measure_mean_entropy(compare(views[1:])).backward()
    optim.step()
    with torch.no_grad():
        return compare(views[:1])[0]


@pytest.mark.parametrize("weights", ["norms", "all"])
@pytest.mark.parametrize(("name", "lr", "decay"), [("adamw", 1e-5, 0.01), ("sgd", 5e-3, 0.1), ("adam", 1e-3, 0.01)])
def test_stream_is_that_of_the_reference(name: str, lr: float, decay: float, weights: str) -> None:
    problem = make_view_problem()
    spec = f"memo(optimizer={name!r}, lr={lr}, weight_decay={decay}, weights={weights!r})"
    method, plain = lmr.create(spec, problem.classifier), lmr.create("zeroshot", problem.classifier)
    for batch in range(len(SIZES)):
        views = make_views(batch, SIZES, VIEWS)
        expected = torch.stack([adapt(problem, own, name, lr, decay, weights == "all") for own in views])
        found = method.step(views)
        torch.testing.assert_close(found.logits, expected, atol=1e-8, rtol=0)
        assert found.info["stepped"] is True
        assert (expected - plain.predict(views[:, 0]).logits).abs().max() > 1e-4


def test_all_weights_step_in_single_precision_at_least() -> None:
    tower = nn.Sequential(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 8))  # all of it follows to half precision
    clip = lmr.ZeroShot(tower, torch.randn(3, 8), input_shape=(3, 2, 2)).to(torch.bfloat16)
    method, seen = lmr.create("memo(weights='all')", clip), []
    assert isinstance(method, MEMO)
    move = method._move
    method._move = lambda *rows: (seen.extend(row.dtype for row in rows), move(*rows))[1]  # type: ignore[method-assign]
    method.step(torch.randn(2, 3, 3, 2, 2).bfloat16())
    assert set(seen) == {torch.float32}


def test_image_is_not_among_the_views_that_are_made() -> None:
    problem = make_view_problem()
    method = lmr.create("memo(views=3)", problem.classifier)
    seen: list[int] = []
    handle = problem.model.image.register_forward_hook(lambda module, given, out: seen.append(len(out)))
    method.step(make_views(0, SIZES, 1)[:, 0])
    handle.remove()
    assert sum(seen) == SIZES[0] * (3 + 1)


@pytest.mark.parametrize(("mixed", "fill", "same"), [(True, 128.0, True), (True, 0.0, False), (False, 128.0, False)])
def test_views_are_those_of_augmix_on_the_published_colour(mixed: bool, fill: float, same: bool) -> None:
    clip = load_pocket().classifier(["red ring", "blue star"])
    image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))
    views = lmr.ViewMaker(0, mixed, clip.pixels, (fill, 0.0, 0.0)).make(image, 0, 40)
    given, own = (lmr.create("memo(views=40, lr=1e-3)", clip) for _ in range(2))
    answer = given.step(torch.cat([image.unsqueeze(0), views]).unsqueeze(0)).logits
    assert torch.equal(own.step(image.unsqueeze(0)).logits, answer) == same


def test_all_weights_are_counted() -> None:
    problem = make_view_problem()
    some, every = (lmr.create(f"memo(weights={kind!r})", problem.classifier).trainable for kind in ("norms", "all"))
    assert some < every == sum(value.numel() for value in problem.model.image.parameters())
