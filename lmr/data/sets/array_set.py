"""A clean dataset whose images are one array in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lmr.data.sets.dataset import Dataset, ImageArray, Labels, make_digest


class ArraySet(Dataset):
    """Images of one size: uint8 [N, H, W, 3] and labels [N]."""

    _images: NDArray[np.uint8]
    _labels: Labels

    @cached_property
    def digest(self) -> str:
        """Of every pixel and label, whatever file they were read from."""
        return make_digest(self._images.tobytes(), self._labels.astype("<i8").tobytes())

    def labels(self, domain: str) -> Labels:
        """The class of every image."""
        self.check(domain)
        return self._labels

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Copies of the images."""
        indices = [int(index) for index in indices]
        self.check(domain, severity, indices)
        return [self._images[index].copy() for index in indices]
