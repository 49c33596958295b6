"""The two towers of the pocket model: CLIP's in small sizes."""

from __future__ import annotations

from dataclasses import dataclass

from lmr.models.clip.image_tower import VisionTower
from lmr.models.clip.text_tower import TextTower
from lmr.models.embedded_model import EmbeddedConfig, EmbeddedTowers


@dataclass(frozen=True)
class PocketConfig(EmbeddedConfig):
    """Sizes of the pocket model."""


class PocketModel(EmbeddedTowers):
    """Both towers; features are not normalised here."""

    def __init__(self, config: PocketConfig) -> None:
        super().__init__()
        self.config = config
        self.image = VisionTower(config.image)
        self.text = TextTower(config.text)
