"""Muon against a singular value decomposition and its own equations in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lab.train.muon import Muon


def test_steps_are_those_of_the_equations() -> None:
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(6, 2, 3, 3)), random.normal(size=(4, 6, 2, 3, 3))
    weight = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = Muon([weight], lr=0.1, weight_decay=0.5)
    expected, momentum = start.reshape(6, 18), np.zeros((6, 18))
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        flat = gradient.reshape(6, 18)
        momentum = 0.95 * momentum + 0.05 * flat
        x = 0.05 * flat + 0.95 * momentum
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        expected = (1 - 0.1 * 0.5) * expected - 0.1 * x
    np.testing.assert_allclose(weight.detach().numpy().reshape(6, 18), expected, atol=1e-12)
