"""Rates per image: any cut of a stream into batches gives the same memory, gain and time."""

from __future__ import annotations

import math

import pytest
import torch

from lmr.core.functional.pace import count_waiting, pace_bias
from lmr.core.streams import Streams


def make_batch(*sizes: int) -> Streams:
    """A batch with this number of images of each stream."""
    return Streams(torch.arange(len(sizes)), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)))


@pytest.mark.parametrize("start", [1, 20, 40, 64, 500])
def test_any_cut_of_a_stream_fades_alike(start: int) -> None:
    """Memory and gain depend on how many images came and not on how they were batched, also across the first 64."""
    before = torch.tensor([start])
    gain, memory = pace_bias(before, make_batch(48), 0.05, 0.8)
    parts = [pace_bias(before + first, make_batch(size), 0.05, 0.8) for first, size in ((0, 1), (1, 16), (17, 31))]
    assert sum(part[0].item() for part in parts) == pytest.approx(gain.item())
    assert math.prod(part[1].item() for part in parts) == pytest.approx(memory.item())


def test_a_step_stands_for_the_images_since_the_last_one() -> None:
    """At most a usual batch, as a usual batch without a step does not make the next one larger."""
    waiting, batch = torch.tensor([0, 5, 63, 64, 10]), make_batch(1, 1, 8, 64, 200)
    assert count_waiting(waiting, batch).tolist() == [1, 6, 64, 64, 200]
