"""Passes: the work of a step, counted while it runs on a small stand-in model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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

_WIDTH = 32  # of the stand-in model
_SCALE = 10.0  # its logit scale: images are classified with confidence, and no gradient underflows


@dataclass(frozen=True)
class Passes:
    """The passes of each image through the image tower in a step, and of each class prompt through the text tower.

    Backwards are those of samples with a gradient. Prompts are counted for a whole batch.

    Examples:
        >>> import lmr
        >>> method = lmr.create("tent", lmr.load().classifier(["cat", "dog"]))
        >>> lmr.count_passes(method, batch_size=4)
        Passes(forwards=1.0, backwards=1.0, text_forwards=0.0, text_backwards=0.0)
    """

    forwards: float
    backwards: float = 0.0
    text_forwards: float = 0.0
    text_backwards: float = 0.0


_COUNTED: dict[tuple[type[Method], str, int, int], Passes] = {}  # by method, spec, classes and size of the batch


class PassCounter:
    """Counts the samples that go forward through a module, and those whose output receives a gradient."""

    def __init__(self) -> None:
        self.forwards = self.backwards = self.largest = 0  # largest: samples encoded at once

    @contextmanager
    def observe(self, module: nn.Module) -> Iterator[None]:
        """Count while this context is open."""
        handle = module.register_forward_hook(self._count_forward)
        try:
            yield
        finally:
            handle.remove()

    def _count_forward(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        self.forwards += len(output)
        self.largest = max(self.largest, len(output))
        if output.requires_grad:
            output.register_hook(self._count_backward)  # type: ignore[no-untyped-call]

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += int((gradient != 0).flatten(1).any(1).sum())


def count_passes(method: Method, batch_size: int = 8) -> Passes | None:
    """Count the passes of a step of ``method`` on a batch whose samples are all confident.

    The step runs on a small stand-in model with as many classes, and with a state as after a long stream. Where the
    work repeats after several steps, the counts are averages over them. None if the method cannot run on that model.
    Methods with equal arguments and as many classes are counted once.

    Examples:
        >>> import lmr
        >>> method = lmr.create("lmr_variants(emit='before')", lmr.load().classifier(["cat", "dog"]))
        >>> lmr.count_passes(method).forwards
        1.0
    """
    key = (type(method), method.spec, method.classifier.classes, batch_size)
    if key in _COUNTED:
        return _COUNTED[key]
    classifier = make_stand_in(method.classifier.classes)
    images = _make_images(classifier, batch_size)
    images_seen, prompts_seen = PassCounter(), PassCounter()
    steps = max(1, math.ceil(method.cycle / batch_size))
    assert classifier.text is not None
    try:
        arguments = {key: getattr(method, key) for key in list_arguments(type(method))}
        copy = type(method)(classifier, **arguments)
        copy.fill_state(images)
        with images_seen.observe(classifier.encoder), prompts_seen.observe(classifier.text.tower):
            for _ in range(steps):
                copy.step(images)
    except Exception as error:  # the method is anyone's code, and needs more than this model has
        LOGGER.info("The passes of %s are not known: it does not run on the stand-in model (%s).", method.name, error)
        return None
    total, prompts = steps * batch_size, steps * classifier.classes
    _COUNTED[key] = Passes(
        images_seen.forwards / total,
        images_seen.backwards / total,
        prompts_seen.forwards / prompts,
        prompts_seen.backwards / prompts,
    )
    return _COUNTED[key]


class _StandInTower(nn.Module):
    """A tower with one norm: the first values of each input [B, ...], normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(_WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, ...] to features [B, _WIDTH]."""
        features: Tensor = self.ln(inputs.flatten(1)[:, :_WIDTH])
        return features


class _StandInPrompts:
    """Prompts [C, _WIDTH] that a learnt context [1, _WIDTH] is added to."""

    def __init__(self, prompts: Tensor) -> None:
        self.prompts, self.order = prompts, torch.arange(len(prompts))

    def start(self, tower: nn.Module) -> Tensor:
        return torch.zeros_like(self.prompts[:1])

    def encode(self, tower: nn.Module, classes: Tensor, context: Tensor) -> Tensor:
        features: Tensor = tower(self.prompts[classes] + context)
        return features


def make_stand_in(classes: int) -> ZeroShot:
    """Return a small classifier with both towers, on which every method runs."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randn(classes, _WIDTH, dtype=torch.float64, generator=generator)
    image, text = _StandInTower().double(), _StandInTower().double()

    def encode_texts(texts: Sequence[str]) -> Tensor:
        features: Tensor = text(prompts[torch.arange(len(texts)) % classes])
        return features

    side = TextSide(
        text, lambda tower, part: tower(prompts[part]), classes, learn=lambda context, names: _StandInPrompts(prompts)
    )
    return ZeroShot(
        image,
        F.layer_norm(prompts, (_WIDTH,)),
        _SCALE,
        input_shape=(3, 8, 8),
        text=side,
        reader=TextReader(text, encode_texts),
        pixels=PixelScale((0.5,) * 3, (0.5,) * 3),
    )


def _make_images(classifier: ZeroShot, count: int) -> Tensor:
    """Return images [count, 3, 8, 8] whose features are near the prototypes of classes in turn."""
    generator = torch.Generator().manual_seed(1)
    images = 0.1 * torch.randn(count, 192, dtype=torch.float64, generator=generator)
    images[:, :_WIDTH] += classifier.prototypes[torch.arange(count) % classifier.classes] * math.sqrt(_WIDTH)
    return images.view(count, 3, 8, 8)
