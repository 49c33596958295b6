"""Our towers as models of transformers, and the folder that transformers opens: model, preprocessing, tokenizer.

The same weights in an independent implementation serve to compare with or to save. A stem of convolutions has no
counterpart there: its layers replace the patch layer as they are.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lmr.core.card import Tower
from lmr.models.formats.checkpoints import HUGGINGFACE, Side
from lmr.models.formats.configs import PREPROCESSOR, describe_preprocessing
from lmr.models.preprocessing import Preprocessing
from lmr.models.tokenizers import MERGES_FILE, SPECIAL, TOKENIZER_CONFIG, VOCABULARY_FILE, list_words, read_merges
from lmr.models.towers.block import Perceptron
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.text import TextTower
from lmr.models.transformers_library import import_transformers, quiet_transformers

_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


Norms = Mapping[Tower, Mapping[str, Tensor]]  # of the towers that adapt: parameters under their names in the tower


def build_transformers_clip(image: VisionTower, text: TextTower, norms: Norms | None = None) -> Any:
    """Return a CLIPModel in float32 with the weights of both towers, except for ``norms``."""
    transformers = import_transformers("A CLIPModel")
    read = text.config
    config = transformers.CLIPConfig(
        projection_dim=image.config.features,
        vision_config=_describe_image(image.config),
        text_config=_describe(read) | {"vocab_size": read.vocabulary, "max_position_embeddings": read.context},
    )
    adapted = norms or {}
    weights = _rename(image, "image", adapted.get(Tower.IMAGE)) | _rename(text, "text", adapted.get(Tower.TEXT))
    return _fill(transformers.CLIPModel(config), image, weights)


def build_transformers_vision(image: VisionTower) -> Any:
    """Return a CLIPVisionModelWithProjection in float32 with the weights of an image tower."""
    transformers = import_transformers("A CLIPVisionModelWithProjection")
    config = transformers.CLIPVisionConfig(**_describe_image(image.config))
    model = transformers.CLIPVisionModelWithProjection(config)
    return _fill(model, image, _rename(image, "image"))


class _Stem(nn.Sequential):
    """The layers of a stem, with what transformers asks a patch layer for."""

    @property
    def weight(self) -> Tensor:
        return next(self.parameters())


def _fill(model: Any, image: VisionTower, weights: dict[str, Tensor]) -> Any:
    """Return the model with these weights, in evaluation mode; every weight of it must be given."""
    if not image.is_clip:
        model.vision_model.embeddings.patch_embedding = _Stem(*copy.deepcopy(image.patches).float().cpu().children())
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or [key for key in missing if key != "logit_scale" and not key.endswith("position_ids")]:
        raise RuntimeError(
            f"Our towers and transformers' {type(model).__name__} differ in {[*missing, *unexpected][:4]}."
        )
    return model.eval().requires_grad_(False)


def _describe_image(config: VisionConfig) -> dict[str, Any]:
    return _describe(config) | {"image_size": config.resolution, "patch_size": config.patch}


def _describe(config: Any) -> dict[str, Any]:
    """Return the sizes that both towers have, under transformers' names."""
    return {
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "projection_dim": config.features,
        "hidden_act": _ACTIVATIONS[config.activation],
        "layer_norm_eps": config.eps,
    }


def _rename(tower: nn.Module, side: Side, norms: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the weights under transformers' names, with QuickGELU's constants removed from the perceptrons again."""
    own = tower.state_dict() | dict(norms or {})
    weights = {key: value.detach().float().cpu() for key, value in own.items()}
    for name, module in tower.named_modules():
        if isinstance(module, Perceptron) and module.activation == "silu":
            for key, factor in (("up.weight", 1 / 1.702), ("up.bias", 1 / 1.702), ("down.weight", 1.702)):
                weights[f"{name}.{key}"] = weights[f"{name}.{key}"] * factor
    renamed: dict[str, Tensor] = {}
    for key, value in weights.items():
        names = HUGGINGFACE.find_sources(side, key)
        parts = [value.T] if key == "projection" else value.chunk(len(names))
        renamed |= zip(names, parts, strict=True)
    return renamed


def write_pretrained(part: Any, folder: Path) -> None:
    """Write the files of a model or of a tokenizer of transformers."""
    with quiet_transformers():
        part.save_pretrained(str(folder))


def write_preprocessing(preprocessing: Preprocessing, family: str, folder: Path) -> None:
    """Write ``preprocessor_config.json`` for the processor of a model family, "CLIP" or "Siglip"."""
    _write_json(folder / PREPROCESSOR, describe_preprocessing(preprocessing, family))


def write_clip_tokenizer(context: int, folder: Path) -> None:
    """Write CLIP's tokenizer: vocabulary, merges and special tokens; texts are cut to the context."""
    start, end = SPECIAL
    _write_json(folder / VOCABULARY_FILE, {word: number for number, word in enumerate((*list_words(), *SPECIAL))})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in read_merges())]
    (folder / MERGES_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokens = {"bos_token": start, "eos_token": end, "unk_token": end, "pad_token": end}
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": context}
    _write_json(folder / TOKENIZER_CONFIG, settings | tokens)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
