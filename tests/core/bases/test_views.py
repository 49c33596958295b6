"""Methods with views: own and given ones, the number of an image, batches and streams, refused inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lmr
from few_views import create
from pocket import load_pocket

NAMES = ["red ring", "blue star", "plain cross"]
WITH_VIEWS = [name for name in lmr.list_methods() if lmr.find_method(name).takes_views]


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    return load_pocket().classifier(NAMES)


def draw(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def make(method: lmr.Method, image: Tensor, number: int) -> Tensor:
    """The views of an image as the method makes them."""
    assert isinstance(method, lmr.ViewMethod)
    return torch.cat([image.unsqueeze(0), method.maker.make(image, number, method.views - 1)])


def test_given_views_are_used_as_own_ones_are(clip: lmr.ZeroShot) -> None:
    images = draw(5)
    own, given = (lmr.create("mta(views=6, seed=3)", clip) for _ in range(2))
    for first in (0, 3):
        part = images[first : first + 3]
        views = torch.stack([make(own, image, first + k) for k, image in enumerate(part)])
        assert torch.equal(given.step(views).logits, own.step(part).logits)
    assert torch.equal(given.state["seen"], own.state["seen"])


@pytest.mark.parametrize("name", WITH_VIEWS)
def test_every_method_with_views_takes_given_ones_and_serves_images_one_by_one(name: str, clip: lmr.ZeroShot) -> None:
    """Views made from the numbers of the images, whole batches and single images: the same answers to the bit."""
    images = draw(5)
    own, given, single = (create(name, clip) for _ in range(3))
    assert isinstance(own, lmr.ViewMethod)
    for first, count in ((0, 3), (3, 2)):
        part = images[first : first + count]
        made = [own.maker.make(image, first + k, own._count_made()) for k, image in enumerate(part)]
        views = torch.stack([torch.cat([image.unsqueeze(0), crops]) for image, crops in zip(part, made, strict=True)])
        assert views.shape[1] > 2
        answer = own.step(part).logits
        assert torch.equal(given.step(views).logits, answer)
        assert torch.equal(torch.cat([single.step(image).logits for image in part.split(1)]), answer)
    for method in (given, single):
        assert all(torch.equal(value, own.state[key]) for key, value in method.state.items())


@pytest.mark.parametrize("name", [name for name in WITH_VIEWS if lmr.find_method(name).memory_span == "image"])
def test_episodic_method_keeps_only_the_number_of_images(name: str, clip: lmr.ZeroShot) -> None:
    busy, fresh, images = create(name, clip), create(name, clip), draw(4)
    busy.step(draw(3, seed=5))
    assert set(busy.state) == {"seen", "predicted"}
    fresh.state["seen"] += 3
    looked = busy.predict(images).logits
    assert torch.equal(looked, fresh.step(images).logits)
    assert torch.equal(looked, busy.step(images).logits)


def test_views_of_half_precision_are_made_in_float32() -> None:
    clip = load_pocket().classifier(NAMES).to(torch.bfloat16)
    method = lmr.create("tpt(views=4)", clip)
    answer = method.step(draw(2).bfloat16())
    assert answer.logits.dtype == torch.float32
    assert answer.logits.isfinite().all()
