"""A model's preprocessing from the files beside its weights; a setting that cannot be followed is refused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.models.formats.tower_configs import OPEN_CLIP_CONFIG, read_json
from lmr.models.model_facts import ModelFormat
from lmr.models.preprocessing import (
    DEVIATIONS,
    MEANS,
    OPENAI_MEAN,
    OPENAI_STD,
    Channels,
    Interpolation,
    Preprocessing,
)

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
_RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # PIL's codes of its filters
HALF = (0.5, 0.5, 0.5)  # SigLIP's mean and deviation (Zhai et al. 2023): pixels from -1 to 1

# Defaults of missing entries, by the beginning of the processor's name; from transformers.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "CLIP": {
        "size": {"shortest_edge": 224},
        "resample": 3,
        "do_center_crop": True,
        "image_mean": OPENAI_MEAN,
        "image_std": OPENAI_STD,
        "default_to_square": False,
    },
    "Siglip": {
        "size": {"height": 224, "width": 224},
        "resample": 3,
        "do_center_crop": False,
        "image_mean": HALF,
        "image_std": HALF,
        "default_to_square": False,
    },
}
_DEMANDED = ("size", "resample", "image_mean", "image_std")  # of a processor whose defaults are unknown

# Entries of preprocessor_config.json that do not change the values of the tensors.
_HARMLESS = {
    "image_processor_type",
    "feature_extractor_type",
    "processor_class",
    "_valid_processor_keys",
    "do_convert_rgb",  # images are always converted
    "data_format",
    "input_data_format",
    "return_tensors",
    "default_to_square",
    "device",
    "auto_map",
    "transformers_version",
}


def openai_preprocessing(resolution: int) -> Preprocessing:
    """The preprocessing of OpenAI's CLIP, which LAION's and DataComp's models share."""
    return Preprocessing(resolution, OPENAI_MEAN, OPENAI_STD)


def read_preprocessing(folder: Path, form: ModelFormat, resolution: int) -> tuple[Preprocessing, str | None]:
    """The preprocessing of a model of this form in this folder, and the file that names it.

    Without a file (None) the constants of the model's family are used.
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
        return Preprocessing(resolution, HALF, HALF, resize="squash"), None
    return openai_preprocessing(resolution), None


def find_settings(folder: Path) -> tuple[Any, str | None]:
    """The settings of Hugging Face's image processor in this folder, and the file that holds them (None without)."""
    if (folder / PREPROCESSOR).is_file():
        return read_json(folder / PREPROCESSOR), PREPROCESSOR
    config = read_json(folder / PROCESSOR) if (folder / PROCESSOR).is_file() else {}
    return (config["image_processor"], PROCESSOR) if "image_processor" in config else ({}, None)


def describe_preprocessing(preprocessing: Preprocessing, family: str) -> dict[str, Any]:
    """The same as Hugging Face's settings, with nothing left to defaults; ``family`` is "CLIP" or "Siglip"."""
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
    """The preprocessing in the settings of Hugging Face's image processor; missing ones have its type's defaults."""
    model = "Siglip" if form is ModelFormat.SIGLIP else "CLIP"
    config = _fill_in(check_object(config, where), where, model)
    interpolation = check_steps(config, {"size", "do_center_crop", "crop_size"}, where)
    size, cut, crop = config["size"], config["do_center_crop"] is True, config.get("crop_size", resolution)
    one_side = isinstance(size, int) and not config["default_to_square"]
    short = size if one_side else size.get("shortest_edge") if isinstance(size, dict) else None
    if short == resolution and cut and _read_square(crop) == resolution:
        resize = "short"
    elif not one_side and _read_square(size) == resolution and (not cut or _read_square(crop) == resolution):
        resize = "squash"
    else:
        raise LmrError(
            f"Expected {where} to scale the short side to {resolution} pixels and crop the centre, or to scale both "
            f"sides to {resolution}, the model's resolution; got size {size!r}, do_center_crop "
            f"{config['do_center_crop']!r} and crop_size {crop!r}."
        )
    return _build(resolution, config["image_mean"], config["image_std"], resize, interpolation, where)


