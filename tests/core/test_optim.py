"""Every kind of optimiser against torch.optim over twenty steps, each row on its own clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lmr.core.optim import Optimizer

SIZE, STEPS = 7, 20
LATE = (0, 3, 11)  # when each row takes its first step
SHARE = {torch.float64: 1e-12, torch.float32: 1e-5}


def make_torch(name: str, leaf: Tensor, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD([leaf], lr=lr, momentum=0.9, nesterov=True, weight_decay=weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind([leaf], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)


def make_gradients(dtype: torch.dtype) -> Tensor:
    """Gradients [steps, SIZE] of very different sizes, some of them exactly zero."""
    torch.manual_seed(4)
    scale = torch.tensor([1e-9, 1e-6, 1e-3, 1.0, 10.0, 1.0, 0.0], dtype=torch.float64)
    gradients = torch.randn(STEPS, SIZE, dtype=torch.float64) * scale
    gradients[::4, 5] = 0
    return gradients.to(dtype)


def follow_torch(name: str, start: Tensor, gradients: Tensor, lr: float, decay: float) -> tuple[list[Tensor], Any]:
    leaf = start.clone().requires_grad_()
    optimizer = make_torch(name, leaf, lr, decay)
    path = []
    for gradient in gradients:
        leaf.grad = gradient.clone()
        optimizer.step()
        path.append(leaf.detach().clone())
    return path, optimizer.state[leaf]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("decay", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("lr", [2.5e-4, 0.05])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_twenty_steps_are_those_of_torch(name: Any, lr: float, decay: float, dtype: torch.dtype) -> None:
    start, gradients = 1 + 0.2 * torch.arange(SIZE, dtype=dtype), make_gradients(dtype)
    path, memory = follow_torch(name, start, gradients, lr, decay)
    optimizer = Optimizer(name, lr, decay)
    rows = start.unsqueeze(0)
    moments = optimizer.begin(rows)
    for number, (gradient, expected) in enumerate(zip(gradients, path, strict=True), 1):
        rows, moments = optimizer.step(rows, gradient.unsqueeze(0), moments)
        torch.testing.assert_close(rows[0], expected, rtol=SHARE[dtype], atol=SHARE[dtype])
        assert moments["steps"].tolist() == [number]
    names = {"momentum": "momentum_buffer"} if name == "sgd" else {"first": "exp_avg", "second": "exp_avg_sq"}
    assert set(moments) == {*names, "steps"}
    for own, theirs in names.items():
        assert moments[own].dtype == dtype
        torch.testing.assert_close(moments[own][0], memory[theirs], rtol=SHARE[dtype], atol=1e-3 * SHARE[dtype])


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_every_row_has_its_own_clock(name: Any) -> None:
    torch.manual_seed(5)
    optimizer = Optimizer(name, 0.02, 0.05)
    start = torch.randn(len(LATE), SIZE, dtype=torch.float64)
    gradients = torch.randn(STEPS, len(LATE), SIZE, dtype=torch.float64)
    rows, moments = start, optimizer.begin(start)
    for number, gradient in enumerate(gradients):
        due = torch.tensor([late <= number for late in LATE])
        moved, fresh = optimizer.step(rows[due], gradient[due], {key: value[due] for key, value in moments.items()})
        rows = rows.clone()
        rows[due] = moved
        for key, value in fresh.items():
            moments[key][due] = value
    assert moments["steps"].tolist() == [STEPS - late for late in LATE]
    for k, late in enumerate(LATE):
        path, _ = follow_torch(name, start[k], gradients[late:, k], 0.02, 0.05)
        torch.testing.assert_close(rows[k], path[-1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, False), (0.0, False), (0.5, True)])
def test_other_momentum_is_that_of_torch(momentum: float, nesterov: bool) -> None:
    rows, gradients = torch.ones(1, SIZE, dtype=torch.float64), make_gradients(torch.float64)
    leaf = torch.ones(SIZE, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.SGD([leaf], lr=0.05, momentum=momentum, nesterov=nesterov)
    ours = Optimizer("sgd", 0.05, momentum=momentum, nesterov=nesterov)
    moments = ours.begin(rows)
    for gradient in gradients:
        leaf.grad = gradient.clone()
        theirs.step()
        rows, moments = ours.step(rows, gradient.unsqueeze(0), moments)
        torch.testing.assert_close(rows[0], leaf.detach(), rtol=1e-12, atol=1e-12)


def test_shares_of_a_step_fade_like_the_whole() -> None:
    """Four quarters of a step with one gradient move the moments as a whole step does, and the count by as much."""
    torch.manual_seed(3)
    rows, gradient = torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    first, second = torch.randn(2, 5, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
    count = torch.tensor([64, 640])

    def step(optimizer: Optimizer, rows: Tensor, first: Tensor, second: Tensor, steps: Tensor, taken: Any = 1) -> Any:
        moved, moments = optimizer.step(rows, gradient, {"first": first, "second": second, "steps": steps}, taken)
        return moved, moments["first"], moments["second"], moments["steps"]

    whole = step(Optimizer("adam", 1e-3), rows, first, second, count // 64)
    state = (rows, first, second, count)
    for _ in range(4):
        state = step(Optimizer("adam", 1e-3, unit=64), *state, taken=torch.tensor([16, 16]))
    assert torch.allclose(state[1], whole[1], rtol=1e-12)
    assert torch.allclose(state[2], whole[2], rtol=1e-12)
    assert state[3].tolist() == [128, 704]
