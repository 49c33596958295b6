"""Backbones from models of transformers in memory: CLIP with lmr's towers, SigLIP with a copy of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lmr.core.classifier import ZeroShot, leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.placement import Device, check_device, choose_dtype
from lmr.models.backbone import Backbone
from lmr.models.clip import VOCABULARY, Clip, check_clip_end
from lmr.models.facts import ModelFacts, ModelFormat
from lmr.models.formats.checkpoints import HUGGINGFACE, convert_weights
from lmr.models.formats.configs import parse_hf_sizes, parse_preprocessing, read_end_token
from lmr.models.naflex import parse_patch_preprocessing
from lmr.models.preprocessing import Preprocessing
from lmr.models.prompts import DEFAULT_TEMPLATES, Templates, write_prompts
from lmr.models.siglip import Siglip, SiglipSource, is_naflex
from lmr.models.tokenizers import TransformersTokenizer, describe_rules, is_clip_json
from lmr.models.towers.architectures import Sizes
from lmr.models.transformers_library import import_transformers

_WHERE = "the settings of the image processor"
# Beginnings of the names of classes that belong to one kind of model, and those that another kind must not have.
_FOREIGN = {"CLIPModel": ("Siglip",), "SiglipModel": ("CLIP",), "Siglip2Model": ("CLIP",)}


def from_transformers(
    model: Any,
    processor: Any,
    names: Sequence[str],
    templates: Templates = DEFAULT_TEMPLATES,
    *,
    device: Device | None = None,
    dtype: torch.dtype | None = None,
) -> ZeroShot:
    """Return a classifier for these class names from a CLIPModel, SiglipModel or Siglip2Model of transformers.

    ``processor`` is the model's own, as AutoProcessor gives it: it says how images and texts are read. The weights are
    copied, so the model is never changed, and memory must hold it twice. ``device`` and ``dtype`` are those of the
    model unless given. Images come from ``wrap_transformers(model, processor).preprocess``; those of the processor
    (``pixel_values``) are the same up to rounding, except for a Siglip2Model, whose patches must be packed.

    Examples:
        With ``folder``, the path or the hub id of a CLIP model:

        >>> import lmr, torch
        >>> from transformers import CLIPModel, CLIPProcessor
        >>> model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
        >>> clip = lmr.from_transformers(model, processor, ["cat", "dog", "ship"])
        >>> lmr.create("lmr", clip).step(torch.rand(4, *clip.input_shape)).logits.shape
        torch.Size([4, 3])
    """
    names = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else names
    write_prompts(names, templates)  # a mistake here shows before the weights are copied
    return wrap_transformers(model, processor, device=device, dtype=dtype).classifier(names, templates)


def wrap_transformers(
    model: Any, processor: Any, *, device: Device | None = None, dtype: torch.dtype | None = None
) -> Backbone:
    """Return the backbone behind ``from_transformers``, which prepares images and makes classifiers.

    Examples:
        With ``folder``, the path or the hub id of a CLIP model:

        >>> import lmr
        >>> from PIL import Image
        >>> from transformers import CLIPModel, CLIPProcessor
        >>> model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
        >>> backbone = lmr.wrap_transformers(model, processor)
        >>> images = backbone.preprocess([Image.new("RGB", (320, 200), "red"), Image.new("RGB", (90, 90), "blue")])
        >>> backbone.classifier(["cat", "dog"]).features(images).shape[0]
        2
    """
    kind = _find_kind(model)
    _check_processor(processor, kind)
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise LmrError(f"The {kind} has weights without values (on the device 'meta'); load all of them first.")
    place = check_device(model.device if device is None else device)
    chosen = choose_dtype(model.dtype if dtype is None else dtype)
    with leave_inference_mode():
        backbone = _build_clip(model, processor, chosen) if kind == "CLIPModel" else _build_siglip(model, processor)
        return backbone.to(place, chosen)


def _find_kind(model: Any) -> str:
    transformers = import_transformers("A model of transformers in memory")
    for kind in _FOREIGN:
        if isinstance(model, getattr(transformers, kind)):
            return kind
    raise LmrError(
        f"Expected a CLIPModel, SiglipModel or Siglip2Model of transformers, got {type(model).__name__}. For a model "
        "with encode_image, encode_text and logit_scale use lmr.from_open_clip; for any other use "
        "lmr.ZeroShot(encoder, prototypes)."
    )


def _check_processor(processor: Any, kind: str) -> None:
    """Refuse a processor without its two parts, or of another kind of model."""
    parts = {name: getattr(processor, name, None) for name in ("tokenizer", "image_processor")}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise LmrError(
            f"Expected the processor of the model, with a tokenizer and an image_processor; {type(processor).__name__} "
            f"has no {' and no '.join(missing)}. Use AutoProcessor.from_pretrained(...)."
        )
    for part in (processor, *parts.values()):
        if type(part).__name__.startswith(_FOREIGN[kind]):
            raise LmrError(f"A {type(part).__name__} does not belong to a {kind}; give the processor of the model.")


def _check_vocabulary(tokenizer: Any, vocabulary: int) -> None:
    """Refuse words that the model does not know; of special tokens transformers adds some that texts never have."""
    special = set(tokenizer.all_special_tokens)
    largest = max((number for word, number in tokenizer.get_vocab().items() if word not in special), default=0)
    if largest >= vocabulary:
        raise LmrError(
            f"The tokenizer of the processor gives tokens up to {largest}, but the model knows only {vocabulary} "
            "tokens; the processor belongs to another model."
        )


def _build_clip(model: Any, processor: Any, dtype: torch.dtype) -> Clip:
    """Return CLIP with lmr's own towers, which hold a copy of the weights."""
    name, config = _name(model), model.config.to_dict()
    sizes = parse_hf_sizes(config, "its configuration")
    settings = processor.image_processor.to_dict()
    preprocessing = parse_preprocessing(settings, _WHERE, ModelFormat.HUGGINGFACE, sizes[0].resolution)
    tokenizer = _find_tokenizer(processor.tokenizer, name, sizes, read_end_token(config, "its configuration"))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weights = convert_weights(model.state_dict(), HUGGINGFACE, sizes, "the given CLIPModel", wide)
    return Clip(name, sizes, weights, preprocessing, _describe(preprocessing), tokenizer)


