"""Backbone: a loaded vision-language model, whatever its format, as the rest of the package sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.core.text import TextSide
from lmr.core.zeroshot import ZeroShot, leave_inference_mode

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_TEMPLATES = ("a photo of a {}.",)


class Backbone(ABC):
    """An image encoder, its text encoder, its preprocessing and its logit scale, which belong together."""

    name: str
    encoder: nn.Module  # images [B, *input_shape] to features [B, D]
    input_shape: tuple[int, ...]
    logit_scale: float

    @abstractmethod
    def preprocess(self, image: Image) -> Tensor:
        """A PIL picture of any size and mode to what the encoder takes: float [*input_shape]."""

    @abstractmethod
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Unit features [N, D] of N texts, without gradient."""

    def classifier(self, names: Sequence[str], templates: Sequence[str] = DEFAULT_TEMPLATES) -> ZeroShot:
        """A zero-shot classifier for these class names.

        Every name is put into every template ("a photo of a {}."), the texts are encoded and normalised, averaged over
        the templates and normalised again. Underscores in names read as spaces.
        """
        if isinstance(names, str) or isinstance(templates, str):
            raise LmrError("Expected lists of class names and of templates, got a single text; put it in a list.")
        names, templates = list(names), list(templates)
        if len(names) < 2 or not all(isinstance(name, str) and name.strip(" _") for name in names):
            raise LmrError(f"Expected at least two class names, none of them empty, got {names[:10]}.")
        if not templates or not all(isinstance(template, str) and "{}" in template for template in templates):
            raise LmrError(f"Expected templates with {{}} where the class name goes, got {templates[:5]}.")
        clean = [name.replace("_", " ").strip() for name in names]
        texts = [template.replace("{}", name) for template in templates for name in clean]
        with leave_inference_mode():
            features = self.encode_text(texts)
            features = features.view(len(templates), len(clean), features.shape[-1])
            prototypes = F.normalize(features.mean(0), dim=-1)
            text = self.text_side(texts) if len(templates) == 1 else None
        return ZeroShot(
            self.encoder, prototypes, self.logit_scale, names=names, input_shape=self.input_shape, text=text
        )

    def text_side(self, texts: Sequence[str]) -> TextSide | None:
        """The text tower with these prompts, for methods that adapt it; None where it cannot give gradients."""
        return None
