"""Panda (Deng et al. 2026): take what patches of mixed images have in common out of what a method sees."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.bimodal import BimodalMethod
from lmr.core.card import Card, Emission, Preset
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import COUNTS, Method, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import create, register
from lmr.core.runner import choose_first
from lmr.core.streams import Streams
from lmr.core.views.view_maker import seed_generator

_SOURCE = "ruxideng/Panda, the defaults of its code"
_INNER = ("towers", "trained", "scores", "takes_views", "grows", "class_sums", "classes_reason")  # as the method's own

_CARD = Card(
    label="Panda",
    source="Deng et al. 2026",
    year=2026,
    presets={
        "default": Preset({}, f"{_SOURCE}: zero-shot"),
        "tent": Preset(
            {"method": "tent(lr=0.00025, optimizer='adam', weight_decay=0.0)", "beta": 0.2, "again": True},
            f"{_SOURCE}: TENT, whose learning rate is not published",
        ),
        "batclip": Preset(
            {"method": "batclip(lr=0.001, optimizer='adamw', weight_decay=0.01, chunk=128)", "again": True},
            f"{_SOURCE}: BATCLIP, whose learning rate is not published",
        ),
        "zero": Preset({"method": "zero(views=64, seed=0, keep=0.3)", "beta": 0.4}, f"{_SOURCE}: ZERO"),
    },
)


class DebiasedClassifier(ZeroShot):
    """A classifier whose cosines are those of unit features less ``beta`` times the mean feature of negatives.

    Within ``draw`` every forward pass encodes new negatives along with its images, so that gradients flow through both.
    """

    def __init__(self, clip: ZeroShot, beta: float, make: Callable[[Tensor, int], Tensor]) -> None:
        vars(self).update(vars(clip))
        self.beta, self.make = beta, make  # maps a batch, and the number of the draw, to negatives
        self.images: Tensor | None = None  # the batch that each pass makes negatives of
        self.mean: Tensor | None = None  # of the unit features of the last negatives: [D]
        self.number = 0  # draws so far

    @contextmanager
    def draw(self, images: Tensor, number: int, *, once: bool) -> Iterator[None]:
        """Make negatives of a batch from draw ``number`` on: at every pass, or ``once``, without gradient."""
        self.images, self.number = images, number
        try:
            if once and len(images) > 1:
                with torch.no_grad():
                    self.encode_part(images[:0])
            if once:
                self.images = None
            yield
        finally:
            self.images = self.mean = None

    def split(self, count: int) -> list[slice]:
        """Return the whole batch, as all of it shares the negatives."""
        return [slice(0, count)]

    def encode_part(self, images: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Encode images, and new negatives."""
        if self.images is None or len(self.images) < 2:
            return super().encode_part(images, tokens)
        made = self.make(self.images, self.number)
        self.number += 1
        if tokens is not None:
            tokens = torch.cat([tokens, cast(Any, self.encoder).embed(made)])
        raw = super().encode_part(torch.cat([images, made]), tokens)
        self.mean = F.normalize(raw[len(images) :], dim=1).mean(0)
        return raw[: len(images)]

    def cosines(self, features: Tensor, prototypes: Tensor | None = None) -> Tensor:
        """Return the products of debiased features, which are not normalised again, with the prototypes."""
        if self.mean is None:
            return super().cosines(features, prototypes)
        mean = self.mean if features.requires_grad else self.mean.detach()
        return super().cosines(features - self.beta * mean, prototypes)


