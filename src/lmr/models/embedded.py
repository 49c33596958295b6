"""The model that comes with the package, "photo": small towers, read from one self-describing file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.log import LOGGER
from lmr.core.text import TextSide
from lmr.models.backbone import Backbone
from lmr.models.catalog import DEFAULT_MODEL
from lmr.models.preprocessing import Preprocessing
from lmr.models.prompts import DEFAULT_TEMPLATES, CausalPrompts, ContextTokenizer, Templates
from lmr.models.prototypes import Cache
from lmr.models.tokenizers import WordTokenizer, split_words
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.stem import StemTower
from lmr.models.towers.text import TextConfig, TextTower
from lmr.models.words import ALIASES

PHOTO = Path(__file__).with_name("assets") / "photo.safetensors"
BETWEEN = "|"  # between the class names in a weights file
_REMARKS = {"clean_accuracy": "clean accuracy", "training": "training"}  # metadata of a file, and its title in facts


@dataclass(frozen=True)
class EmbeddedConfig:
    """Sizes of both towers, stored in the weights file.

    ``stem`` holds the channels of the convolutions at full, half and quarter size; without it there is a patch layer.
    """

    width: int
    depth: int
    heads: int
    context: int
    vocabulary: int
    resolution: int = 32
    patch: int = 8
    text_width: int = 128
    text_depth: int = 2
    text_heads: int = 4
    features: int = 128
    stem: tuple[int, ...] = ()

    @property
    def image(self) -> VisionConfig:
        """Sizes of the image tower."""
        sizes = {key: getattr(self, key) for key in ("resolution", "patch", "width", "depth", "heads", "features")}
        return VisionConfig(**sizes, hidden=4 * self.width)

    @property
    def text(self) -> TextConfig:
        """Sizes of the text tower."""
        sizes = {key: getattr(self, f"text_{key}") for key in ("width", "depth", "heads")}
        own = {key: getattr(self, key) for key in ("context", "vocabulary", "features")}
        return TextConfig(**own, **sizes, hidden=4 * self.text_width)


class EmbeddedTowers(nn.Module):
    """Both towers; features are not normalised here. Before they are ``trained`` a stem has batch norms."""

    def __init__(self, config: EmbeddedConfig, trained: bool = True) -> None:
        super().__init__()
        self.config = config
        image = config.image
        self.image: VisionTower = StemTower(image, config.stem, trained) if config.stem else VisionTower(image)
        self.text = TextTower(config.text)


class Embedded(Backbone):
    """The model "photo" of the package, or one from a weights file that ``lab.train`` wrote."""

    keeps_prototypes = False
    encoder: VisionTower

    def __init__(self, path: Path | None = None) -> None:
        from safetensors import safe_open

        path = path or PHOTO
        with safe_open(str(path), framework="pt") as file:
            written = dict(file.metadata() or {})
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        sizes = json.loads(written["config"])
        config = EmbeddedConfig(**sizes | {"stem": tuple(sizes.get("stem", ()))})
        self.tokenizer = WordTokenizer(DEFAULT_MODEL, written["words"].split(), written["names"].split(BETWEEN))
        towers = EmbeddedTowers(config)
        towers.load_state_dict(tensors)
        fold_activations(towers)
        self.preprocessing = Preprocessing(
            config.resolution, _read_channels(written["mean"]), _read_channels(written["std"])
        )
        self.input_shape = self.preprocessing.input_shape
        self.logit_scale = float(written["logit_scale"])
        self.name = DEFAULT_MODEL if path == PHOTO else str(path)
        self.encoder = towers.image.eval().requires_grad_(False)
        self._text = towers.text.eval().requires_grad_(False)
        self._context = config.context
        self._said: set[str] = set()  # about words that are read as others
        self.facts = {
            "format": written["format"],
            "activation": config.image.activation,
            "tokenizer": "the words of the embedded model",
            "context": str(config.context),
            **{title: written[key] for key, title in _REMARKS.items() if key in written},
            "words": ", ".join(self.tokenizer.around),
            "class names": ", ".join(self.tokenizer.names),
            "also read": "; ".join(f"{word} as {', '.join(meant)}" for word, meant in ALIASES.items()),
        }

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D]; an unknown word is an error that lists the known ones."""
        expanded = [self.tokenizer.expand(text) for text in texts]
        flat = [text for own in expanded for text in own]
        features = CausalPrompts(*self.tokenizer(flat, self._context)).encode(self._text)
        if len(flat) == len(expanded):
            return features
        return F.normalize(
            torch.stack([own.mean(0) for own in torch.split(features, [len(own) for own in expanded])]), dim=-1
        )

    def classifier(
        self, names: Sequence[str], templates: Templates = DEFAULT_TEMPLATES, *, cache: Cache = True
    ) -> ZeroShot:
        """Return a zero-shot classifier; everyday words such as "car" are read as names that the model knows."""
        made = super().classifier(names, templates, cache=cache)
        meant = {name: alias for name in names if (alias := self.tokenizer.find_alias(name))}
        known = {" ".join(split_words(name)): name for name in names}
        for name, alias in meant.items():
            other = known.setdefault(", ".join(alias), name)
            if other != name:
                raise LmrError(
                    f"The {self.name} model reads {name!r} as {' or '.join(alias)}, as it does {other!r}; omit one."
                )
        if new := {name: alias for name, alias in meant.items() if name not in self._said}:
            self._said |= set(new)
            said = "; ".join(f"{name!r} as {', '.join(alias)}" for name, alias in new.items())
            LOGGER.warning("The %s model reads %s.", self.name, said)
        return made

    def text_side(self, texts: Sequence[str]) -> TextSide | None:
        """Return the text tower with these prompts; None where a word is read as several names."""
        if any(len(self.tokenizer.expand(text)) > 1 for text in texts):
            return None
        tokenize = partial(self.tokenizer, context=self._context)
        prompts = CausalPrompts(*tokenize(texts))
        return TextSide(self._text, prompts, len(texts), prompts.longest, ContextTokenizer(tokenize))


def _read_channels(text: str) -> tuple[float, float, float]:
    """Read one number for all three channels, or three."""
    values = [float(value) for value in text.split()]
    red, green, blue = values * 3 if len(values) == 1 else values
    return red, green, blue
