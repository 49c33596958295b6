"""Selected samples, against the definition in plain Python."""

from __future__ import annotations

import itertools
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmr.core.functional.pace import select_numbers, select_samples
from lmr.core.streams import Streams


def select(index: torch.Tensor, streams: int, share: float) -> torch.Tensor:
    return select_samples(Streams(torch.arange(streams), index), share)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.integers(1, 100))
def test_each_stream_alone(index: list[int], percent: int) -> None:
    """As many as a share of the stream's images, rounded up; evenly spaced; whatever other streams are in the batch."""
    found = select(torch.tensor(index), 4, percent / 100).tolist()
    for stream in set(index):
        own = [chosen for chosen, number in zip(found, index, strict=True) if number == stream]
        wanted = -(-Fraction(percent, 100) * len(own) // 1)
        assert sum(own) == wanted
        assert own[-1]
        places = [-1, *(k for k, chosen in enumerate(own) if chosen)]
        gaps = {after - before for before, after in itertools.pairwise(places)}
        assert max(gaps) - min(gaps) <= 1


def test_a_quarter_of_a_batch() -> None:
    chosen = select(torch.zeros(8, dtype=torch.int64), 1, 0.25)
    assert chosen.nonzero().flatten().tolist() == [3, 7]
    assert select(torch.zeros(100, dtype=torch.int64), 1, 0.07).sum() == 7  # 0.07 * 100 is above 7
    assert select(torch.zeros(1, dtype=torch.int64), 1, 1e-9).all()


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 100), st.integers(0, 10_000))
def test_numbers_of_a_stream(percent: int, first: int) -> None:
    """Of the first n images the share of n, rounded up, whatever the batches; the first image is always selected."""
    numbers = torch.arange(first, first + 50)
    found = select_numbers(numbers, percent / 100).tolist()
    counts = [-(-Fraction(percent, 100) * n // 1) for n in range(first, first + 51)]
    assert found == [after > before for before, after in itertools.pairwise(counts)]
    assert select_numbers(torch.zeros(1, dtype=torch.int64), percent / 100).all()
