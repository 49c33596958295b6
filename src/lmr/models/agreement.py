"""Comparison with transformers: an independent implementation must give the same features.

A folder in Hugging Face's form is read again by transformers itself, so that the reading is compared as well. Weights
that transformers would not read correctly are handed over as lmr loaded them; that compares the arithmetic only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.models.backbone import Backbone
from lmr.models.facts import ModelFormat
from lmr.models.formats.export import build_transformers_clip
from lmr.models.formats.locate import HF_WEIGHTS
from lmr.models.naflex import unpack
from lmr.models.tokenizers import has_tokenizer, read_tokenizer
from lmr.models.towers.image import VisionTower
from lmr.models.towers.text import TextTower
from lmr.models.transformers_library import quiet_transformers


@dataclass(frozen=True)
class Agreement:
    """The difference between our unit features and transformers'; NaN where they were not compared."""

    note: str  # who read the weights that transformers ran, or why nothing was compared
    image: float = math.nan
    text: float = math.nan

    @property
    def compared(self) -> bool:
        """True if the two differences were measured."""
        return not math.isnan(self.image)

    def holds(self, tolerance: float) -> bool:
        """Return True if both differences were measured and lie within the tolerance."""
        return self.image <= tolerance and self.text <= tolerance


def compare_with_transformers(backbone: Backbone, images: Tensor, texts: Sequence[str]) -> Agreement:
    """Return the largest difference of unit features [N, D] in float32 of images [N, 3, H, W] and of texts."""
    try:
        import transformers
    except ImportError:
        return Agreement("transformers is not installed")
    side = backbone.text_side(list(texts))
    tower = None if side is None else side.tower
    folder = find_folder(backbone)
    read, tokens, end = _encode_texts(backbone, tower, texts)
    with torch.no_grad(), quiet_transformers():
        seen = backbone.encoder(images)
        if folder is not None:
            model: Any = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32)
            model, reader = model.eval(), "which read the files itself"
            parts = _tokenize(texts, folder, tower) if has_tokenizer(folder) else [tokens]
            if any(ids is None for ids in parts):
                return Agreement("the folder has no tokenizer that transformers can use")
            text = torch.cat([_take_features(model.get_text_features(ids)) for ids in parts])
        elif isinstance(backbone.encoder, VisionTower) and isinstance(tower, TextTower):
            model = build_transformers_clip(backbone.encoder, tower)
            reader = "with the weights as loaded here"
            if not backbone.encoder.is_clip:  # transformers has no stem, so ours runs in both
                reader = "with weights and stem as loaded"
            words = model.text_model(input_ids=tokens).last_hidden_state
            text = model.text_projection(words[torch.arange(len(words)), end])
        elif backbone.model_facts.format is ModelFormat.SIGLIP:
            return Agreement("its towers are those of transformers, which would not read these weights by itself")
        else:
            return Agreement("transformers has no model of this kind")
        plain = images.float().cpu()
        given = unpack(plain) if getattr(backbone.encoder, "packed", False) else {"pixel_values": plain}
        image = _take_features(model.get_image_features(**given))
    return Agreement(reader, _measure_gap(seen, image), _measure_gap(read, text))


def _encode_texts(
    backbone: Backbone, tower: nn.Module | None, texts: Sequence[str]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return our features, and the inputs of our text tower for them: token ids [N, L] and ends [N]."""
    given: list[tuple[Tensor, ...]] = []
    if not isinstance(tower, TextTower):
        return backbone.encode_text(list(texts)), None, None
    hook = tower.register_forward_pre_hook(lambda _, inputs: given.append(inputs))
    try:
        features = backbone.encode_text(list(texts))
    finally:
        hook.remove()
    tokens, end = given[0]
    return features, tokens.cpu(), end.cpu()


def find_folder(backbone: Backbone) -> Path | None:
    """Return the Hugging Face folder from which transformers would read exactly the weights we loaded, if any."""
    facts = backbone.model_facts
    path = facts.weights
    if path is None or facts.format not in (ModelFormat.HUGGINGFACE, ModelFormat.SIGLIP) or facts.unwrapped:
        return None
    chosen = next((name for name in HF_WEIGHTS if (path.parent / name).is_file()), None)
    return path.parent if path.name == chosen and (path.parent / "config.json").is_file() else None


def _tokenize(texts: Sequence[str], folder: Path, tower: nn.Module | None) -> list[Tensor]:
    """Return token ids from the folder's own tokenizer, one text at a time.

    Padded to the full length as in SigLIP's training; without padding for a causal tower, which would not see it.
    """
    from transformers import AutoConfig

    length = AutoConfig.from_pretrained(str(folder), local_files_only=True).text_config.max_position_embeddings
    tokenizer = read_tokenizer(folder)
    padding = False if isinstance(tower, TextTower) else "max_length"
    options = {"padding": padding, "truncation": True, "max_length": length, "return_tensors": "pt"}
    return [tokenizer([text], **options)["input_ids"] for text in texts]


def _take_features(answer: Any) -> Tensor:
    """Return the projected features, which newer versions of transformers wrap."""
    features: Tensor = answer if isinstance(answer, Tensor) else answer.pooler_output
    return features


def _measure_gap(ours: Tensor, theirs: Tensor) -> float:
    one, other = (F.normalize(features.detach().float().cpu(), dim=-1) for features in (ours, theirs))
    return float((one - other).abs().nan_to_num(nan=float("inf")).max())
