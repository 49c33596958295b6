"""CLIP's image tower written out in float64, a small tower to compare with it, and images for both."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import lmr_reference as book
from lmr.models.towers.image import VisionConfig, VisionTower

CONFIG = VisionConfig(resolution=32, patch=8, width=48, depth=3, heads=4, features=24, hidden=96, eps=1e-5)
Norms = list[tuple[Tensor, Tensor]]


def make_tower(activation: str = "quick_gelu", seed: int = 0, **sizes: int) -> VisionTower:
    """A frozen tower in float64 whose every number matters, not yet folded."""
    torch.manual_seed(seed)
    tower = VisionTower(VisionConfig(**{**vars(CONFIG), "activation": activation, **sizes})).double()
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return tower.eval().requires_grad_(False)


def write_out(tower: VisionTower) -> Callable[[Tensor, Norms], Tensor]:
    """CLIP's image tower as a float64 function of images and norms, token by token where the library is clever."""
    frozen = {name: value.detach().clone().double() for name, value in tower.state_dict().items()}
    activation, config = tower.blocks[0].mlp.activation, tower.config
    assert activation in ("quick_gelu", "gelu", "gelu_tanh")

    def project(x: Tensor, name: str) -> Tensor:
        return torch.einsum("...i,oi->...o", x, frozen[f"{name}.weight"]) + frozen[f"{name}.bias"]

    def bend(x: Tensor) -> Tensor:
        if activation == "quick_gelu":
            return x / (1 + torch.exp(-1.702 * x))
        if activation == "gelu":
            return x * (1 + torch.erf(x / math.sqrt(2))) / 2
        return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def attend(x: Tensor, name: str) -> Tensor:
        q, k, v = project(x, f"{name}.qkv").split(config.width, -1)
        size = config.width // config.heads
        heads = []
        for first in range(0, config.width, size):
            part = slice(first, first + size)
            scores = torch.einsum("bid,bjd->bij", q[..., part], k[..., part]) / math.sqrt(size)
            shares = torch.exp(scores - scores.amax(-1, keepdim=True))
            heads.append(torch.einsum("bij,bjd->bid", shares / shares.sum(-1, keepdim=True), v[..., part]))
        return project(torch.cat(heads, -1), f"{name}.out")

    def encode(images: Tensor, norms: Norms) -> Tensor:
        rows = []
        for top in range(0, config.resolution, config.patch):
            for left in range(0, config.resolution, config.patch):
                piece = images[:, :, top : top + config.patch, left : left + config.patch]
                rows.append(torch.einsum("bcij,wcij->bw", piece, frozen["patches.weight"]))
        x = torch.stack([frozen["class_token"].expand(len(images), -1), *rows], 1) + frozen["positions"]
        x = book.normalise(x, norms[0], config.eps)
        for k in range(config.depth):
            x = x + attend(book.normalise(x, norms[2 * k + 1], config.eps), f"blocks.{k}")
            hidden = bend(project(book.normalise(x, norms[2 * k + 2], config.eps), f"blocks.{k}.mlp.up"))
            x = x + project(hidden, f"blocks.{k}.mlp.down")
        return book.normalise(x[:, 0], norms[-1], config.eps) @ frozen["projection"]

    return encode


def list_norms(tower: VisionTower) -> Norms:
    return [(m.weight, m.bias) for m in tower.modules() if isinstance(m, nn.LayerNorm)]


def make_images(count: int, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(count, 3, 32, 32, dtype=torch.float64)