@register("panda", _CARD)
class Panda(Method):
    """Another method, which sees the logits s (z - ``beta`` n) T' in its loss and in its answer.

    n is the mean unit feature of negatives, one for each ``share`` images of the batch: images whose patches are those
    of other images of the batch at the same place, drawn anew at every forward pass. Gradient flows through n too. A
    strip beside the last whole patch is that of a base image, which gives no patch. That is one offset for each class,
    batch and pass. A single image is answered without negatives. For methods with views n is made once per batch, of
    the images themselves, without gradient. Features that a method keeps or compares are the plain ones.

    ``method`` is the spec of the method, "tent(lr=1e-3)". ``again=True`` answers once more after the step, as the
    authors do with TENT and BATCLIP: with new negatives; or, where both towers adapt, with the same negatives and the
    prompts of before the step. Their ETA has no filter for diverse samples: "eta(diversity=2.0)". Ramen is refused: its
    images have norms of their own.
    """

    export_reason = "its answer depends on the other images of the batch"
    single_stream_reason = "negatives mix the images of a batch, and those of two streams must not mix"

    method: str = "zeroshot()"  # spec of the method that sees the debiased logits
    beta: float = 0.6  # share of the negatives' mean feature that is subtracted
    patch: int = 32  # side of a patch, in pixels
    share: int = 10  # images of a batch for each negative
    again: bool = False  # answer once more after the step, with new negatives
    seed: int = 0  # seed of the negatives

    def prepare(self) -> None:
        self._require_not_negative("beta")
        self._require_count("patch", "share", most=10**6)
        self.debiased = DebiasedClassifier(self.classifier, self.beta, self._make_negatives)
        self.inner = create(self.method, self.debiased)
        if isinstance(self.inner, Panda) or "gradients" in self.inner.grows:  # norms of its own for each image
            raise LmrError(f"panda cannot debias {self.inner.name}; give it another method, such as 'tent'.")
        self.method = self.inner.spec
        vars(self).update({key: getattr(self.inner, key) for key in _INNER})

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the state of the method, and the number of draws."""
        inner = copy.copy(self.inner)
        inner.classifier = self.classifier
        return {**inner.begin(), "draws": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | self.inner.ranges(state) | {"draws": COUNTS}

    def describe(self, state: State) -> Mapping[str, Tensor]:
        return self.inner.describe(state)

    def logit_floor(self) -> float | None:
        return self.inner.logit_floor()

    @property
    def emits(self) -> Emission:
        return "after" if self.again else self.inner.emits

    @property
    def trainable(self) -> int:
        return self.inner.trainable

    @property
    def cycle(self) -> int:
        return self.inner.cycle

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        with self._draw(images, state):
            step = self.inner.adapt(images, state, streams)
            logits = step.logits
            if self.again:
                with torch.no_grad():
                    logits = self._answer_again(images, state, {**state, **step.state}, streams)
        return Step(logits, {**step.state, "draws": torch.full_like(state["draws"], self.debiased.number)}, step.info)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        with self._draw(images, state):
            return self.inner.answer(images, state, streams)

    def _answer_again(self, images: Tensor, before: State, after: State, streams: Streams) -> Tensor:
        """Return logits after the step, as the authors do."""
        if not isinstance(self.inner, BimodalMethod):
            return self.inner.answer(images, after, streams)
        self.debiased.number = int(before["draws"][0])
        return self.inner.answer(images, after, streams, before["norms"])

    @contextmanager
    def _draw(self, images: Tensor, state: State) -> Iterator[None]:
        plain = choose_first(self.inner, images)
        with self.debiased.draw(plain, int(state["draws"][0]), once=self.inner.takes_views):
            yield

    def _make_negatives(self, images: Tensor, number: int) -> Tensor:
        """Return the negatives [M, ...] of a batch, by the draw of this number."""
        height, width = (1, *images.shape[1:])[-2:]
        high, wide = min(self.patch, height), min(self.patch, width)
        rows, columns = height // high, width // wide
        base, source = self._find_negatives(math.ceil(len(images) / self.share), rows * columns, len(images), number)
        whole = (slice(0, rows * high), slice(0, columns * wide))
        chosen = base.view(-1, 1, 1).repeat(1, height, width)
        patches = source.view(-1, rows, columns)
        chosen[:, *whole] = patches.repeat_interleave(high, 1).repeat_interleave(wide, 2)
        flat = images.reshape(len(images), -1, height, width)
        index = chosen.to(images.device).unsqueeze(1).expand(-1, flat.shape[1], -1, -1)
        return flat.gather(0, index).reshape(-1, *images.shape[1:])

    def _find_negatives(self, count: int, patches: int, size: int, number: int) -> tuple[Tensor, Tensor]:
        """Return the base [M] of each negative, and the image [M, n] that each of its patches is of."""
        generator = seed_generator(self.seed, number)
        base = torch.randint(size, (count,), generator=generator)
        others = torch.randint(size - 1, (count, patches), generator=generator)
        return base, others + (others >= base.unsqueeze(1))
