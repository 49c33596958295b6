"""Muon: momentum whose update of a matrix is made orthogonal (Jordan et al. 2024, an optimiser for hidden layers).

torch.optim.Muon computes in bfloat16 and takes matrices only. On a CPU without bfloat16 instructions that takes twenty
times as long as float32, and a convolution is not a matrix there, so this file has its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
_STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315  # of Newton and Schulz's iteration, tuned for a steep start (Jordan et al. 2024)


class Muon(torch.optim.Optimizer):
    """The Muon optimiser for weights [out, ...], each read as a matrix [out, all the rest]."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight along its orthogonalised momentum (Nesterov's)."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
                update = orthogonalise(weight.grad.lerp(state["momentum"], MOMENTUM).flatten(1))
                tall = max(1.0, update.shape[0] / update.shape[1]) ** 0.5  # keeps the size of outputs' changes
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update.reshape(weight.shape), alpha=-group["lr"] * tall)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return about U V' of a matrix U S V': all its singular values become about 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_STEPS):
        square = x @ x.T
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.T if tall else x
