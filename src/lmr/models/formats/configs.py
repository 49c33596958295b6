"""The configuration files beside a CLIP model's weights: sizes and preprocessing; an unknown setting is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from lmr.core.errors import LmrError
from lmr.models.catalog import OTHER_MODELS
from lmr.models.facts import ModelFormat
from lmr.models.preprocessing import OPENAI_MEAN, OPENAI_STD, Interpolation, Preprocessing
from lmr.models.tokenizers import CLIP_END
from lmr.models.towers.architectures import Sizes
from lmr.models.towers.block import Activation
from lmr.models.towers.image import VisionConfig
from lmr.models.towers.text import TextConfig

P = TypeVar("P", bound=Preprocessing)
HF_CONFIG, OPEN_CLIP_CONFIG = "config.json", "open_clip_config.json"

# Our names of sizes, theirs and their defaults. Hugging Face's come from transformers' CLIPConfig.
_HF_IMAGE = {
    "resolution": ("image_size", 224), "patch": ("patch_size", 32), "width": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12), "heads": ("num_attention_heads", 12), "hidden": ("intermediate_size", 3072),
}  # fmt: skip
_HF_TEXT = {
    "context": ("max_position_embeddings", 77), "vocabulary": ("vocab_size", 49408), "width": ("hidden_size", 512),
    "depth": ("num_hidden_layers", 12), "heads": ("num_attention_heads", 8), "hidden": ("intermediate_size", 2048),
}  # fmt: skip
_OPEN_CLIP_IMAGE = {
    "resolution": ("image_size", 224), "patch": ("patch_size", 16), "width": ("width", 768), "depth": ("layers", 12),
}  # fmt: skip
_OPEN_CLIP_TEXT = {
    "context": ("context_length", 77), "vocabulary": ("vocab_size", 49408), "width": ("width", 512),
    "depth": ("layers", 12), "heads": ("heads", 8),
}  # fmt: skip

# Hugging Face's names of activations.
_ACTIVATIONS: dict[str, Activation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# open_clip's settings that are read elsewhere or do not change our features: of training, of other outputs, of unused
# parts. The positions are stored with the weights; a norm of every token and the selection of one token commute.
_UNUSED_SETTINGS = {
    "quick_gelu", "custom_text", "output_dict", "init_logit_scale", "init_logit_bias", "nonscalar_logit_scale",
    "cast_dtype",
    "patch_dropout", "output_tokens", "attn_pooler_queries", "attn_pooler_heads", "pos_embed_type",
    "final_ln_after_pool", "pad_id",
}  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LmrError(f"{str(path)!r} is not a readable JSON file: {error}") from error
    if not isinstance(content, dict):
        raise LmrError(f"Expected an object in {str(path)!r}, found {type(content).__name__}.")
    return content


def read_hf_sizes(path: Path) -> Sizes:
    """Read the sizes in Hugging Face's config.json; missing entries have the defaults of transformers' CLIPConfig."""
    return parse_hf_sizes(read_json(path), str(path))


def parse_hf_sizes(config: Mapping[str, Any], origin: str) -> Sizes:
    """Return the sizes in the content of a config.json."""
    if config.get("model_type", "clip") != "clip" or not config.keys() & {"model_type", "vision_config"}:
        raise LmrError(f"Expected the configuration of a CLIP model in {origin!r}, but it describes another model.")
    features = Settings(config, origin).whole("projection_dim", 512)
    image, text = (
        Settings(_merge(config, key, origin), f"{key} of {origin!r}") for key in ("vision_config", "text_config")
    )
    if image.whole("num_channels", 3) != 3:
        raise LmrError(f"{origin!r} describes images of {image.values['num_channels']} channels, not of 3.")
    common = [
        {
            "features": features,
            "activation": part.choose("hidden_act", _ACTIVATIONS, "quick_gelu"),
            "eps": part.number("layer_norm_eps", 1e-5),
        }
        for part in (image, text)
    ]
    return VisionConfig(**image.sizes(_HF_IMAGE), **common[0]), TextConfig(**text.sizes(_HF_TEXT), **common[1])


def read_end_token(config: Mapping[str, Any], origin: str) -> int:
    """Return the id of the token that ends a text, from the content of a config.json."""
    end = _merge(config, "text_config", origin).get("eos_token_id", CLIP_END)
    if not isinstance(end, int) or isinstance(end, bool) or end < 0:
        raise LmrError(f"Expected the id of a token as eos_token_id in text_config of {origin!r}, got {end!r}.")
    return end


def read_open_clip_sizes(path: Path) -> Sizes:
    """Read the sizes in open_clip's configuration; a setting with an unknown effect on the features is refused.

    Models of other kinds are known by the names of their weights, which are read before (``detect_naming``).
    """
    config = read_json(path)
    whole = Settings(config.get("model_cfg", config), repr(str(path)))
    image, text = whole.part("vision_cfg"), whole.part("text_cfg")
    features, quick = whole.whole("embed_dim", 512), bool(whole.values.get("quick_gelu"))
    towers: list[dict[str, Any]] = []
    for part, table in ((image, _OPEN_CLIP_IMAGE), (text, _OPEN_CLIP_TEXT)):
        sizes = part.sizes(table)
        sizes["hidden"] = int(sizes["width"] * part.number("mlp_ratio", 4.0))
        sizes |= {"activation": part.open_clip_activation(quick), "eps": part.open_clip_eps(), "features": features}
        towers.append(sizes)
    heads = max(1, towers[0]["width"] // image.whole("head_width", 64))
    image.accept("pool_type", "tok")
    text.accept("pool_type", "argmax")
    text.accept("proj_type", "linear")
    text.accept("eos_id", 2, CLIP_END)
    for part in (whole, image, text):
        part.refuse_unknown(_UNUSED_SETTINGS, OTHER_MODELS)
    return VisionConfig(heads=heads, **towers[0]), TextConfig(**towers[1])


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
    """Return one tower's settings; early files hold them twice, and transformers prefers the second, ``..._dict``."""
    merged: dict[str, Any] = {}
    for name in (key, f"{key}_dict"):
        values = config.get(name) or {}
        if not isinstance(values, dict):
            raise LmrError(f"Expected an object as {name} in {origin!r}, found {values!r}.")
        merged |= values
    return merged


