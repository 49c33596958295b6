"""Two small towers in float64, prompts that begin alike, and views of images: what tests of methods with views share.

The towers are written out by hand, one text and one image at a time: nothing but their weights is the library's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import lmr
from bimodal_reference import CONFIG, SCALE, list_norms, make_problem, make_prompts
from lmr.core.text import TextSide
from lmr.models.embedded import EmbeddedTowers
from lmr.models.prompts import ContextTokens
from lmr.models.towers.image import VisionTower
from tower_reference import normalise, run_block

WORDS = 3  # of the context
SIDE = CONFIG.resolution


@dataclass
class ViewProblem:
    """Towers, one prompt per class (ids [C, L], ends [C]), all with the same first words."""

    model: EmbeddedTowers
    tokens: Tensor
    end: Tensor
    scale: float = SCALE

    @property
    def classifier(self) -> lmr.ZeroShot:
        """The same as the library sees it."""
        text = TextSide(
            self.model.text,
            lambda tower, part: tower(self.tokens[part], self.end[part]),
            len(self.tokens),
            learn=lambda context, names: ContextTokens(self.tokens, self.end, WORDS),
        )
        shape, scale = (3, SIDE, SIDE), lmr.PixelScale((0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
        with torch.no_grad():
            prototypes = self.model.text(self.tokens, self.end)
        return lmr.ZeroShot(self.model.image, prototypes, self.scale, text=text, input_shape=shape, pixels=scale)

    @property
    def context(self) -> Tensor:
        """The vectors of the context's words [n, w], a copy."""
        return self.model.text.words.weight[self.tokens[0, 1 : 1 + WORDS]].detach().clone()

    def encode_texts(self, context: Tensor) -> Tensor:
        """Unit features [C, D] of all prompts with this context, one after the other and without padding."""
        tower, rows = self.model.text, []
        for row, end in zip(self.tokens, self.end.tolist(), strict=True):
            words = tower.words.weight[row[: end + 1]]
            x = torch.cat([words[:1], context, words[1 + WORDS :]]) + tower.positions[: end + 1]
            for block in tower.blocks:
                x = run_block(x, block, causal=True)
            feature = normalise(x[-1], tower.ln_final) @ tower.projection
            rows.append(feature / feature.square().sum().sqrt())
        return torch.stack(rows)

    def encode_images(self, images: Tensor) -> Tensor:
        """Unit features [n, D], one after the other."""
        with torch.no_grad():
            return torch.stack([encode_image(self.model.image, image) for image in images])


def encode_image(tower: VisionTower, image: Tensor) -> Tensor:
    """The unit feature [D] of an image [3, side, side]; gradient flows to every weight of the tower."""
    size, rows = tower.config.patch, []
    for top in range(0, image.shape[1], size):
        for left in range(0, image.shape[2], size):
            rows.append(tower.patches.weight.flatten(1) @ image[:, top : top + size, left : left + size].flatten())
    x = normalise(torch.stack([tower.class_token, *rows]) + tower.positions, tower.ln_pre)
    for block in tower.blocks:
        x = run_block(x, block, causal=False)
    feature = normalise(x[0], tower.ln_post) @ tower.projection
    return feature / feature.square().sum().sqrt()


def make_view_problem(classes: int = 6, seed: int = 10, scale: float = SCALE) -> ViewProblem:
    """Prompts of different lengths, in no order."""
    model = make_problem(classes, seed).model.requires_grad_(False)
    tokens, end = make_prompts(classes, longest=10)
    end = end.clamp(min=WORDS + 2)
    tokens[:, 1 : 1 + WORDS] = tokens[0, 1 : 1 + WORDS]
    tokens = torch.where((tokens == 0) | (tokens == 2), 7, tokens)
    tokens[torch.arange(classes), end] = 2
    tokens *= torch.arange(tokens.shape[1]) <= end.unsqueeze(1)
    assert list_norms(model)
    assert len(set(end.tolist())) > 2
    return ViewProblem(model, tokens, end, scale)


def make_views(batch: int, sizes: tuple[int, ...], views: int) -> Tensor:
    """Views [B, V, 3, side, side] of the images of batch number ``batch``: the image with more and more noise."""
    generator = torch.Generator().manual_seed(100 + batch)
    images = torch.randn(sizes[batch], 1, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    noise = torch.randn(sizes[batch], views, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    strength = torch.linspace(0, 1.5, views, dtype=torch.float64).view(1, -1, 1, 1, 1)
    return images + strength * noise


def measure_entropy(logits: Tensor) -> Tensor:
    """Of one view."""
    shares = torch.exp(logits - logits.max())
    shares = shares / shares.sum()
    return -(shares * torch.log(shares)).sum()


def measure_mean_entropy(rows: Tensor) -> Tensor:
    """Of the mean probabilities of some views."""
    shares = sum(torch.exp(row - row.max()) / torch.exp(row - row.max()).sum() for row in rows) / len(rows)
    return -(shares * torch.log(shares)).sum()


def choose_confident(logits: Tensor, keep: float) -> list[int]:
    """The numbers of the most certain views."""
    certain = sorted(range(len(logits)), key=lambda k: measure_entropy(logits[k]).item())
    return certain[: max(1, int(len(logits) * keep))]
