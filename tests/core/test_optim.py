"""Adam on rows against torch.optim.Adam on each row alone, and against the formulas."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
@pytest.mark.parametrize(
    ("lr", "betas", "eps"), [(1e-3, (0.9, 0.999), 1e-8), (1.5e-3, (0.9, 0.999), 1e-8), (0.1, (0.5, 0.9), 1e-2)]
)
def test_rows_are_independent_adams(
    dtype: torch.dtype, tolerance: float, lr: float, betas: tuple[float, float], eps: float
) -> None:
    """Twenty steps; row k only joins at step 5 k, so the rows have different step counts all the time."""
    torch.manual_seed(0)
    rows = torch.randn(4, 6, dtype=dtype)
    leaves = [row.clone().requires_grad_() for row in rows]
    adams = [torch.optim.Adam([leaf], lr=lr, betas=betas, eps=eps) for leaf in leaves]
    state = (rows, torch.zeros_like(rows), torch.zeros_like(rows), torch.zeros(4, dtype=torch.int64))
    for step in range(20):
        gradient = torch.randn(4, 6, dtype=dtype) * 10.0 ** torch.randint(-6, 3, (4, 6))
        moved = adam_step(state[0], gradient, *state[1:], lr, betas, eps)
        joined = torch.tensor([step >= 5 * k for k in range(4)])
        state = tuple(
            torch.where(joined.view(-1, *[1] * (new.ndim - 1)), new, old) for new, old in zip(moved, state, strict=True)
        )
        for k in range(4):
            if joined[k]:
                leaves[k].grad = gradient[k].clone()
                adams[k].step()
                kept = adams[k].state[leaves[k]]
                assert torch.allclose(state[1][k], kept["exp_avg"], rtol=tolerance, atol=tolerance)
                assert torch.allclose(state[2][k], kept["exp_avg_sq"], rtol=tolerance, atol=tolerance)
            assert (state[0][k] - leaves[k]).abs().max() <= tolerance
    assert state[3].tolist() == [20, 15, 10, 5]


def test_defaults_are_those_of_torch() -> None:
    leaf = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([leaf], lr=1e-3)
    state = (leaf.detach().clone()[None], torch.zeros(1, 2).double(), torch.zeros(1, 2).double(), torch.zeros(1).long())
    for step in range(20):
        leaf.grad = torch.tensor([math.sin(step + 1), 1e-8 * (step + 1)], dtype=torch.float64)
        state = adam_step(state[0], leaf.grad[None], *state[1:], 1e-3)
        adam.step()
        assert torch.allclose(state[0][0], leaf.detach(), rtol=0, atol=1e-15)


@settings(max_examples=50, deadline=None)
@given(
    gradients=st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=6),
    lr=st.sampled_from([1e-3, 0.2]),
    start=st.floats(-3, 3),
)
def test_formulas(gradients: list[float], lr: float, start: float) -> None:
    """Kingma and Ba, algorithm 1, in plain numbers."""
    value, first, second = start, 0.0, 0.0
    state = tuple(torch.tensor([[x]], dtype=torch.float64) for x in (start, 0.0, 0.0))
    count = torch.zeros(1, dtype=torch.int64)
    for t, g in enumerate(gradients, 1):
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        value -= lr * (first / (1 - 0.9**t)) / (math.sqrt(second / (1 - 0.999**t)) + 1e-8)
        *state, count = adam_step(state[0], torch.tensor([[g]], dtype=torch.float64), *state[1:], count, lr)
        assert [x.item() for x in state] == pytest.approx([value, first, second], rel=1e-10, abs=1e-12)
        assert count.item() == t


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-3, 1e6), st.sampled_from([-1, 1]))
def test_first_step_is_the_sign(size: float, sign: int) -> None:
    """However large the gradient, the first step is lr against its sign; no gradient, no step."""
    gradient = torch.tensor([[sign * size, 0.0]], dtype=torch.float64)
    zero = torch.zeros_like(gradient)
    moved, *_ = adam_step(zero, gradient, zero, zero, torch.zeros(1, dtype=torch.int64), 1e-3)
    assert moved[0, 0].item() == pytest.approx(-sign * 1e-3, rel=2e-5)
    assert moved[0, 1].item() == 0


def test_nothing_is_changed_in_place() -> None:
    torch.manual_seed(0)
    given_ = [torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 3), torch.rand(2, 3), torch.tensor([4, 0])]
    copies = [t.clone() for t in given_]
    adam_step(*given_, 1e-3)
    assert all(torch.equal(a, b) for a, b in zip(given_, copies, strict=True))


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
