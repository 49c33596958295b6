"""Class shares: those that people give by name, those of counts, and what does not fit."""

from __future__ import annotations

import pytest
import torch

from lmr import LmrError
from lmr.core.functional.prior import parse_prior, share_counts, share_names

NAMES = ["car", "pickup truck", "bus", "dog"]


def test_named_classes_have_their_share_and_the_others_the_rest() -> None:
    assert share_names({"Pickup_Truck": 0.7}, NAMES) == pytest.approx((0.1, 0.7, 0.1, 0.1))
    assert share_names({"car": 1}, NAMES) == (1.0, 0.0, 0.0, 0.0)
    assert share_names({}, NAMES) == (0.25,) * 4
    rounded = dict.fromkeys(NAMES, 0.249)  # as people write them down
    assert share_names(rounded, NAMES) == (0.249,) * 4


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ({"cars": 0.5}, r"no class 'cars' to give a share\. Did you mean 'car'\? The classes are: car, pickup truck,"),
        ({"car": 0.8, "dog": 0.3}, r"sum of at most 1, got 1\.1"),
        (dict.fromkeys(NAMES, 0.2), r"sum of 1, got 0\.8"),
        ({"car": -0.1}, r"a share from 0 to 1 for the class 'car', got -0\.1"),
        ({"car": "much"}, "a share from 0 to 1 for the class 'car', got 'much'"),
        ({"car": float("nan")}, "got nan"),
        ({"car": 0.1, "Car": 0.2}, "has two shares"),
    ],
)
def test_shares_that_do_not_fit_are_refused(shares: dict[str, float], sentence: str) -> None:
    with pytest.raises(LmrError, match=sentence):
        share_names(shares, NAMES)


def test_name_of_two_classes_is_refused() -> None:
    with pytest.raises(LmrError, match="'crane' stands for two classes"):
        share_names({"crane": 0.5}, ["crane", "dog", "crane"])


def test_given_shares_are_positive_and_have_the_sum_one() -> None:
    like = torch.zeros(4, 8, dtype=torch.float64)
    assert parse_prior("uniform", like).tolist() == [0.25] * 4
    shares = parse_prior((3, 1, 0, 0), like)
    assert shares.sum().item() == pytest.approx(1)
    assert shares.tolist() == pytest.approx([0.75, 0.25, 0.00025, 0.00025], rel=1e-3)
    for wrong in ((1.0, 1.0), (0.0,) * 4, (1.0, -1.0, 1.0, 1.0)):
        with pytest.raises(LmrError, match="as the prior"):
            parse_prior(wrong, like)


def test_counts_begin_with_even_shares() -> None:
    counts = torch.tensor([[0.0, 0.0], [24.0, 0.0]])
    assert share_counts(counts).tolist() == [[0.5, 0.5], [0.875, 0.125]]
