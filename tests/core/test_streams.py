"""Streams: reductions by stream against loops over samples, whatever values other streams hold."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lmr.core.streams import Streams

INDEX = torch.tensor([2, 0, 2, 1, 2, 0])


@pytest.fixture
def streams() -> Streams:
    return Streams(torch.tensor([3, 5, 9]), INDEX)


def list_own(values: Tensor, stream: int) -> list[Tensor]:
    return [value for value, number in zip(values, INDEX.tolist(), strict=True) if number == stream]


def test_sums_means_and_spread_are_those_of_single_streams(streams: Streams) -> None:
    values = torch.randn(6, 4, dtype=torch.float64)
    assert (streams.count, streams.sizes.tolist()) == (3, [2, 1, 3])
    for k in range(3):
        own = torch.stack(list_own(values, k))
        assert torch.allclose(streams.sum(values)[k], own.sum(0))
        assert torch.allclose(streams.mean(values)[k], own.mean(0))
        assert torch.equal(streams.pick(values, k), own)
    assert torch.equal(streams.repeat(values[:3]), values[:3][INDEX])


def test_values_that_are_not_finite_stay_in_their_stream(streams: Streams) -> None:
    values = torch.ones(6, 2)
    values[3] = math.nan
    assert streams.sum(values)[[0, 2]].tolist() == [[2, 2], [3, 3]]
    assert streams.mean(values)[1].isnan().all()
    assert streams.all(values[:, 0].isfinite()).tolist() == [True, False, True]


def test_ranks_count_the_samples_of_a_stream(streams: Streams) -> None:
    assert streams.rank().tolist() == [0, 0, 1, 0, 2, 1]


@pytest.mark.parametrize("samples", [torch.tensor([0, 3]), slice(2, 5), INDEX == 2], ids=["numbers", "slice", "bool"])
def test_some_samples_keep_their_streams(streams: Streams, samples: Tensor | slice) -> None:
    some = streams.take(samples)
    assert torch.equal(some.active, streams.active)
    assert torch.equal(some.index, INDEX[samples])
