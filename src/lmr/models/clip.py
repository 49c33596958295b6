"""CLIP as a backbone: two towers, the tokenizer and the preprocessing, loaded from files or drawn at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.placement import Device, check_device, choose_dtype
from lmr.core.text import TextSide
from lmr.models.backbone import Backbone
from lmr.models.catalog import OPENAI_MODELS, OTHER_MODELS
from lmr.models.facts import ModelFacts, ModelFormat, describe_activations
from lmr.models.formats.checkpoints import (
    HUGGINGFACE,
    OPENAI,
    Naming,
    TowerWeights,
    convert_weights,
    detect_naming,
    fill_tower,
    infer_sizes,
    is_openai,
    make_towers,
)
from lmr.models.formats.configs import (
    CLIP_OWN,
    HF_CONFIG,
    OPEN_CLIP_CONFIG,
    compare_sizes,
    openai_preprocessing,
    read_end_token,
    read_hf_sizes,
    read_json,
    read_open_clip_sizes,
    read_preprocessing,
)
from lmr.models.formats.export import (
    Norms,
    build_transformers_clip,
    write_clip_tokenizer,
    write_preprocessing,
    write_pretrained,
)
from lmr.models.formats.weights import Weights, describe_weights, read_weights
from lmr.models.preprocessing import Preprocessing
from lmr.models.prompts import CausalPrompts, ContextTokenizer
from lmr.models.tokenizers import (
    CLIP_END,
    HIGHEST,
    ClipTokenizer,
    TransformersTokenizer,
    has_foreign_tokenizer,
    has_tokenizer,
    name_tokenizer,
    read_tokenizer,
)
from lmr.models.towers.architectures import Sizes, find_architecture, name_architecture, use_quick_gelu
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionTower
from lmr.models.towers.text import TextTower

VOCABULARY = 49408  # of CLIP's tokenizer


class Clip(Backbone):
    """A CLIP model with frozen weights in float32 or float64; ``to`` moves and converts it.

    Without a ``tokenizer`` of its own it reads texts with CLIP's, if it has CLIP's vocabulary. ``facts`` say where the
    other arguments come from.
    """

    encoder: VisionTower
    _text: TextTower

    def __init__(
        self,
        name: str,
        sizes: Sizes,
        weights: TowerWeights,
        preprocessing: Preprocessing,
        facts: ModelFacts,
        tokenizer: TransformersTokenizer | None = None,
    ) -> None:
        self.name, self.preprocessing = name, preprocessing
        self.encoder, self._text = make_towers(sizes)
        fill_tower(self.encoder, weights.image)
        fill_tower(self._text, weights.text)
        for tower in (self.encoder, self._text):
            fold_activations(tower)  # before the weights lose precision
        self.input_shape = preprocessing.input_shape
        self.logit_scale, self.logit_bias = weights.logit_scale, weights.logit_bias
        self._own_tokenizer = tokenizer
        image, text = sizes
        architecture, is_clip = name_architecture(image, text), text.vocabulary == VOCABULARY
        own = "CLIP's byte-pair encoding" if is_clip else "none (own vocabulary)"
        shown = {
            **facts.shown,
            "architecture": architecture or "own sizes",
            "activation": describe_activations(image.activation, text.activation),
            "tokenizer": own if tokenizer is None else name_tokenizer(tokenizer.tokenizer),
            "context": str(text.context),
        }
        reads = tokenizer is not None or is_clip
        self.model_facts = replace(facts, architecture=architecture, reads_texts=reads, shown=shown)

    @property
    def text(self) -> TextTower:
        """The text tower: token ids [N, L] and where each text ends [N] to features [N, D]."""
        return self._text

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D] of N texts, without gradient and never below float32."""
        return self._tokenize(texts).encode(self._text)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """Return the text tower with these prompts, tokenised once."""
        prompts = self._tokenize(texts)
        return TextSide(self._text, prompts, len(prompts.end), prompts.longest, ContextTokenizer(self._tokenizer))

    def text_digest(self) -> str:
        """Return the tower's digest, with that of a tokenizer of its own and its settings."""
        own, tower = self._own_tokenizer, super().text_digest()
        return tower if own is None else f"{tower} {own.digest} {own.end} {own.context}"

    def write_huggingface(self, folder: Path, norms: Norms) -> None:
        """Write the model, its preprocessing and its tokenizer, for CLIPModel and CLIPProcessor of transformers."""
        self._check_tokenizer()
        model = build_transformers_clip(self.encoder, self._text, norms)
        model.logit_scale.fill_(math.log(self.logit_scale))
        own = self._own_tokenizer
        if own is not None:
            model.config.text_config.eos_token_id = own.end
        write_pretrained(model, folder)
        write_preprocessing(self.preprocessing, "CLIP", folder)
        if own is None:
            write_clip_tokenizer(self._text.config.context, folder)
        else:
            write_pretrained(own.tokenizer, folder)

    def _tokenize(self, texts: Sequence[str]) -> CausalPrompts:
        self._check_tokenizer()
        return CausalPrompts(*self._tokenizer(texts))

    @property
    def _tokenizer(self) -> TransformersTokenizer | ClipTokenizer:
        return self._own_tokenizer or ClipTokenizer(self._text.config.context)

    def _check_tokenizer(self) -> None:
        config = self._text.config
        if self._own_tokenizer is None and config.vocabulary != VOCABULARY:
            raise LmrError(
                f"The model {self.name!r} has a vocabulary of {config.vocabulary} tokens, not CLIP's {VOCABULARY}, and "
                "no tokenizer beside its weights, so its texts cannot be read. Put its tokenizer there, or make a "
                "classifier of your own text features with lmr.ZeroShot(backbone.encoder, prototypes, "
                "backbone.logit_scale)."
            )


