"""The two towers of the photo model: CLIP's in small sizes, with a stem of convolutions in place of the patch layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.models.clip.image_tower import VisionTower
from lmr.models.clip.text_tower import TextTower
from lmr.models.embedded_model import EmbeddedConfig, EmbeddedTowers
from lmr.models.photo.stem import ConvStem

_PART = 16  # images that go through the stem at once


@dataclass(frozen=True)
class PhotoConfig(EmbeddedConfig):
    """Sizes of the photo model; ``stem`` are the channels of its convolutions at full, half and quarter size."""

    width: int = 192
    depth: int = 4
    heads: int = 6
    stem: tuple[int, ...] = (32, 64, 128)


class PhotoTower(VisionTower):
    """An image tower whose tokens come from a stem of convolutions.

    The stem has no LayerNorm, so the backward to the norms ends before it. Computing its tokens costs as much as the
    blocks, so they are kept for that backward, and all passes of a step start from them.
    """

    is_clip = False
    keeps_tokens = True

    def __init__(self, config: PhotoConfig, trained: bool = True) -> None:
        if config.patch != 2 ** len(config.stem):
            raise LmrError(f"A stem of {len(config.stem)} sizes makes patches of {2 ** len(config.stem)} pixels.")
        super().__init__(config.image)
        self.patches = ConvStem(config.stem, config.width, normed=not trained)

    @property
    def stem(self) -> ConvStem:
        """The convolutions."""
        assert isinstance(self.patches, ConvStem)
        return self.patches

    def count_embedding(self) -> int:
        """Multiply-adds of the convolutions for one image."""
        side, total = self.config.resolution, 0
        for layer in self.stem:
            conv = layer.get_submodule("conv")
            side //= conv.stride[0] if isinstance(conv, nn.Conv2d) else 1
            total += side**2 * conv.get_parameter("weight").numel()
        return total

    def _cut_patches(self, images: Tensor) -> Tensor:
        # Batch norms see the whole batch in training. After that, parts that fit into the cache are a fifth faster.
        # Parts are of about equal size: an image that went alone would have other last digits than among others.
        parts = 1 if self.stem.training else -(-len(images) // _PART)
        grid = torch.cat([self.stem(part) for part in images.tensor_split(max(1, parts))])
        return grid.flatten(2).transpose(1, 2)


class PhotoModel(EmbeddedTowers):
    """Both towers; before they are ``trained`` the stem has batch norms."""

    image: PhotoTower

    def __init__(self, config: PhotoConfig, trained: bool = True) -> None:
        super().__init__()
        self.config = config
        self.image = PhotoTower(config, trained)
        self.text = TextTower(config.text)
