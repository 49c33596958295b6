"""Views of an image: drawn from its number alone, and refused where they cannot be made."""

from __future__ import annotations

import pytest
import torch

from lmr import PixelScale, ViewMaker
from lmr.core.views.view_maker import seed_generator

SCALE = PixelScale((0.48, 0.46, 0.41), (0.27, 0.26, 0.28))
MAKERS = [ViewMaker(seed=3), ViewMaker(seed=3, mixed=True, scale=SCALE)]


def make_image(seed: int = 0) -> torch.Tensor:
    pixels = torch.randint(0, 256, (3, 16, 24), generator=torch.Generator().manual_seed(seed)).float()
    return SCALE.from_pixels(pixels)


@pytest.mark.parametrize("maker", MAKERS, ids=["crops", "augmix"])
def test_views_depend_on_seed_and_number_alone(maker: ViewMaker) -> None:
    image = make_image()
    views = maker.make(image, 7, 6)
    torch.manual_seed(99)
    maker.make(make_image(1), 3, 20)
    assert torch.equal(maker.make(image, 7, 6), views)
    assert views.shape == (6, 3, 16, 24)
    assert not torch.equal(maker.make(image, 8, 6), views)
    other = ViewMaker(4, maker.mixed, maker.scale)
    assert not torch.equal(other.make(image, 7, 6), views)
    assert len({tuple(view.flatten().tolist()) for view in views}) == 6


def test_draws_are_the_same_on_every_machine() -> None:
    torch.testing.assert_close(
        torch.rand(2, generator=seed_generator(0, 0), dtype=torch.float64),
        torch.tensor([0.3786750187423835, 0.9860658558902557], dtype=torch.float64),
        atol=1e-15,
        rtol=0,
    )


def test_mixed_views_stay_in_the_range_of_pixels() -> None:
    views = MAKERS[1].make(make_image(), 0, 40)
    mean, std = torch.tensor(SCALE.mean).view(3, 1, 1), torch.tensor(SCALE.std).view(3, 1, 1)
    pixels = 255 * (views * std + mean)
    assert pixels.min() > -1e-3
    assert pixels.max() < 255 + 1e-3
