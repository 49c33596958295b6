"""The embedded model: a small trained vision-language model with CLIP's architecture that comes with the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.core.text import TextSide
from lmr.models.backbone import Backbone
from lmr.models.clip.block import fold_activations
from lmr.models.clip.image_tower import Memory, VisionTower
from lmr.models.model_facts import ModelFacts, ModelFormat, TokenizerKind
from lmr.models.pocket.towers import PocketConfig, PocketModel
from lmr.models.pocket.words import WORDS, tokenize
from lmr.models.preprocessing import Preprocessing

WEIGHTS = Path(__file__).with_name("pocket.safetensors")
_REMARKS = {"clean_accuracy": "clean accuracy", "training": "training"}  # what the file says of itself


class Pocket(Backbone):
    """The pocket model, read from a weights file of the training script."""

    name = "pocket"
    keeps_prototypes = False
    encoder: VisionTower

    def __init__(self, path: Path = WEIGHTS) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                written = dict(file.metadata() or {})
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
            if written["words"] != " ".join(WORDS):
                raise ValueError("its vocabulary differs")
            config = PocketConfig(**json.loads(written["config"]))
            model = PocketModel(config)
            model.load_state_dict(weights)
            fold_activations(model)
            mean, std = float(written["mean"]), float(written["std"])
            self.preprocessing = Preprocessing(config.resolution, (mean, mean, mean), (std, std, std))
            self.logit_scale = float(written["logit_scale"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, LmrError) as error:
            raise LmrError(f"{str(path)!r} does not hold the pocket model; reinstall lmr. ({error})") from error
        self.encoder = model.image.eval().requires_grad_(False)
        self._text = model.text.eval().requires_grad_(False)
        self._context = config.context
        self.model_facts = ModelFacts(
            format=ModelFormat.POCKET,
            activations=(config.image.activation, config.text.activation),
            tokenizer=TokenizerKind.POCKET,
            context=config.context,
            remarks={title: written[key] for key, title in _REMARKS.items() if key in written},
        )
        self.input_shape = (3, config.resolution, config.resolution)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Unit features [N, D]; an unknown word is an error that lists the vocabulary."""
        tokens, end = tokenize(texts, self._context)
        with torch.no_grad():
            return F.normalize(self._text(tokens, end), dim=-1)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """The text tower with these prompts, cut to the longest one, as the tower is causal."""
        tokens, end = tokenize(texts, self._context)
        return TextSide(self._text, _PocketPrompts(tokens, end), len(texts))


@dataclass(frozen=True)
class _PocketPrompts:
    """Tokenised prompts, encoded by the tower they are given to; unlike a closure it can be copied and pickled."""

    tokens: Tensor
    end: Tensor

    def __call__(self, tower: nn.Module, part: slice) -> Tensor:
        features: Tensor = tower(self.tokens[part], self.end[part])
        return features


def load_pocket(memory: Memory = "fast", compile: bool = False) -> Pocket:
    """The model that comes with the package; the options are those of ``VisionTower.set_mode``."""
    pocket = Pocket()
    pocket.encoder.set_mode(memory, compile)
    return pocket
