"""The weights of a CLIPModel of transformers in our two towers, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.models.backbone import Norms
from lmr.models.towers.block import Activation, Perceptron, fold_activations
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.text import TextConfig, TextTower

Side = Literal["image", "text"]

# Beginnings of our names and of CLIPModel's (the missing "e" of pre_layrnorm is theirs).
_NAMES: dict[Side, dict[str, str]] = {
    "image": {
        "patches.": "vision_model.embeddings.patch_embedding.",
        "class_token": "vision_model.embeddings.class_embedding",
        "positions": "vision_model.embeddings.position_embedding.weight",
        "ln_pre.": "vision_model.pre_layrnorm.",
        "blocks.": "vision_model.encoder.layers.",
        "ln_post.": "vision_model.post_layernorm.",
        "projection": "visual_projection.weight",
    },
    "text": {
        "words.": "text_model.embeddings.token_embedding.",
        "positions": "text_model.embeddings.position_embedding.weight",
        "blocks.": "text_model.encoder.layers.",
        "ln_final.": "text_model.final_layer_norm.",
        "projection": "text_projection.weight",
    },
}
_BLOCK = {
    "ln_1.": "layer_norm1.",
    "qkv.": "self_attn.q_proj.|self_attn.k_proj.|self_attn.v_proj.",
    "out.": "self_attn.out_proj.",
    "ln_2.": "layer_norm2.",
    "mlp.up.": "mlp.fc1.",
    "mlp.down.": "mlp.fc2.",
}
_ACTIVATIONS: dict[str, Activation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def _find_sources(side: Side, key: str) -> list[str]:
    """List the tensors of CLIPModel that make up our ``key``, in the order they are stacked."""
    inside = re.fullmatch(r"(blocks\.)(\d+\.)(.+)", key)
    table, begin, rest = (_BLOCK, _NAMES[side][inside[1]] + inside[2], inside[3]) if inside else (_NAMES[side], "", key)
    ours = next(ours for ours in table if rest.startswith(ours))
    return [begin + theirs + rest.removeprefix(ours) for theirs in table[ours].split("|")]


def copy_towers(model: Any, dtype: torch.dtype) -> tuple[VisionTower, TextTower]:
    """Return our towers with a copy of the weights of a CLIPModel in ``dtype``, frozen."""
    given: dict[str, Tensor] = {key: value for key, value in model.state_dict().items() if "position_ids" not in key}
    with torch.device("meta"):  # without values, so that building them costs nothing
        image, text = (VisionTower(_read_image(model.config)), TextTower(_read_text(model.config)))
    sides: tuple[tuple[Side, nn.Module], ...] = (("image", image), ("text", text))
    sources = {(side, key): _find_sources(side, key) for side, tower in sides for key in tower.state_dict()}
    known = {"logit_scale"}.union(*sources.values())
    if known != set(given):
        differing = sorted(known ^ set(given))
        raise LmrError(
            f"Expected a CLIPModel with its own layers, got one in which {len(differing)} weights differ "
            f"({', '.join(differing[:3])}). Merge adapters into the model first."
        )
    for side, tower in sides:
        weights = {}
        for key in tower.state_dict():
            joined = torch.cat([given[name].detach() for name in sources[side, key]])  # always a copy
            weights[key] = (joined.T if key == "projection" else joined).to(dtype).contiguous()
        tower.load_state_dict(weights, assign=True)
        fold_activations(tower.eval().requires_grad_(False))  # before the weights lose precision
    return image, text


def _read_image(config: Any) -> VisionConfig:
    part = config.vision_config
    if part.num_channels != 3:
        raise LmrError(f"Expected a model of images with 3 channels, got one with {part.num_channels}.")
    return VisionConfig(resolution=part.image_size, patch=part.patch_size, **_read_sizes(part, config))


def _read_text(config: Any) -> TextConfig:
    part = config.text_config
    return TextConfig(context=part.max_position_embeddings, vocabulary=part.vocab_size, **_read_sizes(part, config))


def _read_sizes(part: Any, config: Any) -> dict[str, Any]:
    """Return the sizes that both towers have, under our names."""
    if part.hidden_act not in _ACTIVATIONS:
        raise LmrError(f"Expected one of the activations {', '.join(_ACTIVATIONS)}, got {part.hidden_act!r}.")
    return {
        "width": part.hidden_size,
        "hidden": part.intermediate_size,
        "depth": part.num_hidden_layers,
        "heads": part.num_attention_heads,
        "features": config.projection_dim,
        "activation": _ACTIVATIONS[part.hidden_act],
        "eps": part.layer_norm_eps,
    }


def build_transformers_clip(image: VisionTower, text: TextTower, end: int, norms: Norms) -> Any:
    """Return a CLIPModel in float32 with the weights of both towers, except for ``norms``.

    ``end`` is the id of the token that ends a text.
    """
    from transformers import CLIPConfig, CLIPModel

    read = _describe(text.config) | {"vocab_size": text.config.vocabulary, "bos_token_id": None, "eos_token_id": end}
    config = CLIPConfig(
        projection_dim=image.config.features,
        vision_config=describe_image(image.config),
        text_config=read | {"max_position_embeddings": text.config.context},
    )
    weights = rename_weights(image, "image", norms.get(Tower.IMAGE)) | rename_weights(
        text, "text", norms.get(Tower.TEXT)
    )
    model: Any = CLIPModel(config)
    model.load_state_dict(weights | {"logit_scale": model.logit_scale.detach()})
    return model.eval().requires_grad_(False)


def describe_image(config: VisionConfig) -> dict[str, Any]:
    """Return the sizes of an image tower under transformers' names."""
    return _describe(config) | {"image_size": config.resolution, "patch_size": config.patch}


def _describe(config: VisionConfig | TextConfig) -> dict[str, Any]:
    """Return the sizes that both towers have, under transformers' names."""
    return {
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "projection_dim": config.features,
        "hidden_act": next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation),
        "layer_norm_eps": config.eps,
    }


def rename_weights(tower: nn.Module, side: Side, norms: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the weights under transformers' names, with QuickGELU's constants removed from the perceptrons again."""
    own = tower.state_dict() | dict(norms or {})
    weights = {key: value.detach().float().cpu() for key, value in own.items()}
    for name, module in tower.named_modules():
        if isinstance(module, Perceptron) and module.activation == "silu":
            for key, factor in (("up.weight", 1 / 1.702), ("up.bias", 1 / 1.702), ("down.weight", 1.702)):
                weights[f"{name}.{key}"] = weights[f"{name}.{key}"] * factor
    renamed: dict[str, Tensor] = {}
    for key, value in weights.items():
        names = _find_sources(side, key)
        parts = [value.T] if key == "projection" else value.chunk(len(names))
        renamed |= zip(names, parts, strict=True)
    return renamed