def load_clip(
    path: Path, name: str, *, architecture: str | None = None, device: Device = "cpu", dtype: torch.dtype | None = None
) -> Clip:
    """Load a CLIP model from its weights file, with configuration, preprocessing and tokenizer from the same folder.

    Frozen weights are in ``dtype`` (float32 if none is named), the norms never below float32.
    """
    named = find_architecture(architecture) if architecture is not None else None
    weights = read_weights(path)
    naming = detect_naming(weights.tensors, str(path))
    form, sizes, source = _find_sizes(weights, naming, path, named, architecture)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    converted = convert_weights(weights.tensors, naming, sizes, str(path), wide)
    weights.tensors.clear()  # they are copied: do not hold a large model twice
    preprocessing, settings = read_preprocessing(path.parent, form, sizes[0].resolution)
    shown = {"sizes from": source, "preprocessing": f"{preprocessing}; from {settings}"}
    facts = describe_weights(form, path, weights, shown)
    if sizes is named and architecture in OPENAI_MODELS:
        facts = replace(facts, activation_assumed=True)
    tokenizer = _find_tokenizer(form, sizes, path.parent, name)
    return Clip(name, sizes, converted, preprocessing, facts, tokenizer).to(check_device(device), choose_dtype(dtype))


def random_clip(name: str = "ViT-B-16", seed: int = 0, *, device: Device = "cpu") -> Clip:
    """Make a model of this architecture with random weights, for measuring cost; a seed always gives the same ones.

    Weights are drawn as in CLIP's training, so that features and gradients have ordinary sizes. As in ``lmr.load``,
    the names of OpenAI's models stand for OpenAI's, with QuickGELU.
    """
    place = check_device(device)
    sizes = find_architecture(f"{name}-quickgelu" if name in OPENAI_MODELS else name)
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for tower in make_towers(sizes):
        width, depth = tower.config.width, tower.config.depth
        drawn.append({key: _draw(key, like, width, depth, generator) for key, like in tower.state_dict().items()})
    image, text = drawn
    weights = TowerWeights(image, text, logit_scale=100.0, logit_bias=0.0)
    preprocessing = openai_preprocessing(sizes[0].resolution)
    shown = {"format": ModelFormat.RANDOM.value, "files": "none", "preprocessing": f"{preprocessing}; from {CLIP_OWN}"}
    facts = ModelFacts(ModelFormat.RANDOM, shown=shown)
    return Clip(f"random {name}", sizes, weights, preprocessing, facts).to(place)


