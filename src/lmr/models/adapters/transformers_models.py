"""Backbones from models of transformers in memory: CLIP with lmr's towers, SigLIP with a copy of its own."""

from __future__ import annotations

import copy
from typing import Any

import torch

from lmr.core.classifier import leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.placement import Device, check_device, choose_dtype
from lmr.models.backbone import Backbone
from lmr.models.clip.architectures import name_architecture
from lmr.models.clip.clip_model import VOCABULARY, Clip, check_clip_end, describe_tokenizer
from lmr.models.formats.preprocessing_configs import parse_preprocessing
from lmr.models.formats.tokenizer_files import is_clip_json
from lmr.models.formats.tower_configs import parse_hf_sizes, read_end_token
from lmr.models.formats.tower_weights import Sizes, convert_weights, fill_tower, make_towers
from lmr.models.formats.weight_names import HUGGINGFACE
from lmr.models.model_facts import ModelFacts, ModelFormat, SizesSource
from lmr.models.naflex import parse_patch_preprocessing
from lmr.models.preprocessing import Preprocessing
from lmr.models.siglip import Siglip, build_siglip, is_naflex
from lmr.models.transformers_tokenizer import TransformersTokenizer, describe_rules, digest_tokenizer

_WHERE = "the settings of the image processor"
# Beginnings of the names of classes that belong to one kind of model, and those that another kind must not have.
_FOREIGN = {"CLIPModel": ("Siglip",), "SiglipModel": ("CLIP",), "Siglip2Model": ("CLIP",)}


def build_backbone(model: Any, processor: Any, device: Device | None, dtype: torch.dtype | None) -> Backbone:
    """The backbone of a CLIPModel, SiglipModel or Siglip2Model; the model is only read."""
    kind = _find_kind(model)
    _check_processor(processor, kind)
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise LmrError(f"The {kind} has weights without values (on the device 'meta'); load all of them first.")
    place = check_device(model.device if device is None else device)
    chosen = choose_dtype(model.dtype if dtype is None else dtype)
    build = _build_clip if kind == "CLIPModel" else _build_siglip
    with leave_inference_mode():
        return build(model, processor, place, chosen)


def _find_kind(model: Any) -> str:
    try:
        from transformers import CLIPModel, Siglip2Model, SiglipModel
    except ImportError as error:
        raise LmrError(
            "This needs a version of transformers with Siglip2Model: pip install -U transformers."
        ) from error
    for kind in (CLIPModel, SiglipModel, Siglip2Model):
        if isinstance(model, kind):
            return kind.__name__
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


def _build_clip(model: Any, processor: Any, device: torch.device, dtype: torch.dtype) -> Clip:
    """CLIP with lmr's own towers, which hold a copy of the weights."""
    name, origin = _name(model), "the given CLIPModel"
    config = model.config.to_dict()
    sizes = parse_hf_sizes(config, "its configuration")
    settings = processor.image_processor.to_dict()
    preprocessing = parse_preprocessing(settings, _WHERE, ModelFormat.HUGGINGFACE, sizes[0].resolution)
    tokenizer = _find_tokenizer(processor.tokenizer, name, sizes, read_end_token(config, "its configuration"))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weights = convert_weights(model.state_dict(), HUGGINGFACE, sizes, origin, wide)
    image, text = make_towers(sizes)
    fill_tower(image, weights.image)
    fill_tower(text, weights.text)
    facts = ModelFacts(
        format=ModelFormat.MEMORY,
        architecture=name_architecture(*sizes),
        sizes_source=SizesSource.CONFIG,
        activations=(sizes[0].activation, sizes[1].activation),
        preprocessing=preprocessing,
        preprocessing_file="its processor",
        **describe_tokenizer(tokenizer, sizes),
        context=sizes[1].context,
    )
    scale, bias = weights.logit_scale, weights.logit_bias
    return Clip(name, image, text, preprocessing, scale, bias, facts, tokenizer=tokenizer, device=device, dtype=dtype)


def _find_tokenizer(tokenizer: Any, name: str, sizes: Sizes, end: int) -> TransformersTokenizer | None:
    """The processor's tokenizer; None where it is CLIP's, so that states fit the same model loaded from a folder."""
    text = sizes[1]
    _check_vocabulary(tokenizer, text.vocabulary)
    rules = describe_rules(tokenizer)
    if rules is not None and len(tokenizer) == text.vocabulary == VOCABULARY and is_clip_json(rules):
        check_clip_end(end, "The configuration of the model")
        return None
    return TransformersTokenizer(tokenizer, name, context=text.context, vocabulary=text.vocabulary, end=end)


def _build_siglip(model: Any, processor: Any, device: torch.device, dtype: torch.dtype) -> Siglip:
    """SigLIP with a copy of the model, whose norms are replaced."""
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
    _check_vocabulary(processor.tokenizer, config.text_config.vocab_size)
    facts = ModelFacts(format=ModelFormat.MEMORY, sizes_source=SizesSource.CONFIG, preprocessing_file="its processor")
    return build_siglip(
        _name(model),
        config,
        model.state_dict(),
        processor.tokenizer,
        digest_tokenizer(processor.tokenizer),
        preprocessing,
        facts,
        origin=f"the given {type(model).__name__}",
        device=device,
        dtype=dtype,
    )


def _name(model: Any) -> str:
    return str(getattr(model, "name_or_path", "") or type(model).__name__)
