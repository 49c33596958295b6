"""Backbones from models of transformers: in memory, in a folder, or on the Hugging Face hub."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from lmr.core.classifier import ZeroShot, leave_inference_mode
from lmr.core.errors import LmrError, WrongType
from lmr.core.log import LOGGER, quiet_loggers
from lmr.core.placement import Device, check_device, choose_dtype
from lmr.models.backbone import Backbone
from lmr.models.clip import Clip
from lmr.models.prompts import DEFAULT_TEMPLATES, Templates, write_prompts
from lmr.models.siglip import Siglip
from lmr.models.transformers_library import quiet_transformers, shorten_error

_KINDS = {"clip": "CLIPModel", "siglip": "SiglipModel"}  # model types that can be loaded, and their classes
_OTHERS = "For other models use lmr.ZeroShot(encoder, prototypes) with your own encoder."


def from_transformers(
    model: Any,
    processor: Any,
    names: Sequence[str],
    templates: Templates = DEFAULT_TEMPLATES,
    *,
    device: Device | None = None,
    dtype: torch.dtype | str | None = None,
) -> ZeroShot:
    """Return a classifier for these class names from a CLIPModel or SiglipModel of transformers.

    ``processor`` is the model's own, as AutoProcessor gives it: it says how images and texts are read. The weights are
    copied, so the model is never changed, and memory must hold it twice. ``device`` and ``dtype`` are those of the
    model unless given. Images come from the processor (``pixel_values``) or from
    ``wrap_transformers(model, processor).preprocess``, which gives the same.

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
    model: Any, processor: Any, *, device: Device | None = None, dtype: torch.dtype | str | None = None
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
    _check_weights(model)
    _check_processor(processor, model)
    place = check_device(model.device if device is None else device)
    chosen = choose_dtype(model.dtype if dtype is None else dtype)
    name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    parts = name, model, processor.image_processor, processor.tokenizer
    with leave_inference_mode():
        backbone = Clip(*parts, chosen) if kind == "clip" else Siglip(*parts)
        return backbone.to(place, chosen)


def load_folder(folder: str, device: Device, dtype: torch.dtype | None) -> Backbone:
    """Load a CLIP or SigLIP model with transformers from a folder in the layout of the Hugging Face hub."""
    if not Path(folder, "config.json").is_file():
        raise LmrError(
            f"There is no config.json in {folder!r}; expected a folder in the layout of the Hugging Face hub, with "
            "config.json, model.safetensors or pytorch_model.bin, preprocessor_config.json and the files of the "
            "tokenizer. For a model of open_clip use lmr.from_open_clip."
        )
    return _load(folder, device, dtype, local_files_only=True)


def load_from_hub(name: str, device: Device, dtype: torch.dtype | None) -> Backbone:
    """Load a CLIP or SigLIP model with transformers from the hub's cache, or from the hub if files are missing."""
    try:
        return _load(name, device, dtype, local_files_only=True)
    except LmrError as error:
        LOGGER.info("Asking the Hugging Face hub for %s", name)
        _check_hub(name, error.__cause__ or error)
    return _load(name, device, dtype, local_files_only=False)


def _load(source: str, device: Device, dtype: torch.dtype | None, *, local_files_only: bool) -> Backbone:
    transformers: Any = import_module("transformers")
    options: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": False}
    try:
        with quiet_transformers():
            config = transformers.AutoConfig.from_pretrained(source, **options)
            if config.model_type not in _KINDS:
                raise LmrError(f"its type is {config.model_type!r}, not {' or '.join(_KINDS)}")
            image_processor = transformers.AutoImageProcessor.from_pretrained(source, **options)
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, **options)
            if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made up without a file
                raise LmrError("it has no tokenizer.json, vocab.json with merges.txt, or spiece.model")
            options = {"config": config, "local_files_only": local_files_only, "output_loading_info": True}
            kind = getattr(transformers, _KINDS[config.model_type])
            model, found = kind.from_pretrained(source, ignore_mismatched_sizes=True, **options)
            for fault in ("missing", "mismatched", "unexpected"):  # transformers would draw weights at random
                if keys := sorted(map(str, found[f"{fault}_keys"])):
                    raise LmrError(f"{len(keys)} of its weights are {fault} ({', '.join(keys[:3])})")
    except Exception as error:  # whatever foreign or damaged files make transformers and its readers raise
        raise LmrError(
            f"Cannot load the model {source!r}: {shorten_error(error)}. Check that its files are complete and those of "
            f"a CLIP or SigLIP model. {_OTHERS}"
        ) from error
    processor = SimpleNamespace(image_processor=image_processor, tokenizer=tokenizer)
    return wrap_transformers(model, processor, device=device, dtype=torch.float32 if dtype is None else dtype)


def _check_hub(name: str, missing: BaseException) -> None:
    """Ask the hub once for a file that every model has, as a download would try again and again."""
    import huggingface_hub as hub

    try:
        with quiet_loggers("huggingface_hub"):
            hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"))
    except Exception as error:  # any error of the hub, the network or their library
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder=" ...")
        raise LmrError(
            f"The model {name!r} is not complete on this machine ({shorten_error(missing)}), and the Hugging Face hub "
            f"does not give it ({reason}). Check the name; for a private or gated model log in with `hf auth login`; "
            "without a connection put the model's files into a folder and give its path."
        ) from error


def _find_kind(model: Any) -> str:
    import transformers

    for kind, name in _KINDS.items():
        if isinstance(model, getattr(transformers, name)):
            return kind
    raise WrongType(
        f"Expected a CLIPModel or SiglipModel of transformers, got {type(model).__name__}. For a model with "
        f"encode_image, encode_text and logit_scale use lmr.from_open_clip. {_OTHERS}"
    )


def _check_weights(model: Any) -> None:
    """Refuse weights without values, quantised ones, and those that are not finite."""
    for key, value in model.named_parameters():
        floating = value.is_floating_point() and value.dtype.itemsize > 1 and not value.is_meta
        if not floating or not torch.stack(value.detach().aminmax()).isfinite().all():  # NaN propagates
            raise LmrError(
                f"Expected finite floating-point weights in the {type(model).__name__}, but {key} has others "
                f"({value.dtype} on {value.device}); load all weights of the original model."
            )


def _check_processor(processor: Any, model: Any) -> None:
    """Refuse a processor that lacks a part, or has words that the model does not know."""
    parts = {name: getattr(processor, name, None) for name in ("tokenizer", "image_processor")}
    missing = [name for name, part in parts.items() if part is None]
    if missing:
        raise LmrError(
            f"Expected the processor of the model, with a tokenizer and an image_processor; {type(processor).__name__} "
            f"has no {' and no '.join(missing)}. Use AutoProcessor.from_pretrained(...)."
        )
    tokenizer, known = processor.tokenizer, model.config.text_config.vocab_size
    special = set(tokenizer.all_special_tokens)  # of which transformers adds some that texts never have
    largest = max((number for word, number in tokenizer.get_vocab().items() if word not in special), default=0)
    if largest >= known:
        raise LmrError(
            f"The tokenizer of the processor gives tokens up to {largest}, but the model knows only {known} tokens; "
            "the processor belongs to another model."
        )
