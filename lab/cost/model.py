"""The model and the classes that are measured, described by plain values, so that a fresh process has the same ones.

The cost of a step depends on the samples that enter its loss. The class prototypes make every image certain of its
class, so that all pass a gate, and several classes occur, as a loss that compares classes has no gradient on one alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.pixel_scale import PixelScale
from lmr.core.placement import choose_dtype, place_tower
from lmr.core.text import TextReader, TextSide
from lmr.models import Backbone, load
from lmr.models.prompts import ContextTokens
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.text import TextConfig, TextTower

SMALL = "small"  # a tower that takes seconds, not minutes, to see the table and to test it
# OpenAI's models, and a small one. The defaults are the sizes of ViT-B/16.
ARCHITECTURES = {
    SMALL: (
        VisionConfig(resolution=32, patch=8, width=64, depth=3, heads=4, features=48, hidden=128),
        TextConfig(context=20, vocabulary=100, width=32, depth=2, heads=2, features=48, hidden=64),
    ),
    "ViT-B-32": (VisionConfig(patch=32), TextConfig()),
    "ViT-B-16": (VisionConfig(), TextConfig()),
    "ViT-L-14": (
        VisionConfig(patch=14, width=1024, depth=24, heads=16, features=768, hidden=4096),
        TextConfig(width=768, heads=12, features=768, hidden=3072),
    ),
}

CONTEXT = 4  # tokens of "a photo of a"
SHORTEST, LONGEST = 7, 16  # tokens of "a photo of a ..." with ImageNet's class names, begin and end included

_WORDS = (["cat", "ship"], ["red circle", "blue star"])  # every vocabulary has one of these pairs

_COLOURS = ((1.0, 1.0, 1.0), (1.0, -1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, 1.0))  # equally far from each other

CERTAINTY = 0.9  # of a sample if there were no rivals, with them about 0.8: past the gates here
RIVALS, DISTANCE = 5, 0.04  # classes just outside the protected set (0.03), so that there is a margin to restore
FEWEST_CLASSES = 12


@dataclass(frozen=True)
class ModelSource:
    """The source of a model: a name or path for ``lmr.load``, or an architecture to fill with random weights."""

    model: str | None = None
    random: str | None = None
    dtype: str = "float32"  # of the image tower

    def __post_init__(self) -> None:
        if (self.model is None) == (self.random is None):
            raise LmrError("Give either a model or the architecture of a random one, such as --random ViT-B-16.")

    @property
    def name(self) -> str:
        """The name in the protocol."""
        name = str(self.model) if self.random is None else f"{self.random}, random weights"
        return f"{name}, {self.dtype}"


@dataclass
class MeasuredModel:
    """An image encoder, its logit scale and, where it has one with gradients, its text side."""

    name: str
    encoder: nn.Module
    input_shape: tuple[int, ...]
    logit_scale: float
    logit_bias: float = 0.0
    text: TextTower | None = None
    backbone: Backbone | None = field(default=None, repr=False)
    _drawn: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def draw_images(self, count: int) -> Tensor:
        """Return noise [count, ...] in up to four colours, the same at every call."""
        return self._draw(count)[0]

    def make_classifier(self, count: int, classes: int, text: TextSide | None = None) -> ZeroShot:
        """Return classes of which the images of ``draw_images`` are certain, each colour of its own one."""
        return ZeroShot(
            self.encoder,
            build_prototypes(self._draw(count)[1], _assign_colours(count), classes, self.logit_scale),
            self.logit_scale,
            logit_bias=self.logit_bias,
            input_shape=self.input_shape,
            text=text,
            reader=None if self.text is None else TextReader(self.text, self._read),
            pixels=PixelScale((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        )

    def _draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Return images [count, ...] and their unit features [count, D], computed once."""
        if count not in self._drawn:
            generator = torch.Generator().manual_seed(1)
            images = 0.25 * torch.randn(count, *self.input_shape, generator=generator)
            images += 2 * torch.tensor(_COLOURS)[_assign_colours(count)].view(count, 3, 1, 1)
            images = images.to(next(self.encoder.parameters()).dtype)
            with torch.no_grad():
                self._drawn[count] = images, F.normalize(self.encoder(images).float(), dim=-1)
        return self._drawn[count]

    def write_prompts(self, classes: int) -> TextSide | None:
        """Return one prompt for each class, random words with the lengths of ImageNet's; None without a text side."""
        if self.text is not None:
            tokens, end = _draw_tokens(self.text.config, classes)
            prompts = ContextTokens(tokens, end, CONTEXT)
            return TextSide(
                self.text,
                lambda tower, part: tower(tokens[part], end[part]),
                classes,
                tokens.shape[1],
                learn=lambda context, names: prompts,
            )
        if self.backbone is None:
            return None
        try:
            return self.backbone.text_side(["a photo"] * classes)
        except LmrError:  # a model with another vocabulary
            return None

    def _read(self, texts: Sequence[str]) -> Tensor:
        """Encode each text as random words, always the same."""
        assert self.text is not None
        config = self.text.config
        lengths = [min(len(text.split()) + 2, config.context) for text in texts]  # with begin and end
        tokens = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
        for row, text, length in zip(tokens, texts, lengths, strict=True):
            generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
            row[:length] = torch.randint(1, config.vocabulary, (length,), generator=generator)
        with torch.no_grad():
            features: Tensor = self.text(tokens, torch.tensor(lengths) - 1)
        return features


