"""The two towers of the pocket model: CLIP's in small sizes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lmr.models.clip.image_tower import VisionConfig, VisionTower
from lmr.models.clip.text_tower import TextConfig, TextTower


@dataclass(frozen=True)
class PocketConfig:
    """Sizes of the pocket model; stored in the weights file, so that the file describes itself."""

    resolution: int = 32
    patch: int = 8
    width: int = 160
    depth: int = 5
    heads: int = 5
    text_width: int = 128
    text_depth: int = 2
    text_heads: int = 4
    context: int = 20
    vocabulary: int = 0
    features: int = 128

    @property
    def image(self) -> VisionConfig:
        """Sizes of the image tower."""
        sizes = {key: getattr(self, key) for key in ("resolution", "patch", "width", "depth", "heads", "features")}
        return VisionConfig(**sizes, hidden=4 * self.width)

    @property
    def text(self) -> TextConfig:
        """Sizes of the text tower."""
        return TextConfig(
            context=self.context,
            vocabulary=self.vocabulary,
            width=self.text_width,
            depth=self.text_depth,
            heads=self.text_heads,
            features=self.features,
            hidden=4 * self.text_width,
        )


class PocketModel(nn.Module):
    """Both towers; features are not normalised here."""

    def __init__(self, config: PocketConfig) -> None:
        super().__init__()
        self.config = config
        self.image = VisionTower(config.image)
        self.text = TextTower(config.text)
