"""SigLIP with the towers of transformers. Methods use their generic path; texts are padded to the full context."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmr.core.card import Tower
from lmr.core.norms import RowNorm
from lmr.core.text import TextSide
from lmr.models.backbone import Backbone, Norms
from lmr.models.preprocessing import read_image_processor
from lmr.models.prompts import TokenPrompts
from lmr.models.tokenizers import PaddedTokenizer
from lmr.models.transformers_library import describe_model, write_parts


class Pooled(nn.Module):
    """A tower of transformers that takes pixels or token ids [B, ...] and returns only its pooled feature [B, D]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config: Any = model.config

    def forward(self, given: Tensor) -> Tensor:
        """Return features as the tower's head gives them, not normalised."""
        features: Tensor = self.model(given).pooler_output
        return features


class Siglip(Backbone):
    """A SigLIP or SigLIP 2 model with a copy of the weights of a SiglipModel; ``to`` moves and converts it.

    Its text tower sees the whole context, padding included, so prompts are never cut.
    """

    encoder: Pooled
    _text: Pooled

    def __init__(self, name: str, model: Any, image_processor: Any, tokenizer: Any) -> None:
        config, own = model.config, copy.deepcopy(model).eval().requires_grad_(False)
        _replace_norms(own)
        self.name = name
        self.encoder, self._text = Pooled(own.vision_model), Pooled(own.text_model)
        self.preprocessing = read_image_processor(image_processor, config.vision_config.image_size)
        self.input_shape = self.preprocessing.input_shape
        self.logit_scale, self.logit_bias = math.exp(float(own.logit_scale)), float(own.logit_bias)
        context = config.text_config.max_position_embeddings
        self._tokenizer = PaddedTokenizer(tokenizer, context)
        self._image_processor = image_processor
        self.facts = describe_model("SigLIP", config, self.preprocessing, tokenizer)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D] of N texts, without gradient and never below float32."""
        return TokenPrompts(self._tokenizer(texts)).encode(self._text)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """Return the text tower with these prompts."""
        return TextSide(self._text, TokenPrompts(self._tokenizer(texts)), len(texts))

    def text_digest(self) -> str:
        """Return the tower's digest together with that of the tokenizer."""
        return f"{super().text_digest()} {self._tokenizer.digest}"

    def write_huggingface(self, folder: Path, norms: Norms) -> None:
        """Write the model, its preprocessing and its tokenizer, for SiglipModel and SiglipProcessor of transformers."""
        from transformers import SiglipConfig, SiglipModel

        numbers = {"logit_scale": math.log(self.logit_scale), "logit_bias": self.logit_bias}
        weights = {key: torch.tensor([number]) for key, number in numbers.items()}
        for begin, tower, kind in (
            ("vision_model.", self.encoder, Tower.IMAGE),
            ("text_model.", self._text, Tower.TEXT),
        ):
            own = tower.state_dict() | dict(norms.get(kind, {}))
            weights |= {begin + key.removeprefix("model."): value.float().cpu() for key, value in own.items()}
        vision, text = (tower.config.to_dict() for tower in (self.encoder, self._text))
        with torch.device("meta"):
            model: Any = SiglipModel(SiglipConfig(vision_config=vision, text_config=text))
        model.load_state_dict(weights, assign=True)
        write_parts(folder, model, self._image_processor, self._tokenizer.tokenizer)


def _replace_norms(model: nn.Module) -> None:
    """Replace the norms by ones that compute in the precision of their own parameters, whatever the input's is."""
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if type(norm) is nn.LayerNorm:
                own = RowNorm(norm.normalized_shape, eps=norm.eps)
                own.load_state_dict(norm.state_dict(), assign=True)
                setattr(parent, name, own.requires_grad_(False))