def _find_tokenizer(tokenizer: Any, name: str, sizes: Sizes, end: int) -> TransformersTokenizer | None:
    """Return the processor's tokenizer; None for CLIP's, so that states fit the same model loaded from a folder."""
    text = sizes[1]
    _check_vocabulary(tokenizer, text.vocabulary)
    rules = describe_rules(tokenizer)
    if rules is not None and len(tokenizer) == text.vocabulary == VOCABULARY and is_clip_json(rules):
        check_clip_end(end, "The configuration of the model")
        return None
    return TransformersTokenizer(tokenizer, name, context=text.context, vocabulary=text.vocabulary, end=end)


def _build_siglip(model: Any, processor: Any) -> Siglip:
    """Return SigLIP with a copy of the model, whose norms are replaced."""
    config = copy.deepcopy(model.config)
    vision, settings = config.vision_config, processor.image_processor.to_dict()
    if is_naflex(config) != ("max_num_patches" in settings):
        kind = type(processor.image_processor).__name__
        raise LmrError(f"A {kind} does not belong to a {type(model).__name__}; give the processor of the model.")
    preprocessing: Preprocessing
    if is_naflex(config):
        preprocessing = parse_patch_preprocessing(settings, _WHERE, vision.patch_size)
    else:
        preprocessing = parse_preprocessing(settings, _WHERE, ModelFormat.SIGLIP, vision.image_size)
    tokenizer, origin = processor.tokenizer, f"the given {type(model).__name__}"
    _check_vocabulary(tokenizer, config.text_config.vocab_size)
    source = SiglipSource(config, model.state_dict(), tokenizer, preprocessing, _describe(preprocessing), origin)
    return Siglip(_name(model), source)


def _describe(preprocessing: Preprocessing) -> ModelFacts:
    sources = {"sizes from": "the model's configuration", "preprocessing": f"{preprocessing}; from its processor"}
    return ModelFacts(ModelFormat.MEMORY, shown={"format": ModelFormat.MEMORY.value, **sources})


def _name(model: Any) -> str:
    return str(getattr(model, "name_or_path", "") or type(model).__name__)
