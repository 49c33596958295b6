"""Optimisers as pure functions on rows: every stream has its own moments and its own step count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lmr.core.streams import choose_rows

OptimizerName = Literal["adam", "adamw", "sgd"]


@dataclass(frozen=True)
class Optimizer:
    """Adam (decay in the gradient), AdamW (decay on the rows) or SGD with momentum, as in torch.optim.

    ``begin`` returns the moments before the first step, ``step`` the rows and moments after one. Nothing is changed in
    place.

    Examples:
        >>> import lmr, torch
        >>> optim = lmr.Optimizer("adam", lr=0.1)
        >>> rows = torch.zeros(2, 3)  # two streams
        >>> moved, moments = optim.step(rows, torch.ones(2, 3), optim.begin(rows))
        >>> moved[0]
        tensor([-0.1000, -0.1000, -0.1000])
        >>> moments["steps"]
        tensor([1, 1])
    """

    name: OptimizerName
    lr: float
    weight_decay: float = 0.0
    unit: int = 1  # ``steps`` counts in parts of a usual step (Adam); 64: it counts images, in batches of 64
    momentum: float = 0.9  # of SGD
    nesterov: bool = True  # of SGD
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam and AdamW, as is eps
    eps: float = 1e-8

    def begin(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the moments of rows [A, P] before their first step."""
        steps = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        if self.name == "sgd":
            return {"momentum": torch.zeros_like(rows), "steps": steps}
        return {"first": torch.zeros_like(rows), "second": torch.zeros_like(rows), "steps": steps}

    def descend(
        self, state: Mapping[str, Tensor], gradient: Tensor, where: Tensor | None = None, taken: int | Tensor = 1
    ) -> dict[str, Tensor]:
        """Return the norms and moments of ``state`` after one step along ``gradient`` [A, P].

        With ``where`` [A], only these streams take the step; the others keep their rows.
        """
        norms, moments = self.step(state["norms"], gradient, state, taken)
        new = {"norms": norms, **moments}
        if where is None:
            return new
        return {key: choose_rows(where, value, state[key]) for key, value in new.items()}

    def step(
        self, rows: Tensor, gradient: Tensor, moments: Mapping[str, Tensor], taken: int | Tensor = 1
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return rows and moments after one step. ``taken``, a number or [A], is added to the step counts."""
        if self.name == "adamw":
            rows = rows * (1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * rows
        if self.name == "sgd":
            momentum = self.momentum * moments["momentum"] + gradient
            moved = rows - self.lr * (gradient + self.momentum * momentum if self.nesterov else momentum)
            return moved, {"momentum": momentum, "steps": moments["steps"] + 1}
        return self._step_adam(rows, gradient, moments, taken)

    def _step_adam(
        self, rows: Tensor, gradient: Tensor, moments: Mapping[str, Tensor], taken: int | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Take one Adam step (Kingma & Ba 2015) on rows [A, P] with moments [A, P] and step counts [A].

        With a ``unit`` above 1 the step counts as ``taken`` [A] of ``unit`` parts of a usual one. A share s = taken /
        unit has the rate lr sqrt(s) and the decays beta^s, so that moments fade with the number of images and not with
        the number of steps (the scaling of Malladi et al., "On the SDEs and scaling rules for adaptive gradient
        algorithms", 2022; they also scale eps, which is far below the gradients here).
        """
        (fade, fade_squares), steps = self.betas, moments["steps"] + taken
        time = steps.double().unsqueeze(1)
        if self.unit == 1:
            first = moments["first"].lerp(gradient, 1 - fade)
            second = fade_squares * moments["second"] + (1 - fade_squares) * gradient.square()
            rate: float | Tensor = self.lr
        else:
            share = (torch.as_tensor(taken, device=rows.device).double() / self.unit).view(-1, 1)
            first = moments["first"].lerp(gradient, (1 - fade**share).to(rows.dtype))
            second = moments["second"].lerp(gradient.square(), (1 - fade_squares**share).to(rows.dtype))
            time, rate = time / self.unit, self.lr * share.sqrt()
        # The corrections are computed in float64 as in torch.optim, then applied in the precision of the rows.
        step_size = (rate / (1 - fade**time)).to(rows.dtype)
        root = ((1 - fade_squares**time).sqrt()).to(rows.dtype)
        moved = rows - step_size * first / (second.sqrt() / root + self.eps)
        return moved, {"first": first, "second": second, "steps": steps}
