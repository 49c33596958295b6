"""Class shares: those that people give by name, those of counts, and what does not fit."""

from __future__ import annotations

import pytest
import torch

from lmr import LmrError
from lmr.core.functional.prior import PSEUDO_IMAGES, parse_prior, share_counts, share_names

NAMES = ["car", "pickup truck", "bus", "dog"]
PROTOTYPES = torch.eye(4, 6, dtype=torch.float64)


def test_named_classes_have_their_share_and_the_others_the_rest() -> None:
    assert share_names({"Pickup_Truck": 0.7}, NAMES) == pytest.approx((0.1, 0.7, 0.1, 0.1))
    assert share_names({"car": 1}, NAMES) == (1.0, 0.0, 0.0, 0.0)
    assert share_names({}, NAMES) == (0.25,) * 4
    rounded = dict.fromkeys(NAMES, 0.249)  # as people write them down
    assert share_names(rounded, NAMES) == (0.249,) * 4


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ({"cars": 0.5}, r"no class 'cars' \(did you mean 'car'\?\) to give a share\. The classes are: car, pickup"),
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


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        ((1.0, 2.0, 3.0, 4.0), (0.1, 0.2, 0.3, 0.4)),
        ((0.25,) * 4, (0.25,) * 4),
        ((1e308,) * 4, (0.25,) * 4),
        ((5e-324,) * 4, (0.25,) * 4),
        ((1e308, 0.5e308, 1e308, 1.5e308), (0.25, 0.125, 0.25, 0.375)),
    ],
)
def test_given_numbers_become_shares(prior: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert parse_prior(prior, PROTOTYPES).tolist() == pytest.approx(expected, rel=1e-12)


def test_share_of_0_becomes_a_thousandth_of_an_even_one() -> None:
    shares = parse_prior((0.0, 1.0, 1.0, 2.0), PROTOTYPES)
    raised = [0.001 / 4, 0.25, 0.25, 0.5]
    assert shares.tolist() == pytest.approx([share / sum(raised) for share in raised], rel=1e-12)
    assert shares.sum().item() == pytest.approx(1.0)


def test_counts_become_shares_with_pseudo_images() -> None:
    counts = torch.tensor([[0.0, 0.0, 0.0, 0.0], [10.0, 0.0, 2.5, 0.0]], dtype=torch.float64)
    shares = share_counts(counts)
    assert shares[0].tolist() == [0.25] * 4
    part = PSEUDO_IMAGES / 4
    assert shares[1].tolist() == pytest.approx([(c + part) / (12.5 + PSEUDO_IMAGES) for c in (10.0, 0.0, 2.5, 0.0)])
