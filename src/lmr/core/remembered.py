"""A classifier that encodes no batch twice: for several methods, or several passes, over the same images."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot
from lmr.core.placement import digest_tensors

MOST = 256 * 2**20  # bytes that are kept
Kept = dict[Hashable, tuple[Tensor, float]]  # what was computed, and its seconds; the last used ones last


class Remembered(ZeroShot):
    """A frozen classifier that keeps the features of the batches that ``expect`` announces.

    A batch is recognised as a whole: in batches of another size or order, last digits could differ. So answers are
    bit-equal to those without it. Features with adapted norms do not come from here: ``AdaptedTower`` calls
    ``encode_part``. ``kept`` may be shared by several classifiers. With ``every`` it keeps the features of all batches
    by their values, and the tokens that ``AdaptedTower`` goes on from. ``spared`` counts the seconds that the encoding
    took when it was done.
    """

    def __init__(self, classifier: ZeroShot, kept: Kept | None = None, *, every: bool = False) -> None:
        self.__dict__ |= classifier.__dict__
        self._kept: Kept = {} if kept is None else kept
        self._every, self.spared = every, 0.0
        self._expected: tuple[Tensor, Hashable] | None = None

    def expect(self, images: Tensor, key: Hashable, *, anew: bool = False) -> None:
        """Keep the features of these images alone, by a key of their values; ``anew``: encode them once more."""
        self._expected, self.spared = (images, key), 0.0
        if anew:
            self._kept.pop(("features", key), None)

    def knows(self, images: Tensor) -> bool:
        """Return True if the features of these images are kept."""
        return ("features", self._name(images)) in self._kept

    def encode(self, images: Tensor) -> Tensor:
        """Return features [B, D] as the encoder gives them, in the prototypes' precision."""
        return self._recall("features", images, super().encode)

    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens of images."""
        return self._recall("tokens", images, super().embed) if self._every else super().embed(images)

    def _name(self, images: Tensor) -> Hashable:
        if self._expected is not None:
            return self._expected[1] if images.is_set_to(self._expected[0]) else None
        if not self._every:
            return None
        return digest_tensors({"images": images})

    def _recall(self, kind: str, images: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        if (name := self._name(images)) is None:
            return compute(images)
        if found := self._kept.pop((kind, name), None):
            self._kept[kind, name] = found
            self.spared += found[1]
            return found[0].clone()
        started = time.perf_counter()
        result = compute(images)
        if result.is_cuda:
            torch.cuda.synchronize()
        self._kept[kind, name] = result.detach().clone(), time.perf_counter() - started
        while sum(kept.nbytes for kept, _ in self._kept.values()) > MOST:
            self._kept.pop(next(iter(self._kept)))
        return result
