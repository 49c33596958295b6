"""What the plain loops share, and how one is found by the name of its method."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_PREFIX = "plain_"  # of a file's name, before the name of its method


class PlainLoop:
    """A transformers model, class prototypes and an Adam optimiser on the model's LayerNorm parameters."""

    lr: ClassVar[float] = 1e-3

    def __init__(self, model: nn.Module, prototypes: Tensor, logit_scale: float = 100.0) -> None:
        self.model, self.prototypes, self.logit_scale = model, prototypes, logit_scale
        model.requires_grad_(False)
        norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
        self.parameters = [parameter.requires_grad_() for norm in norms for parameter in norm.parameters()]
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        self.reset()

    def reset(self) -> None:
        """Restore the original norms and start with a new optimiser."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.start, strict=True):
                parameter.copy_(value)
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.lr)

    def logits(self, images: Tensor) -> Tensor:
        """[B, C] with the present norms."""
        features = F.normalize(self.model(pixel_values=images).image_embeds, dim=-1)
        return self.logit_scale * features @ self.prototypes.T

    def descend(self, loss: Tensor) -> None:
        """One step of the optimiser."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, C] and no adaptation."""
        with torch.no_grad():
            return self.logits(images)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Adapt on a batch: logits [B, C] and what happened. Without a method nothing adapts."""
        return self.forward(images), {}


def list_plain_loops() -> list[str]:
    """The names of the methods that have a plain loop, in alphabetical order."""
    folder = importlib.import_module(__package__)
    found = (module.name for module in pkgutil.iter_modules(folder.__path__))
    return sorted(name.removeprefix(_PREFIX) for name in found if name.startswith(_PREFIX))


def find_plain_loop(method: str) -> type[PlainLoop] | None:
    """The plain loop of a method by the method's name, or None."""
    if method not in list_plain_loops():
        return None
    module = importlib.import_module(f"{__package__}.{_PREFIX}{method}")
    loops = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, PlainLoop)]
    return next(loop for loop in loops if loop is not PlainLoop)
