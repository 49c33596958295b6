"""Sizes of a CLIP model from the configuration beside its weights: config.json or open_clip_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.models.clip.block import Activation
from lmr.models.clip.image_tower import VisionConfig
from lmr.models.clip.text_tower import TextConfig
from lmr.models.formats.tower_weights import Sizes
from lmr.models.formats.weight_names import ANYTHING

END_TOKEN = 49407  # the end of a text in CLIP's vocabulary
HF_CONFIG, OPEN_CLIP_CONFIG = "config.json", "open_clip_config.json"

# Hugging Face's names of activations.
_ACTIVATIONS: dict[str, Activation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# open_clip's settings that do not change our features: of training, of other outputs, of unused parts.
_HARMLESS = {
    "patch_dropout",
    "output_tokens",
    "attn_pooler_queries",
    "attn_pooler_heads",
    "pos_embed_type",  # the positions are stored with the weights
    "final_ln_after_pool",  # a norm of every token and the selection of one token commute
    "pad_id",
    "timm_model_pretrained",
    "timm_pool",
    "timm_proj",
    "timm_proj_bias",
    "timm_drop",
    "timm_drop_path",
    "hf_model_pretrained",
    "hf_proj_type",
    "hf_pooler_type",
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LmrError(f"{str(path)!r} is not a readable JSON file: {error}") from error
    if not isinstance(content, dict):
        raise LmrError(f"Expected an object in {str(path)!r}, found {type(content).__name__}.")
    return content


def read_hf_sizes(path: Path) -> Sizes:
    """The sizes in Hugging Face's config.json; missing entries have the defaults of transformers' CLIPConfig."""
    return parse_hf_sizes(read_json(path), str(path))


def parse_hf_sizes(config: Mapping[str, Any], origin: str) -> Sizes:
    """The sizes in the content of a config.json."""
    if config.get("model_type", "clip") != "clip" or not config.keys() & {"model_type", "vision_config"}:
        raise LmrError(f"Expected the configuration of a CLIP model in {origin!r}, but it describes another model.")
    features = _Part(config, origin).whole("projection_dim", 512)
    image = _Part(_merge(config, "vision_config", origin), f"vision_config of {origin!r}")
    words = _Part(_merge(config, "text_config", origin), f"text_config of {origin!r}")
    if image.whole("num_channels", 3) != 3:
        raise LmrError(f"{origin!r} describes images of {image.whole('num_channels', 3)} channels, not of 3.")
    vision = VisionConfig(
        resolution=image.whole("image_size", 224),
        patch=image.whole("patch_size", 32),
        width=image.whole("hidden_size", 768),
        depth=image.whole("num_hidden_layers", 12),
        heads=image.heads("hidden_size", 768, "num_attention_heads", 12),
        features=features,
        hidden=image.whole("intermediate_size", 3072),
        activation=image.activation(),
        eps=image.number("layer_norm_eps", 1e-5),
    )
    text = TextConfig(
        context=words.whole("max_position_embeddings", 77),
        vocabulary=words.whole("vocab_size", 49408),
        width=words.whole("hidden_size", 512),
        depth=words.whole("num_hidden_layers", 12),
        heads=words.heads("hidden_size", 512, "num_attention_heads", 8),
        features=features,
        hidden=words.whole("intermediate_size", 2048),
        activation=words.activation(),
        eps=words.number("layer_norm_eps", 1e-5),
    )
    return vision, text


def read_end_token(config: Mapping[str, Any], origin: str) -> int:
    """The id of the token that ends a text, in the content of a config.json."""
    end = _merge(config, "text_config", origin).get("eos_token_id", END_TOKEN)
    if not isinstance(end, int) or isinstance(end, bool) or end < 0:
        raise LmrError(f"Expected the id of a token as eos_token_id in text_config of {origin!r}, got {end!r}.")
    return end


def read_open_clip_sizes(path: Path) -> Sizes:
    """The sizes in open_clip's configuration; a setting that would change the features in an unknown way is refused."""
    config = read_json(path)
    config = config.get("model_cfg", config)
    whole = _Part(config, repr(str(path)))
    image, words = whole.part("vision_cfg"), whole.part("text_cfg")
    for values, key, what in (
        (config, "multimodal_cfg", "it is a CoCa model, with a text decoder"),
        (image.values, "timm_model_name", "its image tower is a timm model"),
        (words.values, "hf_model_name", "its text tower is a Hugging Face language model"),
        (words.values, "hf_tokenizer_name", "its tokenizer is not CLIP's"),
    ):
        if values.get(key):
            raise LmrError(f"{str(path)!r} describes a model that cannot be loaded: {what}. {ANYTHING}")
    if isinstance(image.values.get("layers"), list):
        raise LmrError(
            f"{str(path)!r} describes a model that cannot be loaded: its image tower is a ResNet. {ANYTHING}"
        )
    whole.known = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text", "output_dict"}
    whole.known |= {"init_logit_scale", "init_logit_bias", "nonscalar_logit_scale", "cast_dtype"}
    features, quick = whole.whole("embed_dim", 512), bool(config.get("quick_gelu"))
    width, text_width = image.whole("width", 768), words.whole("width", 512)
    vision = VisionConfig(
        resolution=image.whole("image_size", 224),
        patch=image.whole("patch_size", 16),
        width=width,
        depth=image.whole("layers", 12),
        heads=max(1, width // image.whole("head_width", 64)),
        features=features,
        hidden=int(width * image.number("mlp_ratio", 4.0)),
        activation=image.open_clip_activation(quick),
        eps=image.open_clip_eps(),
    )
    text = TextConfig(
        context=words.whole("context_length", 77),
        vocabulary=words.whole("vocab_size", 49408),
        width=text_width,
        depth=words.whole("layers", 12),
        heads=words.heads("width", 512, "heads", 8),
        features=features,
        hidden=int(text_width * words.number("mlp_ratio", 4.0)),
        activation=words.open_clip_activation(quick),
        eps=words.open_clip_eps(),
    )
    image.accept("pool_type", "tok")
    words.accept("pool_type", "argmax")
    words.accept("proj_type", "linear")
    words.accept("eos_id", 2, END_TOKEN)
    for part in (whole, image, words):
        part.refuse_unknown()
    return vision, text


def compare_sizes(one: Sizes, one_name: str, other: Sizes, other_name: str) -> None:
    """Refuse two sources of the sizes that disagree."""
    for side, mine, theirs in (("image", one[0], other[0]), ("text", one[1], other[1])):
        for field in fields(mine):
            a, b = getattr(mine, field.name), getattr(theirs, field.name)
            if a != b:
                raise LmrError(
                    f"{one_name} and {other_name} disagree: {field.name} of the {side} tower is {a} in the first "
                    f"and {b} in the second. Name the architecture that belongs to the weights, or omit it."
                )


def _merge(config: Mapping[str, Any], key: str, origin: str) -> dict[str, Any]:
    """One tower's settings; early files hold them twice, and transformers prefers the second, ``..._dict``."""
    merged: dict[str, Any] = {}
    for name in (key, f"{key}_dict"):
        values = config.get(name) or {}
        if not isinstance(values, dict):
            raise LmrError(f"Expected an object as {name} in {origin!r}, found {values!r}.")
        merged |= values
    return merged


class _Part:
    """Settings that record which of them were read, so that the others can be refused."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise LmrError(f"Expected an object with the sizes in {where}, found {values!r}.")
        self.values, self.where = values, where
        self.known: set[str] = set()

    def part(self, key: str) -> _Part:
        return _Part(self.values.get(key), f"{key} of {self.where}")

    def whole(self, key: str, default: int) -> int:
        """A whole number above 0, or a pair of equal ones (square images, square patches)."""
        self.known.add(key)
        value = self.values.get(key, default)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**24:
            raise LmrError(f"Expected a whole number above 0 as {key} in {self.where}, got {value!r}.")
        return value

    def number(self, key: str, default: float) -> float:
        self.known.add(key)
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e6:
            raise LmrError(f"Expected a number above 0 as {key} in {self.where}, got {value!r}.")
        return float(value)

    def heads(self, width_key: str, width: int, key: str, default: int) -> int:
        heads, width = self.whole(key, default), self.whole(width_key, width)
        if width % heads:
            raise LmrError(f"Expected {key} in {self.where} to divide the width {width}, got {heads}.")
        return heads

    def activation(self) -> Activation:
        name = self.values.get("hidden_act", "quick_gelu")
        if name not in _ACTIVATIONS:
            raise LmrError(f"Expected one of {', '.join(_ACTIVATIONS)} as hidden_act in {self.where}, got {name!r}.")
        return _ACTIVATIONS[name]

    def open_clip_activation(self, quick: bool) -> Activation:
        """QuickGELU where the model says so, else GELU, which act_kwargs may ask to approximate."""
        self.known.add("act_kwargs")
        options = self.values.get("act_kwargs") or {}
        if options == {"approximate": "tanh"} and not quick:
            return "gelu_tanh"
        if options not in ({}, {"approximate": "none"}):
            raise LmrError(f"{self.where} asks for an activation with {options!r}, which is not known here. {ANYTHING}")
        return "quick_gelu" if quick else "gelu"

    def open_clip_eps(self) -> float:
        self.known.add("norm_kwargs")
        options = self.values.get("norm_kwargs") or {}
        if not isinstance(options, dict) or set(options) - {"eps"}:
            raise LmrError(f"{self.where} asks for norms with {options!r}, which are not known here. {ANYTHING}")
        return _Part(options, self.where).number("eps", 1e-5)

    def accept(self, key: str, *values: Any) -> None:
        """Accept a setting if it has one of these values."""
        if self.values.get(key, values[0]) in values:
            self.known.add(key)

    def refuse_unknown(self) -> None:
        """Refuse the first setting that was not read; false, null and empty settings have no effect."""
        for key, value in self.values.items():
            if key not in self.known and key not in _HARMLESS and value not in (None, False, {}, [], ""):
                raise LmrError(f"{self.where} asks for {key}={value!r}, which is not known here. {ANYTHING}")
