"""The models that come with the package, "photo" and "pocket": small towers, read from one self-describing file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.core.text import TextSide
from lmr.models.backbone import Backbone
from lmr.models.catalog import EMBEDDED_MODELS
from lmr.models.facts import ModelFacts, ModelFormat, describe_activations
from lmr.models.preprocessing import Preprocessing
from lmr.models.prompts import CausalPrompts, ContextTokenizer
from lmr.models.tokenizers import WordTokenizer
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.stem import StemTower
from lmr.models.towers.text import TextConfig, TextTower

ASSETS = Path(__file__).with_name("assets")
_NAMED = ("photo",)  # models that know class names only as a whole, listed in their files
BETWEEN = "|"  # between the class names in a weights file
_REMARKS = {"clean_accuracy": "clean accuracy", "training": "training"}  # metadata of a file, and its title in facts


@dataclass(frozen=True)
class EmbeddedConfig:
    """Sizes of both towers, stored in the weights file; the defaults are those of "pocket".

    ``stem`` holds the channels of the convolutions at full, half and quarter size; without it there is a patch layer.
    """

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


def find_embedded(path: Path) -> str | None:
    """Return "photo" or "pocket" if the weights file is of that form, as ``lab.train`` writes them, else None."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            name = (file.metadata() or {}).get("format", "").removeprefix("lmr-")
    except (OSError, SafetensorError):
        return None  # whoever reads it says why
    return name if name in EMBEDDED_MODELS else None


class Embedded(Backbone):
    """The model "photo" or "pocket", from the package or from a weights file that ``lab.train`` wrote."""

    keeps_prototypes = False
    no_folder_because = (
        "transformers has no tokenizer of whole words like its own, and no image tower with a convolutional stem; CLIP "
        "and SigLIP models can be exported"
    )
    encoder: VisionTower

    def __init__(self, name: str, path: Path | None = None) -> None:
        from safetensors import SafetensorError, safe_open

        path = path or ASSETS / f"{name}.safetensors"
        try:
            with safe_open(str(path), framework="pt") as file:
                written = dict(file.metadata() or {})
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
            if written["format"] != f"lmr-{name}":
                raise ValueError(f"its format is {written['format']}")
            sizes = json.loads(written["config"])
            config = EmbeddedConfig(**sizes | {"stem": tuple(sizes.get("stem", ()))})
            names = written["names"].split(BETWEEN) if name in _NAMED else ()
            self.tokenizer = WordTokenizer(name, written["words"].split(), names)
            towers = EmbeddedTowers(config)
            towers.load_state_dict(tensors)
            fold_activations(towers)
            self.preprocessing = Preprocessing(
                config.resolution, _read_channels(written["mean"]), _read_channels(written["std"])
            )
            self.input_shape = self.preprocessing.input_shape
            self.logit_scale = float(written["logit_scale"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, LmrError) as error:
            raise LmrError(f"{str(path)!r} does not hold the {name} model; reinstall lmr. ({error})") from error
        self.name = name if path.parent == ASSETS else str(path)
        self.encoder = towers.image.eval().requires_grad_(False)
        self._text = towers.text.eval().requires_grad_(False)
        self._context = config.context
        known = {"words": self.tokenizer.around, "class names": self.tokenizer.names} if names else {}
        self.model_facts = ModelFacts(
            ModelFormat(written["format"]),
            shown={
                "format": written["format"],
                "activation": describe_activations(config.image.activation, config.text.activation),
                "tokenizer": "the words of the embedded model",
                "context": str(config.context),
                **{title: written[key] for key, title in _REMARKS.items() if key in written},
                **{title: ", ".join(words) for title, words in known.items()},
            },
        )

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D]; an unknown word is an error that lists the known ones."""
        return CausalPrompts(*self.tokenizer(texts, self._context)).encode(self._text)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """Return the text tower with these prompts."""
        tokenize = partial(self.tokenizer, context=self._context)
        prompts = CausalPrompts(*tokenize(texts))
        return TextSide(self._text, prompts, len(texts), prompts.longest, ContextTokenizer(tokenize))


def _read_channels(text: str) -> tuple[float, float, float]:
    """Read one number for all three channels, or three."""
    values = [float(value) for value in text.split()]
    red, green, blue = values * 3 if len(values) == 1 else values
    return red, green, blue
