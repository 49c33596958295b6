"""The embedded model: a small trained vision-language model of CLIP's form that comes with the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.backbones.backbone import Backbone
from lmr.backbones.pocket.towers import PocketConfig, PocketModel
from lmr.backbones.pocket.words import WORDS, tokenize
from lmr.core.errors import LmrError
from lmr.core.text import TextSide

if TYPE_CHECKING:
    from PIL.Image import Image

WEIGHTS = Path(__file__).with_name("pocket.safetensors")


class Pocket(Backbone):
    """The pocket model, read from a weights file of the training script."""

    name = "pocket"

    def __init__(self, path: Path = WEIGHTS) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                self.facts: dict[str, str] = dict(file.metadata() or {})
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
            if self.facts["words"] != " ".join(WORDS):
                raise ValueError("its vocabulary is another one")
            config = PocketConfig(**json.loads(self.facts["config"]))
            model = PocketModel(config)
            model.load_state_dict(weights)
            self._mean, self._std = float(self.facts["mean"]), float(self.facts["std"])
            self.logit_scale = float(self.facts["logit_scale"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise LmrError(f"{str(path)!r} does not hold the pocket model; install lmr again. ({error})") from error
        self.encoder = model.image.eval().requires_grad_(False)
        self._text = model.text.eval().requires_grad_(False)
        self._context = config.context
        self.input_shape = (3, config.resolution, config.resolution)

    def preprocess(self, image: Image) -> Tensor:
        """Short side to the model's resolution (bicubic), centre crop, scale and normalise: float [3, 32, 32]."""
        from PIL.Image import Resampling

        side, short = self.input_shape[1], min(image.size)
        if short == 0:
            raise LmrError(f"Expected a picture with pixels, got one of size {image.size}.")
        if max(image.size) > 4 * short:  # a strip: cut its ends first, or resizing it could take gigabytes
            x, y = ((edge - min(edge, 4 * short)) // 2 for edge in image.size)
            image = image.crop((x, y, image.width - x, image.height - y))
        scale = side / short
        size = tuple(max(side, round(edge * scale)) for edge in image.size)
        resized = image.convert("RGB").resize((size[0], size[1]), Resampling.BICUBIC)
        left, top = (size[0] - side) // 2, (size[1] - side) // 2
        square = resized.crop((left, top, left + side, top + side))
        pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(1, side, side, 3)
        return self.preprocess_pixels(pixels)[0]

    def preprocess_pixels(self, pixels: Tensor) -> Tensor:
        """uint8 pictures [N, 32, 32, 3] of the model's own resolution to what the encoder takes."""
        shape = self.input_shape[1], self.input_shape[2], 3
        if not isinstance(pixels, Tensor) or pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != shape:
            came = list(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
            raise LmrError(f"Expected pictures as a uint8 tensor {['N', *shape]}, got {came}.")
        return (pixels.permute(0, 3, 1, 2).float() / 255 - self._mean) / self._std

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Unit features [N, D]; a word the model does not know is answered with its vocabulary."""
        tokens, end = tokenize(texts, self._context)
        with torch.no_grad():
            return F.normalize(self._text(tokens, end), dim=-1)

    def text_side(self, texts: Sequence[str]) -> TextSide:
        """The text tower with these prompts; it is causal, and tokenize cuts the prompts to the longest."""
        tokens, end = tokenize(texts, self._context)
        return TextSide(self._text, _Prompts(tokens, end), len(texts))


@dataclass(frozen=True)
class _Prompts:
    """Tokenised prompts, encoded by the tower they are given to; unlike a closure it can be copied and pickled."""

    tokens: Tensor
    end: Tensor

    def __call__(self, tower: nn.Module, part: slice) -> Tensor:
        features: Tensor = tower(self.tokens[part], self.end[part])
        return features


def load_pocket() -> Pocket:
    """The model that comes with the package."""
    return Pocket()
