"""Passes: the work of a step, counted while it runs on a small stand-in model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import ZeroShot
from lmr.core.log import LOGGER
from lmr.core.method import Method
from lmr.core.pixel_scale import PixelScale
from lmr.core.spec import list_arguments
from lmr.core.text import TextReader, TextSide

_SHAPE = (3, 8, 8)  # of an image of the stand-in model, whose width is that of a flat image
_SCALE = 10.0  # its logit scale: images are classified with confidence, and no gradient underflows


@dataclass(frozen=True)
class Passes:
    """The passes of each image through the image tower in a step; backwards are those of samples with a gradient."""

    forwards: float
    backwards: float = 0.0


_COUNTED: dict[tuple[type[Method], str, int, int], Passes] = {}  # by method, spec, classes and size of the batch


@contextmanager
def count_samples(module: nn.Module) -> Iterator[Counter[str]]:
    """Count the "forwards" of samples through a module, and the "backwards" of those whose output has a gradient."""
    counts: Counter[str] = Counter()

    def see_backward(gradient: Tensor) -> None:
        counts["backwards"] += int((gradient != 0).flatten(1).any(1).sum())

    def see_forward(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        counts["forwards"] += len(output)
        if output.requires_grad:
            output.register_hook(see_backward)  # type: ignore[no-untyped-call]

    handle = module.register_forward_hook(see_forward)
    try:
        yield counts
    finally:
        handle.remove()


def count_passes(method: Method, batch_size: int = 8) -> Passes | None:
    """Count the passes of a step of ``method`` on a batch whose samples are all confident.

    The step runs on a small stand-in model with as many classes, and with a state as after a long stream. Where the
    work repeats after several steps, the counts are averages over them. None if the method cannot run on that model.

    Examples:
        >>> import lmr
        >>> method = lmr.create("tent", lmr.load().classifier(["cat", "dog"]))
        >>> lmr.count_passes(method, batch_size=4)
        Passes(forwards=1.0, backwards=1.0)
    """
    kind, classes = type(method), method.classifier.classes
    key = (kind, method.spec, classes, batch_size)
    if key not in _COUNTED:
        clip, steps = make_stand_in(classes), max(1, math.ceil(method.cycle / batch_size))
        generator = torch.Generator().manual_seed(1)
        images = 0.1 * torch.randn(batch_size, *_SHAPE, dtype=torch.float64, generator=generator)
        images += clip.prototypes[torch.arange(batch_size) % classes].view_as(images) * math.sqrt(math.prod(_SHAPE))
        try:
            copy = kind(clip, **{key: getattr(method, key) for key in list_arguments(kind)})
            copy.fill_state(images)
            with count_samples(clip.encoder) as seen:
                for _ in range(steps):
                    copy.step(images)
        except Exception as error:  # the method is anyone's code, and needs more than this model has
            LOGGER.info("The passes of %s are not known: it fails on the stand-in model (%s).", method.name, error)
            return None
        _COUNTED[key] = Passes(*(seen[way] / (steps * batch_size) for way in ("forwards", "backwards")))
    return _COUNTED[key]


class _StandInPrompts:
    """Prompts [C, D] that a learnt context [1, D] is added to."""

    def __init__(self, prompts: Tensor) -> None:
        self.prompts, self.order = prompts, torch.arange(len(prompts))

    def start(self, tower: nn.Module) -> Tensor:
        return torch.zeros_like(self.prompts[:1])

    def encode(self, tower: nn.Module, classes: Tensor, context: Tensor) -> Tensor:
        features: Tensor = tower(self.prompts[classes] + context)
        return features


def make_stand_in(classes: int) -> ZeroShot:
    """Return a small classifier on which every method runs: both towers are a norm of the flat input."""
    width = math.prod(_SHAPE)
    prompts = torch.randn(classes, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    image, text = (nn.Sequential(nn.Flatten(), nn.LayerNorm(width)).double() for _ in range(2))
    side = TextSide(
        text, lambda tower, part: tower(prompts[part]), classes, learn=lambda context, names: _StandInPrompts(prompts)
    )
    return ZeroShot(
        image,
        F.layer_norm(prompts, (width,)),
        _SCALE,
        input_shape=_SHAPE,
        text=side,
        reader=TextReader(text, lambda texts: text(prompts[torch.arange(len(texts)) % classes])),
        pixels=PixelScale((0.5,) * 3, (0.5,) * 3),
    )
