"""SigLIP with the towers of transformers. Methods use their generic path; texts are padded to the full context."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.core.locks import hold
from lmr.core.norms import RowNorm
from lmr.core.placement import Device, check_device, choose_dtype
from lmr.core.text import TextSide
from lmr.models.backbone import Backbone
from lmr.models.facts import ModelFacts, ModelFormat, describe_activations
from lmr.models.formats.checkpoints import check_depth, check_tensors, is_ignored
from lmr.models.formats.configs import HF_CONFIG, SIGLIP_OWN, find_settings, read_preprocessing
from lmr.models.formats.export import Norms, write_preprocessing, write_pretrained
from lmr.models.formats.weights import describe_weights, read_weights
from lmr.models.naflex import PatchPreprocessing, parse_patch_preprocessing, unpack
from lmr.models.preprocessing import Preprocessing
from lmr.models.prompts import TokenPrompts
from lmr.models.tokenizers import PaddedTokenizer, digest_tokenizer, read_tokenizer
from lmr.models.transformers_library import import_transformers, quiet_transformers, shorten_error

_TOKENIZER_FILES = ("spiece.model", "tokenizer.model", "tokenizer.json", "tokenizer_config.json")
_TOKENIZER = "spiece.model or tokenizer.json with tokenizer_config.json"


class Pooled(nn.Module):
    """A tower of transformers that returns only its pooled feature [B, D].

    It takes pixels or token ids [B, ...], or ``packed`` patches (``naflex``).
    """

    def __init__(self, model: nn.Module, packed: bool = False) -> None:
        super().__init__()
        self.model, self.packed = model, packed
        self.config: Any = model.config

    def forward(self, given: Tensor) -> Tensor:
        """Return features as the tower's head gives them, not normalised."""
        with hold(self):  # its norms serve one thread at a time
            answer = self.model(**unpack(given)) if self.packed else self.model(given)
        features: Tensor = answer.pooler_output
        return features


@dataclass(frozen=True)
class SiglipSource:
    """All that describes a SigLIP model, read from files or taken from a model in memory."""

    config: Any  # of transformers
    tensors: Mapping[str, Tensor]
    tokenizer: Any  # of transformers
    preprocessing: Preprocessing
    facts: ModelFacts  # where the other fields come from
    origin: str  # for error messages


class Siglip(Backbone):
    """A SigLIP model with a copy of its weights; ``to`` moves and converts it.

    Its text tower sees the whole context, padding included, so prompts are never cut.
    """

    encoder: Pooled
    _text: Pooled
    no_folder_because = "its preprocessing, which keeps the shape of an image, is not written yet"

    def __init__(self, name: str, source: SiglipSource) -> None:
        preprocessing, origin = source.preprocessing, source.origin
        with quiet_transformers():
            model = _build_model(source.config, source.tensors, origin)
        scale, bias = (float(source.tensors[key].double()) for key in ("logit_scale", "logit_bias"))
        if not all(map(math.isfinite, (scale, bias))) or abs(scale) > 20:
            raise LmrError(f"{origin!r} has the logit scale exp({scale}) and the logit bias {bias}; it is damaged.")
        self.name, self.preprocessing = name, preprocessing
        self.logit_scale, self.logit_bias = math.exp(scale), bias
        self._text = Pooled(model.text_model)
        self.encoder = Pooled(model.vision_model, packed=isinstance(preprocessing, PatchPreprocessing))
        self.input_shape = preprocessing.input_shape
        vision, text = source.config.vision_config, source.config.text_config
        self._tokenizer = PaddedTokenizer(source.tokenizer, name, text.max_position_embeddings, text.vocab_size)
        self._tokenizer_digest = digest_tokenizer(source.tokenizer)
        shown = {
            **source.facts.shown,
            "architecture": f"SigLIP: {vision.num_hidden_layers} blocks of width {vision.hidden_size}, patches of "
            f"{vision.patch_size} pixels; text {text.num_hidden_layers} blocks of width {text.hidden_size}",
            "activation": describe_activations(vision.hidden_act, text.hidden_act),
            "tokenizer": f"{type(source.tokenizer).__name__}, {text.vocab_size} tokens",
            "context": str(text.max_position_embeddings),
        }
        self.model_facts = replace(source.facts, shown=shown)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D] of N texts, without gradient and never below float32."""
        return TokenPrompts(self._tokenizer(texts)).encode(self._text)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """Return the text tower with these prompts."""
        return TextSide(self._text, TokenPrompts(self._tokenizer(texts)), len(texts))

    def text_digest(self) -> str:
        """Return the tower's digest together with that of the tokenizer."""
        return f"{super().text_digest()} {self._tokenizer_digest}"

    def write_huggingface(self, folder: Path, norms: Norms) -> None:
        """Write the model, its preprocessing and its tokenizer, for SiglipModel and SiglipProcessor of transformers."""
        from transformers import SiglipConfig, SiglipModel

        if self.encoder.packed:
            return super().write_huggingface(folder, norms)
        numbers = {"logit_scale": math.log(self.logit_scale), "logit_bias": self.logit_bias}
        weights = {key: torch.tensor([number]) for key, number in numbers.items()}
        for begin, tower, kind in (
            ("vision_model.", self.encoder, Tower.IMAGE),
            ("text_model.", self._text, Tower.TEXT),
        ):
            own = tower.state_dict() | dict(norms.get(kind, {}))
            weights |= {begin + key.removeprefix("model."): value.float().cpu() for key, value in own.items()}
        vision, text = (tower.config.to_dict() for tower in (self.encoder, self._text))
        with torch.device("meta"):
            model: Any = SiglipModel(SiglipConfig(vision_config=vision, text_config=text))
        model.load_state_dict(weights, assign=True)
        write_pretrained(model, folder)
        write_preprocessing(self.preprocessing, "Siglip", folder)
        write_pretrained(self._tokenizer.tokenizer, folder)
        return None