def _find_sizes(
    weights: Weights, naming: Naming, path: Path, named: Sizes | None, architecture: str | None
) -> tuple[ModelFormat, Sizes, str]:
    """Return form, sizes and their source: the config beside the weights, the named architecture, or OpenAI's rules.

    OpenAI's and open_clip's weights have the same names but different activations, so one of the three must decide.
    """
    form, name, read = ModelFormat.OPEN_CLIP, OPEN_CLIP_CONFIG, read_open_clip_sizes
    if naming is HUGGINGFACE:
        form, name, read = ModelFormat.HUGGINGFACE, HF_CONFIG, read_hf_sizes
    config = path.parent / name
    if naming is OPENAI and is_openai(weights.tensors, path.name):
        sizes = infer_sizes(weights.tensors, str(path))
        if named is not None:
            origin = f"The weights in {str(path)!r}"
            compare_sizes(sizes, origin, use_quick_gelu(named), f"the architecture {architecture}")
        return ModelFormat.OPENAI, sizes, "the weights, which are OpenAI's"
    if config.is_file():
        sizes = read(config)
        if named is not None:
            compare_sizes(sizes, repr(str(config)), named, f"the architecture {architecture}")
        return form, sizes, config.name
    if named is not None:
        return form, named, f"the named architecture {architecture}"
    raise LmrError(
        f"The weights in {str(path)!r} have {naming.family} names, which do not tell the number of heads and the "
        f'activation. Name the architecture, for example architecture="ViT-B-32" (GELU, as LAION\'s) or '
        f'architecture="ViT-B-32-quickgelu" (QuickGELU, as OpenAI\'s), or put {config.name} beside the weights.'
    )


def _find_tokenizer(form: ModelFormat, sizes: Sizes, folder: Path, name: str) -> TransformersTokenizer | None:
    """Return the tokenizer beside the weights; None where it is CLIP's own, or where there is none.

    Only in Hugging Face's form does a tokenizer belong to the folder; open_clip's configuration names its own.
    """
    if form is not ModelFormat.HUGGINGFACE:
        return None
    text, config = sizes[1], folder / HF_CONFIG
    end = read_end_token(read_json(config), str(config)) if config.is_file() else CLIP_END
    if has_foreign_tokenizer(folder) or (text.vocabulary != VOCABULARY and has_tokenizer(folder)):
        own = {"context": text.context, "vocabulary": text.vocabulary, "end": end}
        return TransformersTokenizer(read_tokenizer(folder), name, **own)
    if text.vocabulary == VOCABULARY:
        check_clip_end(end, repr(str(config)))
    return None


def check_clip_end(end: int, origin: str) -> None:
    """Refuse an end token that CLIP's own tokenizer does not give."""
    if end not in (HIGHEST, CLIP_END):
        raise LmrError(f"{origin} ends texts with the token {end}, which is not CLIP's tokenizer. {OTHER_MODELS}")


def _draw(key: str, like: Tensor, width: int, depth: int, generator: torch.Generator) -> Tensor:
    """Draw weights with the standard deviations of CLIP's initialisation (Radford et al. 2021, clip/model.py)."""
    part, _, kind = key.rpartition(".")
    part = part.rpartition(".")[2]
    if part.startswith("ln_"):
        return torch.ones(like.shape) if kind == "weight" else torch.zeros(like.shape)
    if kind == "bias":
        return torch.zeros(like.shape)
    inside = float((2 * depth * width) ** -0.5)
    spread = {"out": inside, "down": inside, "up": float((2 * width) ** -0.5), "words": 0.02, "patches": 0.02}
    return torch.randn(like.shape, generator=generator) * spread.get(part, float(width**-0.5))