def _draw_tokens(config: TextConfig, classes: int) -> tuple[Tensor, Tensor]:
    """Return token ids [C, longest] and the end of each prompt [C]; at least one has the full length."""
    longest, generator = min(LONGEST, config.context), torch.Generator().manual_seed(2)
    tokens = torch.randint(1, config.vocabulary, (classes, longest), generator=generator)
    end = torch.randint(min(SHORTEST, longest) - 1, longest, (classes,), generator=generator)
    end[0] = longest - 1
    return tokens * (torch.arange(longest) <= end.unsqueeze(1)), end


def _assign_colours(count: int) -> Tensor:
    """Return the colour [count] of each image; even a tower with random weights tells images of four colours apart."""
    return torch.arange(count) * min(count, len(_COLOURS)) // count


def find_measured_model(source: ModelSource) -> MeasuredModel:
    """Load the model, or build one with random weights, and give its image tower its type."""
    model = _find_float32(source)
    place_tower(model.encoder, dtype=choose_dtype(source.dtype))
    return model


def _find_float32(source: ModelSource) -> MeasuredModel:
    if source.random is not None:
        if source.random not in ARCHITECTURES:
            raise LmrError(f"Expected one of {', '.join(ARCHITECTURES)} for --random, got {source.random!r}.")
        return build_random(*ARCHITECTURES[source.random], source.name)
    backbone = load(str(source.model))
    side = None
    if isinstance(backbone.encoder, VisionTower):
        for words in _WORDS:
            with suppress(LmrError):  # a model without a tokenizer, or of other words
                side = side or backbone.text_side(words)
    text = side.tower if side is not None and isinstance(side.tower, TextTower) else None
    bias = float(getattr(backbone, "logit_bias", 0.0))
    return MeasuredModel(
        source.name, backbone.encoder, backbone.input_shape, backbone.logit_scale, bias, text, backbone
    )


def build_random(image: VisionConfig, text: TextConfig, name: str) -> MeasuredModel:
    """Build two towers of these sizes with random weights, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        towers = VisionTower(image), TextTower(text)
    for tower in towers:
        fold_activations(tower.eval().requires_grad_(False))
    side = image.resolution
    return MeasuredModel(name, towers[0], (3, side, side), 100.0, text=towers[1])


def build_prototypes(features: Tensor, target: Tensor, classes: int, logit_scale: float) -> Tensor:
    """Return unit prototypes [C, D] with which samples of unit features [B, D] are certain of their ``target`` [B].

    The targets are 0, 1, ... without a gap. A target class has cosine 0 with the samples of all others. The rivals,
    which follow the target classes, are a little behind for every sample, and all further classes are orthogonal.
    """
    count, width = features.shape
    if classes < FEWEST_CLASSES or count >= width:
        raise LmrError(
            f"Expected at least {FEWEST_CLASSES} classes and fewer images than the model has features ({width}), got "
            f"{classes} classes and {count} images; only then can all images be made certain."
        )
    firsts = int(target.max()) + 1
    features = features.double()
    cosine = math.log(CERTAINTY / (1 - CERTAINTY) * (classes - 1)) / logit_scale
    members = torch.cat(
        [cosine * F.one_hot(target).double(), torch.full((count, 1), cosine - DISTANCE).double()], dim=1
    )
    directions = (torch.linalg.pinv(features, rtol=1e-4) @ members).T  # [firsts + 1, D]: the last is the rivals'
    if bool((directions.norm(dim=1) > 1).any()):
        raise LmrError("The features of these images are too similar; measure another model, or fewer images.")
    generator = torch.Generator().manual_seed(3)
    prototypes = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(features.T).Q
    prototypes = F.normalize(prototypes - prototypes @ basis @ basis.T, dim=-1)
    for place in range(firsts + RIVALS):
        part = directions[min(place, firsts)]
        prototypes[place] = part + prototypes[place] * (1 - part.square().sum()).clamp(min=0).sqrt()
    return prototypes.float()