class Settings:
    """Settings that record which of them were read, so that the others can be refused."""

    def __init__(self, values: Any, where: str, content: str = "sizes") -> None:
        if not isinstance(values, Mapping):
            raise LmrError(f"Expected an object with the {content} in {where}, found {values!r}.")
        self.values, self.where = values, where
        self.known: set[str] = set()

    def part(self, key: str) -> Settings:
        """Return the settings of one tower."""
        self.known.add(key)
        return Settings(self.values.get(key), f"{key} of {self.where}")

    def sizes(self, table: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
        """Read whole numbers: our names, from theirs and their defaults."""
        found = {ours: self.whole(*theirs) for ours, theirs in table.items()}
        if found["width"] % found.get("heads", 1):
            key = table["heads"][0]
            raise LmrError(
                f"Expected {key} in {self.where} to divide the width {found['width']}, got {found['heads']}."
            )
        return found

    def choose(self, key: str, values: Mapping[Any, Any], default: Any) -> Any:
        """Return what stands for a setting in ``values``; null is the default."""
        self.known.add(key)
        value = default if self.values.get(key) is None else self.values[key]
        if not isinstance(value, str | int) or value not in values:
            names = ", ".join(map(repr, values))
            raise LmrError(f"Expected one of {names} as {key} in {self.where}, got {value!r}.")
        return values[value]

    def whole(self, key: str, default: int) -> int:
        """Read a whole number above 0, or a pair of equal ones (square images, square patches)."""
        self.known.add(key)
        value = self.values.get(key, default)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**24:
            raise LmrError(f"Expected a whole number above 0 as {key} in {self.where}, got {value!r}.")
        return value

    def number(self, key: str, default: float) -> float:
        """Read a number above 0."""
        self.known.add(key)
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e6:
            raise LmrError(f"Expected a number above 0 as {key} in {self.where}, got {value!r}.")
        return float(value)

    def open_clip_activation(self, quick: bool) -> Activation:
        """Return QuickGELU where the model says so, else GELU, which act_kwargs may approximate."""
        self.known.add("act_kwargs")
        options = self.values.get("act_kwargs") or {}
        if options == {"approximate": "tanh"} and not quick:
            return "gelu_tanh"
        if options not in ({}, {"approximate": "none"}):
            raise LmrError(f"{self.where} has an activation with {options!r}, which is not known here. {OTHER_MODELS}")
        return "quick_gelu" if quick else "gelu"

    def open_clip_eps(self) -> float:
        """Return the constant of the norms."""
        self.known.add("norm_kwargs")
        options = self.values.get("norm_kwargs") or {}
        if not isinstance(options, dict) or set(options) - {"eps"}:
            raise LmrError(f"{self.where} has norms with {options!r}, which are not known here. {OTHER_MODELS}")
        return Settings(options, self.where).number("eps", 1e-5)

    def accept(self, key: str, *values: Any) -> None:
        """Accept a setting if it has one of these values."""
        if self.values.get(key, values[0]) in values:
            self.known.add(key)

    def refuse_unknown(self, unused: set[str], advice: str) -> None:
        """Refuse the first setting that was not read and is not ``unused``; false, null and empty ones do nothing."""
        for key, value in self.values.items():
            if key not in self.known | unused and value not in (None, False, {}, [], ""):
                raise LmrError(f"{self.where} sets {key}={value!r}, which is not known here. {advice}")


PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
_RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # PIL's codes of its filters
CLIP_OWN, SIGLIP_OWN = "CLIP's own constants", "SigLIP's own constants"
HALF = (0.5, 0.5, 0.5)  # SigLIP's mean and deviation (Zhai et al. 2023): pixels from -1 to 1

# Defaults of missing entries, by the beginning of the processor's name; from transformers.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "CLIP": {
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "image_mean": OPENAI_MEAN,
        "image_std": OPENAI_STD,
    },
    "Siglip": {"size": {"height": 224, "width": 224}, "do_center_crop": False, "image_mean": HALF, "image_std": HALF},
}
_REMOVE = "The model would get other inputs than in training; remove the entry if it has no effect."
_DEMANDED = ("size", "resample", "image_mean", "image_std")  # of a processor whose defaults are unknown

