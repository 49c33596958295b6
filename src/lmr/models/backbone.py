"""Backbone: a loaded vision-language model of any format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from lmr.core.card import Tower
from lmr.core.classifier import ZeroShot, leave_autocast, leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.pixel_scale import PixelScale
from lmr.core.placement import Device, Placement, find_placement, place_tower, read_target
from lmr.core.text import TextReader, TextSide
from lmr.models.preprocessing import ImagePreprocess, Images, Preprocessing
from lmr.models.prompts import DEFAULT_TEMPLATES, Templates, write_prompts
from lmr.models.prototypes import Cache, average_prompts, digest_tower, find_cache, find_prototypes, name_prototypes

__all__ = ["DEFAULT_TEMPLATES", "Backbone"]

Norms = Mapping[Tower, Mapping[str, Tensor]]  # of the towers that adapt: parameters under their names in the tower

SMALL_MODEL = 20_000_000  # parameters of an image tower; a ViT-B/16 has 86 million
_LARGE = 100  # classes from which a name may occur twice, as in the names that CLIP has for ImageNet


class Backbone(ABC):
    """An image encoder, its text encoder, its preprocessing and its logit scale, which belong together.

    Examples:
        >>> import lmr, torch
        >>> from PIL import Image
        >>> backbone = lmr.load("photo")
        >>> isinstance(backbone, lmr.Backbone), backbone.input_shape
        (True, (3, 32, 32))
        >>> clip = backbone.classifier(["cat", "ship"], ["a photo of a {}.", "a blurry photo of a {}."])
        >>> images = torch.stack([backbone.preprocess(Image.new("RGB", (640, 480), "navy"))])
        >>> lmr.create("zeroshot", clip).predict(images).probabilities.shape
        torch.Size([1, 2])
    """

    name: str
    encoder: nn.Module  # images [B, *input_shape] to features [B, D]
    preprocessing: Preprocessing
    input_shape: tuple[int, ...]
    logit_scale: float
    logit_bias: float = 0.0
    # What was loaded, for people: format, activation, preprocessing, tokenizer.
    facts: dict[str, str] = {}  # noqa: RUF012 (replaced as a whole)
    keeps_prototypes: bool = True  # False where computing prototypes is cheaper than looking them up
    _text: nn.Module  # the text tower

    def __repr__(self) -> str:
        device, dtype = self.placement
        shape = "x".join(map(str, self.input_shape))
        return f"Backbone({self.name!r}, {shape}, {device}, {str(dtype).removeprefix('torch.')})"

    @property
    def placement(self) -> Placement:
        """The device and the type of the frozen weights, and of the images the encoder takes."""
        return find_placement(self.encoder) or (torch.device("cpu"), torch.float32)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the frozen weights, and of the images the encoder takes."""
        return self.placement[1]

    def to(self, device: Device | torch.dtype | None = None, dtype: torch.dtype | str | None = None) -> Self:
        """Move both towers, in place, as ``ZeroShot.to`` does; classifiers made of them and their methods follow."""
        place, kind = read_target(device, dtype)
        with leave_inference_mode():
            for tower in (self.encoder, self._text):
                place_tower(tower, place, kind)
        return self

    @property
    def is_small(self) -> bool:
        """True if the image tower is so small that several threads of torch are hardly faster than one."""
        return sum(parameter.numel() for parameter in self.encoder.parameters()) <= SMALL_MODEL

    @property
    def preprocess(self) -> Callable[[Images], Tensor]:
        """The function from an image to an input of the encoder: [*input_shape], on the CPU.

        It takes a PIL image, the path of a file, the content of one (bytes), or a uint8 array; or a list of them, for
        a batch [N, *input_shape]. It can be pickled, for the workers of a DataLoader; see ``ImagePreprocess``.
        """
        return ImagePreprocess(self.preprocessing, self.dtype)

    @abstractmethod
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D] of N texts, without gradient."""

    def text_side(self, texts: Sequence[str]) -> TextSide | None:
        """Return the text tower with these prompts, for methods that adapt it; None where it cannot give gradients."""
        return None

    def text_digest(self) -> str:
        """Return a digest of everything but the text itself that decides the output of ``encode_text``."""
        return digest_tower(self._text)

    def write_huggingface(self, folder: Path, norms: Norms) -> None:
        """Write the model into a folder that transformers opens, in float32, with ``norms`` in place of its own."""
        raise LmrError(f"{self.name!r} cannot be written as a Hugging Face folder; CLIP and SigLIP models can.")

    def classifier(
        self, names: Sequence[str], templates: Templates = DEFAULT_TEMPLATES, *, cache: Cache = True
    ) -> ZeroShot:
        """Return a zero-shot classifier for these class names.

        Every name is put into every template ("a photo of a {}."), the texts are encoded and normalised, averaged over
        the templates and normalised again. Underscores in names read as spaces. ``templates`` may also hold separate
        sentences for every class: a mapping class -> list of sentences, or the path of a JSON file that holds one.

        The prototypes are cached on disk under a digest of the text tower and the prompts (``$LMR_CACHE``, or
        ``~/.cache/lmr``), so that a large set is encoded once; ``cache`` may be False, or another folder.
        """
        names = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else names
        prompts = write_prompts(names, templates)
        if len(names) < _LARGE and (again := [name for name, count in Counter(names).items() if count > 1]):
            raise LmrError(f"Name every class once; {', '.join(map(repr, again[:5]))} occurs more than once.")
        with leave_inference_mode(), leave_autocast(next(self._text.parameters()).device):
            identity = name_prototypes(self.text_digest(), prompts)
            prototypes = self._find_prototypes(identity, prompts, cache)
            single = all(len(own) == 1 for own in prompts)
            text = self.text_side([own[0] for own in prompts]) if single else None
        return ZeroShot(
            self.encoder,
            prototypes,
            self.logit_scale,
            logit_bias=self.logit_bias,
            names=names,
            input_shape=self.input_shape,
            text=text,
            identity=identity,
            prompts=prompts,
            reader=TextReader(self._text, self.encode_text),
            pixels=self._find_scale(),
        )

    def _find_scale(self) -> PixelScale | None:
        """Return the scaling of pixels; None for a backbone that prepares images in its own way."""
        known: Preprocessing | None = getattr(self, "preprocessing", None)
        return None if known is None else PixelScale(known.mean, known.std)

    def _find_prototypes(self, identity: str, prompts: list[list[str]], cache: Cache) -> Tensor:
        """Return unit features [C, D], from the cache or computed and cached."""
        folder = find_cache(cache if self.keeps_prototypes or cache is not True else False)
        compute = partial(average_prompts, self.encode_text, prompts)
        if folder is None:
            return compute()
        found = find_prototypes(folder / f"{identity}.safetensors", len(prompts), compute)
        return found.to(next(self._text.parameters()).device)
