"""Classifiers from modules of open_clip's form: with visual, encode_image, encode_text and logit_scale."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import ZeroShot, leave_autocast, leave_inference_mode, read_number
from lmr.core.errors import LmrError
from lmr.core.pixel_scale import PixelScale
from lmr.core.placement import digest_tensors, find_placement, widen
from lmr.core.text import TextReader, TextSide
from lmr.models.prompts import DEFAULT_TEMPLATES, Templates, TokenPrompts, bring, write_prompts
from lmr.models.prototypes import average_prompts, digest_tower

Tokenizer = Callable[[list[str]], Tensor]


def from_open_clip(
    model: Any, tokenizer: Tokenizer, names: Sequence[str], templates: Templates = DEFAULT_TEMPLATES
) -> ZeroShot:
    """Return a classifier for these class names from a model of open_clip's form, also OpenAI's.

    That is any ``nn.Module`` with ``encode_image``, ``encode_text``, its image tower as ``visual``, ``logit_scale``
    (the logarithm of the scale, as open_clip and OpenAI store it), and optionally ``logit_bias``. ``tokenizer`` maps a
    list of texts to token ids [N, L]. Images are what ``encode_image`` takes: prepare them with open_clip's own
    ``preprocess``. The model itself is used, not a copy. It is put in evaluation mode and frozen; its parameters are
    never changed.

    Examples:
        With open_clip: ``model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-16", "openai")`` and
        ``tokenizer = open_clip.get_tokenizer("ViT-B-16")``. Any module of that form will do:

        >>> import lmr, torch
        >>> from torch import nn
        >>> class Small(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.visual = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.LayerNorm(8))
        ...         self.words = nn.Sequential(nn.Embedding(128, 8), nn.LayerNorm(8))
        ...         self.logit_scale = nn.Parameter(torch.tensor(4.6))
        ...     def encode_image(self, images):
        ...         return self.visual(images)
        ...     def encode_text(self, tokens):
        ...         return self.words(tokens).mean(1)
        >>> def tokenizer(texts):
        ...     return torch.tensor([[ord(letter) for letter in text.ljust(24)] for text in texts])
        >>> clip = lmr.from_open_clip(Small(), tokenizer, ["cat", "dog"])
        >>> lmr.create("lmr", clip).step(torch.rand(4, 3, 4, 4)).labels.shape
        torch.Size([4])
    """
    names = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else names
    scale, bias = _check_model(model)
    prompts = write_prompts(names, templates)
    model.eval().requires_grad_(False)
    placement = find_placement(model)
    with leave_inference_mode(), leave_autocast(torch.device("cpu") if placement is None else placement[0]):
        tokens = _tokenize(tokenizer, [text for own in prompts for text in own])
        encode = TextEncoder(model, tokenizer)
        with torch.no_grad():
            prototypes = average_prompts(encode, prompts)
        facts = f"{digest_tower(model)} {digest_tensors({'tokens': tokens})} {[len(own) for own in prompts]}"
    single = all(len(own) == 1 for own in prompts)
    return ZeroShot(
        ImageSide(model),
        prototypes,
        scale,
        logit_bias=bias,
        names=names,
        text=TextSide(model, TextPrompts(tokens), len(prompts)) if single else None,
        identity=hashlib.sha256(facts.encode()).hexdigest(),
        reader=TextReader(model, encode),
        pixels=_read_pixels(model),
    )


class ImageSide(nn.Module):
    """``encode_image`` of a model as a tower of its own, in which no method finds the norms of the text tower."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.visual = model.visual
        self._model = (model,)  # in a tuple, so that it is not a part

    @property
    def whole_model(self) -> nn.Module:
        """The model, which moves as a whole: ``encode_image`` may use more of it than these parts."""
        return self._model[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return features as ``encode_image`` gives them."""
        encode: Any = self.whole_model.encode_image
        features: Tensor = encode(images)
        return features


class TextPrompts(TokenPrompts):
    """Tokenised prompts, encoded by ``encode_text`` of the model they are given to."""

    def __call__(self, tower: nn.Module, part: slice) -> Tensor:
        """Return features [n, D] of some prompts."""
        encode: Any = tower.encode_text
        features: Tensor = encode(bring(self.tokens[part], tower))
        return features


class TextEncoder:
    """Texts to unit features, tokenised and encoded by the model."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D], never below float32."""
        raw = TextPrompts(_tokenize(self.tokenizer, list(texts)))(self.model, slice(0, len(texts)))
        return F.normalize(raw.to(widen(raw.dtype)), dim=-1)


def _check_model(model: Any) -> tuple[float, float]:
    """Check that a model has all it needs, and return its logit scale and bias."""
    missing = [name for name in ("visual", "encode_image", "encode_text", "logit_scale") if not hasattr(model, name)]
    if not isinstance(model, nn.Module) or missing:
        lack = f" It has no {', '.join(missing)}." if isinstance(model, nn.Module) else ""
        raise LmrError(
            "Expected an nn.Module with visual, encode_image, encode_text and logit_scale, got "
            f"{type(model).__name__}.{lack} For a model of transformers use lmr.from_transformers, for any other "
            "lmr.ZeroShot(encoder, prototypes)."
        )
    logarithm = read_number(model.logit_scale)
    bias = 0.0 if getattr(model, "logit_bias", None) is None else read_number(model.logit_bias)
    if not abs(logarithm) <= 20:
        raise LmrError(
            f"Expected logit_scale as the logarithm of the scale (4.6 for a scale of 100), got {model.logit_scale!r}."
        )
    if not math.isfinite(bias):
        raise LmrError(f"Expected a finite number as logit_bias, got {model.logit_bias!r}.")
    return math.exp(logarithm), bias


def _read_pixels(model: Any) -> PixelScale | None:
    """Return the scaling of pixels where the image tower names it, as those of open_clip do."""
    settings = getattr(getattr(model, "visual", None), "preprocess_cfg", None)
    mean, std = (settings.get(key) for key in ("mean", "std")) if isinstance(settings, Mapping) else (None, None)
    return None if mean is None or std is None else PixelScale(tuple(mean), tuple(std))


def _tokenize(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Return token ids int64 [N, L] on the CPU."""
    tokens = tokenizer(texts)
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.ndim != 2 or len(tokens) != len(texts):
        raise LmrError(f"Expected the tokenizer to map {len(texts)} texts to ids {[len(texts), 'L']}, got {tokens!r}.")
    return tokens.long().cpu()
