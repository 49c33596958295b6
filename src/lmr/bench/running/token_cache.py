"""A cache of image tokens: where embedding is expensive, all runs on an image share it.

Embedding an image costs the photo model as much as its blocks, no method adapts anything before the tokens, and methods
take turns on the same images. So a step is given tokens from the cache. The reported time remains that of a step on
images: each run measures the time of embedding on some batches and adds it to all its steps. A step whose memory is
measured starts from images.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from lmr.bench.inputs import AnyMethod
from lmr.data.dataset import ImageArray

KEPT_TOKEN_BYTES = 250_000_000  # 10,000 images of the photo model and the clean ones of a run take 150 MB
TIMED = 16  # one batch in 16 is embedded to measure its time


class TokenCache:
    """Tokens [L, w] by the content of their images; the least recently used are dropped above a size."""

    def __init__(self) -> None:
        self._rows: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0

    def find(self, arrays: Sequence[ImageArray], images: Tensor, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the tokens [B, L, w] of images, given as they were read and as they were preprocessed [B, ...]."""
        keys = [_digest(array) for array in arrays]
        places = {key: place for place, key in enumerate(keys) if key not in self._rows}
        found = {key: self._rows[key] for key in keys if key in self._rows}
        if places:
            wanted = list(places.values())
            # One image alone is embedded twice: its last digits are then those it has among others.
            tokens = embed(images[wanted * 2 if len(wanted) == 1 else wanted])
            found |= zip(places, tokens, strict=False)
        for key in keys:
            self._keep(key, found[key])
        return torch.stack([found[key] for key in keys])

    def _keep(self, key: bytes, tokens: Tensor) -> None:
        if key not in self._rows:
            self._rows[key] = tokens.clone()  # not a view of its whole batch
            self._bytes += tokens.nbytes
        self._rows.move_to_end(key)
        while self._bytes > KEPT_TOKEN_BYTES:
            self._bytes -= self._rows.popitem(last=False)[1].nbytes


def _digest(array: ImageArray) -> bytes:
    return hashlib.blake2b(f"{array.shape}".encode() + array.tobytes(), digest_size=16).digest()


@lru_cache(1)
def find_token_cache(name: str, dtype: str, device: str) -> TokenCache:
    """Return the cache of a model; a process holds that of one at a time."""
    return TokenCache()


class StepInputs:
    """The inputs of the steps of one run: tokens, or images where the method or the model cannot use tokens."""

    def __init__(self, method: AnyMethod, kept: TokenCache) -> None:
        self.classifier, self.kept = method.classifier, kept
        self.embeds = self.classifier.keeps_tokens and not method.needs_images
        self._seconds: list[float] = []  # of embedding one image, measured

    def find(self, arrays: Sequence[ImageArray], images: Tensor) -> Tensor:
        """Return tokens of images, or the images where tokens cannot be used."""
        return self.kept.find(arrays, images, self.classifier.embed) if self.embeds else images

    def begin(self, arrays: Sequence[ImageArray], images: Tensor, number: int, measure: bool) -> tuple[Tensor, float]:
        """Return the input of the step on batch ``number``, and the seconds that embedding it takes.

        If the memory of the step is measured, the input is the images, and no seconds are added.
        """
        if not self.embeds:
            return images, 0.0
        if measure or number % TIMED == 0 or not self._seconds:
            seconds = self._measure(images)
            return (images, 0.0) if measure else (self.find(arrays, images), seconds)
        return self.find(arrays, images), statistics.median(self._seconds) * len(images)

    def _measure(self, images: Tensor) -> float:
        """Measure the seconds of embedding a batch."""
        started = time.perf_counter()
        self.classifier.embed(images)
        if images.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        self._seconds.append(seconds / len(images))
        return seconds