# Entries of preprocessor_config.json that do not change the values of the tensors; images are always converted to RGB.
_UNUSED_STEPS = {
    "image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys", "do_convert_rgb",
    "data_format", "input_data_format", "return_tensors", "default_to_square", "device", "auto_map",
    "transformers_version",
}  # fmt: skip


def openai_preprocessing(resolution: int) -> Preprocessing:
    """Return the preprocessing of OpenAI's CLIP, which LAION's and DataComp's models share."""
    return Preprocessing(resolution, OPENAI_MEAN, OPENAI_STD)


def read_preprocessing(folder: Path, form: ModelFormat, resolution: int) -> tuple[Preprocessing, str]:
    """Read the preprocessing of a model of this form in this folder, and return it with the name of its file.

    Without a file the constants of the model's family are used.
    """
    if form in (ModelFormat.HUGGINGFACE, ModelFormat.SIGLIP):
        settings, name = find_settings(folder)
        if name is not None:
            return parse_preprocessing(settings, repr(str(folder / name)), form, resolution), name
    if form is ModelFormat.OPEN_CLIP and (folder / OPEN_CLIP_CONFIG).is_file():
        path = folder / OPEN_CLIP_CONFIG
        config = read_json(path)
        if config.get("preprocess_cfg"):
            return _read_open_clip(config["preprocess_cfg"], repr(str(path)), resolution), OPEN_CLIP_CONFIG
    if form is ModelFormat.SIGLIP:
        return Preprocessing(resolution, HALF, HALF, resize="squash"), SIGLIP_OWN
    return openai_preprocessing(resolution), CLIP_OWN


def find_settings(folder: Path) -> tuple[Any, str | None]:
    """Return the settings of Hugging Face's image processor in this folder, and their file (None without one)."""
    if (folder / PREPROCESSOR).is_file():
        return read_json(folder / PREPROCESSOR), PREPROCESSOR
    config = read_json(folder / PROCESSOR) if (folder / PROCESSOR).is_file() else {}
    return (config["image_processor"], PROCESSOR) if "image_processor" in config else ({}, None)


def describe_preprocessing(preprocessing: Preprocessing, family: str) -> dict[str, Any]:
    """Return all of Hugging Face's settings for a preprocessing; ``family`` is "CLIP" or "Siglip"."""
    side = preprocessing.resolution
    square, short = {"height": side, "width": side}, preprocessing.resize == "short"
    return {
        "image_processor_type": f"{family}ImageProcessor",
        "processor_class": f"{family}Processor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": side} if short else square,
        "resample": next(code for code, name in _RESAMPLE.items() if name == preprocessing.interpolation),
        "do_center_crop": short,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }


