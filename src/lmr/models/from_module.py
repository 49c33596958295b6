"""Backbones from any two modules: an image tower and a text tower of your own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import leave_inference_mode
from lmr.core.errors import WrongType
from lmr.models.backbone import Backbone
from lmr.models.preprocessing import Preprocessing


class ModuleBackbone(Backbone):
    """Two modules as they are; the text tower is frozen and gives no gradients."""

    keeps_prototypes = False

    def __init__(
        self, encoder: nn.Module, text: nn.Module, preprocessing: Preprocessing, logit_scale: float, logit_bias: float
    ) -> None:
        self.encoder, self._text = (tower.eval().requires_grad_(False) for tower in (encoder, text))
        self.preprocessing, self.input_shape = preprocessing, preprocessing.input_shape
        self.logit_scale, self.logit_bias = float(logit_scale), float(logit_bias)
        self.name = type(encoder).__name__
        self.facts = {"format": f"modules {type(encoder).__name__} and {type(text).__name__}"}

    @torch.no_grad()
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D] of N texts."""
        found: Tensor = self._text(list(texts))
        return F.normalize(found.float(), dim=-1)


def wrap_module(
    encoder: nn.Module,
    text: nn.Module,
    preprocessing: Preprocessing,
    *,
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
) -> Backbone:
    """Return a backbone of two modules of your own, which it uses without a copy, in evaluation mode and frozen.

    ``encoder`` maps images [B, 3, H, W] to features [B, D], ``text`` a list of N texts to features [N, D]. Methods
    adapt the ``nn.LayerNorm`` modules of ``encoder``.

    Examples:
        >>> import lmr, torch
        >>> class Lengths(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = torch.nn.Parameter(torch.tensor([1.0, 0.5]))
        ...     def forward(self, texts):
        ...         return torch.tensor([[len(text), 20.0] for text in texts]) * self.weight
        >>> half = (0.5, 0.5, 0.5)
        >>> encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LayerNorm(192), torch.nn.Linear(192, 2))
        >>> backbone = lmr.wrap_module(encoder, Lengths(), lmr.Preprocessing(8, half, half), logit_scale=10)
        >>> clip = backbone.classifier(["cat", "airplane"])
        >>> lmr.create("lmr", clip).step(torch.randn(4, 3, 8, 8)).labels.shape
        torch.Size([4])
    """
    for tower in (encoder, text):
        if not isinstance(tower, nn.Module):
            raise WrongType(f"Expected a torch.nn.Module for each tower, got {type(tower).__name__}.")
    with leave_inference_mode():
        return ModuleBackbone(encoder, text, preprocessing, logit_scale, logit_bias)
