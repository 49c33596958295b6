"""A small tower with classes and images on which LMR meets every kind of sample, for tests against the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr import Method
from lmr_reference import Tower

SEED = 36  # a tower and a stream that reach every branch, see test_stream_holds_every_kind_of_sample


def make_problem(classes: int = 12, seed: int = SEED, sideways: bool = False) -> tuple[Tower, Tensor, Tensor]:
    """A tower, prototypes [C, 10] in groups of near ones, and an anchor image [C, 3, 6] for each class, in float64."""
    torch.manual_seed(seed)
    tower = Tower(sideways).double()
    centres = torch.randn(-(-classes // 4), 3, 6, dtype=torch.float64)
    anchors = centres.repeat_interleave(4, 0)[:classes] + 0.1 * torch.randn(classes, 3, 6, dtype=torch.float64)
    with torch.no_grad():
        return tower, tower(anchors), anchors


def make_images(anchors: Tensor, count: int, seed: int = 0) -> Tensor:
    """Anchors with little, some and much noise: clear, doubtful and hopeless images."""
    torch.manual_seed(seed)
    noise = torch.tensor([0.1, 0.5, 1.5])[torch.randint(3, (count, 1, 1))]
    return anchors[torch.randint(len(anchors), (count,))] + noise * torch.randn(count, 3, 6)


def copy_state(method: Method) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in method.state.items()}