def parse_preprocessing(config: Any, where: str, form: ModelFormat, resolution: int) -> Preprocessing:
    """Return the preprocessing of a Hugging Face image processor; missing settings have its type's defaults."""
    settings = Settings(config, where, "preprocessing")
    settings.values = values = _fill_in(settings.values, where, "Siglip" if form is ModelFormat.SIGLIP else "CLIP")
    settings.known = {"size", "do_center_crop", "crop_size"}
    steps = read_steps(settings)
    size, cut, crop = values["size"], values["do_center_crop"] is True, values.get("crop_size", resolution)
    one_side = isinstance(size, int) and not values["default_to_square"]
    short = size if one_side else size.get("shortest_edge") if isinstance(size, dict) else None
    if short == resolution and cut and _read_square(crop) == resolution:
        resize = "short"
    elif not one_side and _read_square(size) == resolution and (not cut or _read_square(crop) == resolution):
        resize = "squash"
    else:
        raise LmrError(
            f"Expected {where} to scale the short side to {resolution} pixels and crop the centre, or to scale both "
            f"sides to {resolution}, the model's resolution; got size {size!r}, do_center_crop "
            f"{values['do_center_crop']!r} and crop_size {crop!r}."
        )
    return build(Preprocessing, where, resolution=resolution, resize=resize, **steps)


def read_steps(settings: Settings) -> dict[str, Any]:
    """Check the steps of an image processor, whose sizes are already known; return filter, mean and deviation."""
    values, where = settings.values, settings.where
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if values.get(step, True) is not True:
            raise LmrError(f"Expected {step} to be true in {where}, got {values[step]!r}; the model needs this step.")
    factor = values.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or not abs(factor * 255 - 1) <= 1e-3:
        raise LmrError(f"Expected 1/255 as rescale_factor in {where}, got {factor!r}.")
    interpolation = settings.choose("resample", _RESAMPLE, 3)
    settings.known |= {"do_resize", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"}
    settings.refuse_unknown(_UNUSED_STEPS, _REMOVE)
    return {"interpolation": interpolation, "mean": values["image_mean"], "std": values["image_std"]}


def build(kind: type[P], where: str, **values: Any) -> P:
    """Return a preprocessing; an error names the file of its settings."""
    try:
        return kind(**values)
    except LmrError as error:
        raise LmrError(f"{where} has a wrong setting. {error}") from error


def _fill_in(config: Mapping[str, Any], where: str, model: str) -> dict[str, Any]:
    """Fill missing settings with defaults; a processor of an unknown type must name them all."""
    kind = config.get("image_processor_type") or config.get("feature_extractor_type") or model
    for begin, defaults in _DEFAULTS.items():
        if isinstance(kind, str) and kind.startswith(begin):
            return {"resample": 3, "default_to_square": False, **defaults, **config}
    missing = [key for key in _DEMANDED if key not in config]
    if missing:
        raise LmrError(
            f"{where} is written for {kind!r}, whose defaults are unknown, and it lacks "
            f"{', '.join(missing)}. Add these entries."
        )
    return {"do_center_crop": False, "default_to_square": True, **config}


def _read_open_clip(config: Any, where: str, resolution: int) -> Preprocessing:
    """Read open_clip's preprocess_cfg."""
    settings = Settings(config, where, "preprocessing")
    settings.known = {"size", "mean", "std", "fill_color"}  # the last is of "longest"
    size = settings.values.get("size", resolution)
    if _read_square(size) != resolution:
        raise LmrError(f"Expected the model's {resolution} pixels as size in {where}, got {size!r}.")
    settings.choose("mode", {"RGB": "RGB"}, "RGB")
    resize = settings.choose("resize_mode", {"shortest": "short", "squash": "squash"}, "shortest")
    filters = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}  # random is for training only
    interpolation = settings.choose("interpolation", filters, "bicubic")
    settings.refuse_unknown(set(), _REMOVE)
    channels = {"mean": settings.values.get("mean", OPENAI_MEAN), "std": settings.values.get("std", OPENAI_STD)}
    return build(Preprocessing, where, resolution=resolution, resize=resize, interpolation=interpolation, **channels)


def _read_square(size: Any) -> int | None:
    """Return the edge of a square size in any spelling: 224, [224, 224], {"height": 224, "width": 224}."""
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    if isinstance(size, list) and len(size) == 2 and size[0] == size[1]:
        size = size[0]
    return size if isinstance(size, int) else None
