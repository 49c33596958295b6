"""CLIP as a backbone: our two towers with a copy of the weights of a CLIPModel of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lmr.core.text import TextSide
from lmr.models.backbone import Backbone, Norms
from lmr.models.preprocessing import read_image_processor
from lmr.models.prompts import CausalPrompts, ContextTokenizer
from lmr.models.tokenizers import CausalTokenizer
from lmr.models.towers.image import VisionTower
from lmr.models.towers.text import TextTower
from lmr.models.transformers_clip import build_transformers_clip, copy_towers
from lmr.models.transformers_library import describe_model, write_parts


class Clip(Backbone):
    """A CLIP model with frozen weights in float32, or float64 if ``dtype`` is; ``to`` moves and converts it."""

    encoder: VisionTower
    _text: TextTower

    def __init__(self, name: str, model: Any, image_processor: Any, tokenizer: Any, dtype: torch.dtype) -> None:
        self.name = name
        self.encoder, self._text = copy_towers(model, torch.promote_types(dtype, torch.float32))
        self.preprocessing = read_image_processor(image_processor, self.encoder.config.resolution)
        self.input_shape = self.preprocessing.input_shape
        self.logit_scale = math.exp(float(model.logit_scale.detach()))
        text = model.config.text_config
        self._tokenizer = CausalTokenizer(tokenizer, text.max_position_embeddings, text.eos_token_id)
        self._image_processor = image_processor
        self.facts = describe_model("CLIP", model.config, self.preprocessing, tokenizer)

    @property
    def text(self) -> TextTower:
        """The text tower: token ids [N, L] and where each text ends [N] to features [N, D]."""
        return self._text

    def encode_text(self, texts: Sequence[str]) -> torch.Tensor:
        """Return unit features [N, D] of N texts, without gradient and never below float32."""
        return CausalPrompts(*self._tokenizer(texts)).encode(self._text)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """Return the text tower with these prompts, tokenised once."""
        prompts = CausalPrompts(*self._tokenizer(texts))
        return TextSide(self._text, prompts, len(prompts.end), prompts.longest, ContextTokenizer(self._tokenizer))

    def text_digest(self) -> str:
        """Return the tower's digest together with that of the tokenizer."""
        return f"{super().text_digest()} {self._tokenizer.digest}"

    def write_huggingface(self, folder: Path, norms: Norms) -> None:
        """Write the model, its preprocessing and its tokenizer, for CLIPModel and CLIPProcessor of transformers."""
        model = build_transformers_clip(self.encoder, self._text, self._tokenizer.end, norms)
        model.logit_scale.fill_(math.log(self.logit_scale))
        write_parts(folder, model, self._image_processor, self._tokenizer.tokenizer)
