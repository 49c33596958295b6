"""The photo model: a small vision-language model of photographs, trained on CIFAR-10 and CIFAR-100; the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmr.models.embedded_model import EmbeddedConfig, EmbeddedModel, EmbeddedTowers
from lmr.models.model_facts import ModelFormat
from lmr.models.photo.photo_towers import PhotoConfig, PhotoModel
from lmr.models.word_tokenizer import WordTokenizer

WEIGHTS = Path(__file__).with_name("photo.safetensors")
BETWEEN = "|"  # between the class names in a weights file


class Photo(EmbeddedModel):
    """The photo model; its words and its 110 class names come from its weights file."""

    name = "photo"
    weights = WEIGHTS
    format = ModelFormat.PHOTO

    def _make_tokenizer(self, written: dict[str, str]) -> WordTokenizer:
        return WordTokenizer(self.name, written["words"].split(), written["names"].split(BETWEEN))

    def _make_towers(self, config: dict[str, Any]) -> tuple[EmbeddedConfig, EmbeddedTowers]:
        sizes = PhotoConfig(**config | {"stem": tuple(config["stem"])})
        return sizes, PhotoModel(sizes)
