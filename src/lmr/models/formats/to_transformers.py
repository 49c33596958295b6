"""Our towers as models of transformers: the same weights in an independent implementation, to compare with or to save.

A stem of convolutions has no counterpart there. Its layers are put in the place of the patch layer as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lmr.core.traits import Tower
from lmr.models.clip.block import Perceptron
from lmr.models.clip.image_tower import VisionConfig, VisionTower
from lmr.models.clip.text_tower import TextTower
from lmr.models.formats.weight_names import HUGGINGFACE, Side

_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


Norms = Mapping[Tower, Mapping[str, Tensor]]  # of the towers that adapt: parameters under their names in the tower


def build_transformers_clip(image: VisionTower, text: TextTower, norms: Norms | None = None) -> Any:
    """A CLIPModel in float32 with the weights of both towers, except for ``norms``."""
    from transformers import CLIPConfig, CLIPModel

    read = text.config
    config = CLIPConfig(
        projection_dim=image.config.features,
        vision_config=_describe_image(image.config),
        text_config=_describe(read) | {"vocab_size": read.vocabulary, "max_position_embeddings": read.context},
    )
    adapted = norms or {}
    weights = _rename(image, "image", adapted.get(Tower.IMAGE)) | _rename(text, "text", adapted.get(Tower.TEXT))
    return _fill(CLIPModel(config), image, weights)


def build_transformers_vision(image: VisionTower) -> Any:
    """A CLIPVisionModelWithProjection in float32 with the weights of an image tower."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    model = CLIPVisionModelWithProjection(CLIPVisionConfig(**_describe_image(image.config)))
    return _fill(model, image, _rename(image, "image"))


class _Stem(nn.Sequential):
    """The layers of a stem, with what transformers asks a patch layer for."""

    @property
    def weight(self) -> Tensor:
        return next(self.parameters())


def _fill(model: Any, image: VisionTower, weights: dict[str, Tensor]) -> Any:
    """The model with these weights, in evaluation mode; every weight of it must be given."""
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
    """The sizes that both towers have, under transformers' names."""
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
    """The weights under transformers' names, with QuickGELU's constants removed from the perceptrons again."""
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
