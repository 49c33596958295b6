"""The pocket model: a small vision-language model of drawn shapes with CLIP's architecture, for tests and teaching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmr.models.embedded_model import EmbeddedConfig, EmbeddedModel, EmbeddedTowers
from lmr.models.model_facts import ModelFormat
from lmr.models.pocket.towers import PocketConfig, PocketModel
from lmr.models.pocket.words import WORDS, tokenize
from lmr.models.word_tokenizer import WordTokenizer

WEIGHTS = Path(__file__).with_name("pocket.safetensors")


class Pocket(EmbeddedModel):
    """The pocket model; its words are fixed in code, as its world is."""

    name = "pocket"
    weights = WEIGHTS
    format = ModelFormat.POCKET

    def _make_tokenizer(self, written: dict[str, str]) -> WordTokenizer:
        if written["words"] != " ".join(WORDS):
            raise ValueError("its vocabulary differs")
        return tokenize

    def _make_towers(self, config: dict[str, Any]) -> tuple[EmbeddedConfig, EmbeddedTowers]:
        sizes = PocketConfig(**config)
        return sizes, PocketModel(sizes)
