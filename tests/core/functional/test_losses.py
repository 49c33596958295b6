"""Losses that several methods share, on numbers that can be followed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lmr.core.functional.losses import likelihood_ratio


def test_likelihood_ratio_has_no_gradient_through_a_certain_class() -> None:
    logits = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
    expected = -sum(q * math.log(q / (1 - q) + 1e-5) for q in (0.7, 0.2, 0.1))
    assert likelihood_ratio(logits).item() == pytest.approx(expected)
    certain = torch.tensor([[9.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(likelihood_ratio(certain).sum(), certain)
    q = certain.softmax(1)[0, 1]
    (part,) = torch.autograd.grad(-q * (q / (1 - q) + 1e-5).log(), certain)
    torch.testing.assert_close(whole, part)  # of the other class alone
