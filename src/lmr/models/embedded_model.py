"""Models that come with the package: two small towers, read from one weights file that describes itself."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.core.text import TextSide
from lmr.models.backbone import Backbone
from lmr.models.clip.block import fold_activations
from lmr.models.clip.image_tower import Memory, VisionConfig, VisionTower
from lmr.models.clip.text_tower import TextConfig, TextTower
from lmr.models.context_prompts import ContextTokenizer
from lmr.models.model_facts import ModelFacts, ModelFormat, TokenizerKind
from lmr.models.preprocessing import Preprocessing
from lmr.models.token_prompts import CausalPrompts
from lmr.models.word_tokenizer import WordTokenizer

_REMARKS = {"clean_accuracy": "clean accuracy", "training": "training"}  # what a file says of itself


@dataclass(frozen=True)
class EmbeddedConfig:
    """Sizes of both towers; stored in the weights file."""

    resolution: int = 32
    patch: int = 8
    width: int = 160
    depth: int = 5
    heads: int = 5
    text_width: int = 128
    text_depth: int = 2
    text_heads: int = 4
    context: int = 20
    vocabulary: int = 0
    features: int = 128

    @property
    def image(self) -> VisionConfig:
        """Sizes of the image tower."""
        sizes = {key: getattr(self, key) for key in ("resolution", "patch", "width", "depth", "heads", "features")}
        return VisionConfig(**sizes, hidden=4 * self.width)

    @property
    def text(self) -> TextConfig:
        """Sizes of the text tower."""
        return TextConfig(
            context=self.context,
            vocabulary=self.vocabulary,
            width=self.text_width,
            depth=self.text_depth,
            heads=self.text_heads,
            features=self.features,
            hidden=4 * self.text_width,
        )


class EmbeddedTowers(nn.Module):
    """Both towers; features are not normalised here."""

    image: VisionTower
    text: TextTower


class EmbeddedModel(Backbone):
    """A model of the package, read from a weights file of its training command."""

    weights: ClassVar[Path]
    format: ClassVar[ModelFormat]
    keeps_prototypes = False
    no_folder_because = (
        "transformers has no tokenizer of whole words like its own, and no image tower with a convolutional stem; CLIP "
        "and SigLIP models can be exported"
    )
    encoder: VisionTower

    def __init__(self, path: Path | None = None) -> None:
        from safetensors import SafetensorError, safe_open

        path = path or self.weights
        try:
            with safe_open(str(path), framework="pt") as file:
                written = dict(file.metadata() or {})
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
            self.tokenizer = self._make_tokenizer(written)
            config, towers = self._make_towers(json.loads(written["config"]))
            towers.load_state_dict(tensors)
            fold_activations(towers)
            self.preprocessing = Preprocessing(
                config.resolution, _read_channels(written["mean"]), _read_channels(written["std"])
            )
            self.logit_scale = float(written["logit_scale"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, LmrError) as error:
            raise LmrError(f"{str(path)!r} does not hold the {self.name} model; reinstall lmr. ({error})") from error
        self.encoder = towers.image.eval().requires_grad_(False)
        self._text = towers.text.eval().requires_grad_(False)
        self._context = config.context
        known = {"words": self.tokenizer.around, "class names": self.tokenizer.names} if self.tokenizer.names else {}
        self.model_facts = ModelFacts(
            format=self.format,
            activations=(config.image.activation, config.text.activation),
            tokenizer=TokenizerKind.WORDS,
            context=config.context,
            remarks={title: written[key] for key, title in _REMARKS.items() if key in written}
            | {title: ", ".join(words) for title, words in known.items()},
        )
        self.input_shape = (3, config.resolution, config.resolution)

    @abstractmethod
    def _make_tokenizer(self, written: dict[str, str]) -> WordTokenizer:
        """The tokenizer over the words in the file's metadata."""

    @abstractmethod
    def _make_towers(self, config: dict[str, Any]) -> tuple[EmbeddedConfig, EmbeddedTowers]:
        """Both towers in the sizes that the file states, not filled."""

    @classmethod
    def load(cls, memory: Memory = "fast", compile: bool = False) -> EmbeddedModel:
        """The model that comes with the package; the options are those of ``VisionTower.set_mode``."""
        model = cls()
        model.encoder.set_mode(memory, compile)
        return model

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Unit features [N, D]; an unknown word is an error that says which are known."""
        return CausalPrompts(*self.tokenizer(texts, self._context)).encode(self._text)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """The text tower with these prompts."""
        tokenize = partial(self.tokenizer, context=self._context)
        prompts = CausalPrompts(*tokenize(texts))
        return TextSide(self._text, prompts, len(texts), prompts.longest, ContextTokenizer(tokenize))


def _read_channels(words: str) -> tuple[float, float, float]:
    """One number for all three channels, or three."""
    values = [float(word) for word in words.split()]
    red, green, blue = values * 3 if len(values) == 1 else values
    return red, green, blue
