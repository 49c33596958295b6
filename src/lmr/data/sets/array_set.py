"""A clean dataset whose images are one array in memory."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lmr.data.sets.dataset import CleanSet, ImageArray, make_digest


class ArraySet(CleanSet):
    """Images of one size: uint8 [N, H, W, 3] and labels [N]."""

    _images: NDArray[np.uint8]

    @cached_property
    def digest(self) -> str:
        """Of every pixel and label, whatever file they were read from."""
        return make_digest(self._images.tobytes(), self._labels.astype("<i8").tobytes())

    def _read(self, indices: list[int]) -> list[ImageArray]:
        return [self._images[index].copy() for index in indices]
