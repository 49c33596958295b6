"""Adam on rows against torch.optim.Adam on each row alone, and against the formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmr.core.optim import Optimizer


def adam_step(
    rows: Tensor, gradient: Tensor, first: Tensor, second: Tensor, steps: Tensor, lr: float,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, taken: int | Tensor = 1, unit: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    optimizer = Optimizer("adam", lr, betas=betas, eps=eps, unit=unit)
    moved, moments = optimizer.step(rows, gradient, {"first": first, "second": second, "steps": steps}, taken)
    return moved, moments["first"], moments["second"], moments["steps"]


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-3, 1e6), st.sampled_from([-1, 1]))
def test_first_step_is_the_sign(size: float, sign: int) -> None:
    """However large the gradient, the first step is lr against its sign; no gradient, no step."""
    gradient = torch.tensor([[sign * size, 0.0]], dtype=torch.float64)
    zero = torch.zeros_like(gradient)
    moved, *_ = adam_step(zero, gradient, zero, zero, torch.zeros(1, dtype=torch.int64), 1e-3)
    assert moved[0, 0].item() == pytest.approx(-sign * 1e-3, rel=2e-5)
    assert moved[0, 1].item() == 0


def test_shares_of_a_step_fade_like_the_whole() -> None:
    """Four quarters of a step with one gradient move the moments as a whole step does, and the count by as much."""
    torch.manual_seed(3)
    rows, gradient = torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    first, second = torch.randn(2, 5, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
    count = torch.tensor([64, 640])
    whole = adam_step(rows, gradient, first, second, count // 64, 1e-3)
    state = (rows, first, second, count)
    for _ in range(4):
        state = adam_step(state[0], gradient, *state[1:], 1e-3, taken=torch.tensor([16, 16]), unit=64)
    assert torch.allclose(state[1], whole[1], rtol=1e-12)
    assert torch.allclose(state[2], whole[2], rtol=1e-12)
    assert state[3].tolist() == [128, 704]


def test_rows_with_different_shares_are_independent() -> None:
    torch.manual_seed(4)
    rows, gradient = torch.randn(3, 5), torch.randn(3, 5)
    zeros, count, taken = torch.zeros(3, 5), torch.tensor([0, 7, 200]), torch.tensor([1, 64, 30])
    together = adam_step(rows, gradient, zeros, zeros, count, 1e-2, taken=taken, unit=64)
    for k in range(3):
        part = slice(k, k + 1)
        alone = adam_step(
            rows[part], gradient[part], zeros[part], zeros[part], count[part], 1e-2, taken=taken[part], unit=64
        )
        assert all(torch.equal(one[part], other) for one, other in zip(together, alone, strict=True))