def load_siglip(path: Path, name: str, *, device: Device = "cpu", dtype: torch.dtype | None = None) -> Siglip:
    """Load SigLIP or SigLIP 2 from its weights file and the config and tokenizer beside it.

    Frozen weights are in ``dtype`` (float32 if none is named), the norms never below float32.
    """
    folder = path.parent
    import_transformers(f"The SigLIP model {name!r}")
    with quiet_transformers():
        config = _read_config(folder)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise LmrError(f"There is no tokenizer in {str(folder)!r}; put {_TOKENIZER} there.")
    tokenizer = read_tokenizer(folder, _TOKENIZER)
    weights = read_weights(path)
    preprocessing, settings = _find_preprocessing(folder, config)
    shown = {"sizes from": HF_CONFIG, "preprocessing": f"{preprocessing}; from {settings}"}
    facts = describe_weights(ModelFormat.SIGLIP, path, weights, shown)
    source = SiglipSource(config, weights.tensors, tokenizer, preprocessing, facts, origin=str(path))
    return Siglip(name, source).to(check_device(device), choose_dtype(dtype))


def is_naflex(config: Any) -> bool:
    """Return True for the configuration of a model for images of any shape."""
    from transformers import Siglip2Config

    return isinstance(config, Siglip2Config)


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig, SiglipConfig

    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a foreign file makes transformers raise
        raise LmrError(
            f"{str(folder / 'config.json')!r} is not a configuration of SigLIP: {shorten_error(error)}"
        ) from error
    if not isinstance(config, SiglipConfig) and not is_naflex(config):
        raise LmrError(f"{str(folder)!r} holds a model of type {config.model_type!r}, not a SigLIP model.")
    return config


def _find_preprocessing(folder: Path, config: Any) -> tuple[Preprocessing, str]:
    """Return the preprocessing, and its source as text."""
    if not is_naflex(config):
        return read_preprocessing(folder, ModelFormat.SIGLIP, config.vision_config.image_size)
    settings, name = find_settings(folder)
    where = repr(str(folder / name if name else folder))
    return parse_patch_preprocessing(settings, where, config.vision_config.patch_size), name or SIGLIP_OWN


def _build_model(config: Any, tensors: Mapping[str, Tensor], origin: str) -> Any:
    """Build the model with exactly these weights; transformers would initialise missing ones at random."""
    from transformers import Siglip2Model, SiglipModel

    if not getattr(config.vision_config, "vision_use_head", True):
        raise LmrError(f"The model in {origin!r} has no pooling head, so it gives no image features.")
    check_depth(tensors, max(part.num_hidden_layers for part in (config.vision_config, config.text_config)), origin)
    try:
        with torch.device("meta"):  # no memory and no random initialisation, as all weights are replaced
            model: Any = Siglip2Model(config) if is_naflex(config) else SiglipModel(config)
            _replace_norms(model)
    except Exception as error:  # inconsistent sizes
        raise LmrError(
            f"The configuration beside {origin!r} does not describe a model: {shorten_error(error)}"
        ) from error
    check_tensors(tensors, {key: value.shape for key, value in model.state_dict().items()}, origin)
    # Copied: the tensors may be memory-mapped, and the file could change.
    model.load_state_dict({key: value.clone() for key, value in tensors.items() if not is_ignored(key)}, assign=True)
    parts: list[Any] = [model.vision_model.embeddings, model.text_model.embeddings]
    for part in parts:  # the only buffer that is computed and not read from the file
        if hasattr(part, "position_ids"):
            part.position_ids = torch.arange(part.position_ids.shape[-1]).expand(1, -1)
    return model


def _replace_norms(model: nn.Module) -> None:
    """Replace the norms by ones that compute in the precision of their own parameters, whatever the input's is."""
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if type(norm) is nn.LayerNorm:
                setattr(parent, name, RowNorm(norm.normalized_shape, eps=norm.eps))