def check_steps(config: dict[str, Any], sizes: set[str], where: str) -> Interpolation:
    """Check the steps of an image processor, whose sizes are in the entries ``sizes``; the filter that it resizes with.

    ``resample`` must be there.
    """
    known = {"do_resize", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"}
    _refuse_unknown(config, known | sizes | _HARMLESS, where)
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if config.get(step, True) is not True:
            raise LmrError(f"Expected {step} to be true in {where}, got {config[step]!r}; the model needs this step.")
    factor = config.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or not abs(factor * 255 - 1) <= 1e-3:
        raise LmrError(f"Expected 1/255 as rescale_factor in {where}, got {factor!r}.")
    if config["resample"] not in tuple(_RESAMPLE):
        raise LmrError(f"Expected resample 3 (bicubic) or 2 (bilinear) in {where}, got {config['resample']!r}.")
    return _RESAMPLE[config["resample"]]


def read_channels(mean: Any, std: Any, where: str) -> tuple[Channels, Channels]:
    """Mean and standard deviation of the three channels, checked."""
    for name, values, (low, high) in (("mean", mean, MEANS), ("std", std, DEVIATIONS)):
        whole = isinstance(values, list | tuple) and all(type(value) in (int, float) for value in values)
        if not whole or len(values) != 3 or not all(low <= value <= high for value in values):
            raise LmrError(f"Expected three numbers from {low:g} to {high:g} as {name} in {where}, got {values!r}.")
    (r, g, b), (x, y, z) = map(float, mean), map(float, std)
    return (r, g, b), (x, y, z)


def check_object(config: Any, where: str) -> dict[str, Any]:
    """Settings that are an object of JSON."""
    if not isinstance(config, dict):
        raise LmrError(f"Expected an object with the preprocessing in {where}, found {config!r}.")
    return config


def _fill_in(config: dict[str, Any], where: str, model: str) -> dict[str, Any]:
    """The settings with defaults for missing ones; a processor of an unknown type must name them all."""
    kind = config.get("image_processor_type") or config.get("feature_extractor_type") or model
    for begin, defaults in _DEFAULTS.items():
        if isinstance(kind, str) and kind.startswith(begin):
            return defaults | config
    missing = [key for key in _DEMANDED if key not in config]
    if missing:
        raise LmrError(
            f"{where} is written for {kind!r}, whose defaults are unknown, and it lacks "
            f"{', '.join(missing)}. Add these entries."
        )
    return {"do_center_crop": False, "default_to_square": True} | config


def _read_open_clip(config: Any, where: str, resolution: int) -> Preprocessing:
    """open_clip's preprocess_cfg."""
    config = check_object(config, where)
    known = {
        "size",
        "mode",
        "mean",
        "std",
        "interpolation",
        "resize_mode",
        "fill_color",
    }  # fill_color is used by "longest" only
    _refuse_unknown(config, known, where)
    size = config.get("size", resolution)
    if _read_square(size) != resolution:
        raise LmrError(f"Expected the model's {resolution} pixels as size in {where}, got {size!r}.")
    if config.get("mode", "RGB") != "RGB":
        raise LmrError(f"Expected images in RGB in {where}, got mode {config['mode']!r}.")
    mode = config.get("resize_mode") or "shortest"
    if mode not in ("shortest", "squash"):
        raise LmrError(f"Expected 'shortest' or 'squash' as resize_mode in {where}, got {mode!r}.")
    filters = {"bicubic": "bicubic", "random": "bicubic", "bilinear": "bilinear"}  # random is for training only
    name = config.get("interpolation") or "bicubic"
    if name not in filters:
        raise LmrError(f"Expected 'bicubic' or 'bilinear' as interpolation in {where}, got {name!r}.")
    resize = "squash" if mode == "squash" else "short"
    mean, std = config.get("mean", OPENAI_MEAN), config.get("std", OPENAI_STD)
    return _build(resolution, mean, std, resize, filters[name], where)


def _build(resolution: int, mean: Any, std: Any, resize: Any, interpolation: Any, where: str) -> Preprocessing:
    return Preprocessing(resolution, *read_channels(mean, std, where), resize=resize, interpolation=interpolation)


def _read_square(size: Any) -> int | None:
    """The edge of a square size in any of its spellings: 224, [224, 224], {"height": 224, "width": 224}."""
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    if isinstance(size, list) and len(size) == 2 and size[0] == size[1]:
        size = size[0]
    return size if isinstance(size, int) else None


def _refuse_unknown(config: dict[str, Any], known: Iterable[str], where: str) -> None:
    for key, value in config.items():
        if key not in known and value not in (None, False, {}, []):
            raise LmrError(
                f"{where} asks for {key}={value!r}, which is unknown here, so the model would get other inputs than in "
                "training. Remove the entry if it has no effect."
            )
