"""The rate at which this machine multiplies matrices of a tower's shapes; the arithmetic limit is based on it."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from lmr.models.towers.image import VisionConfig

_PART = 4  # images in a part that stays in the processor's cache; a whole batch may not
_LEAST_SECONDS = 0.02  # of products of one size in a round


class MatrixRate:
    """The four linear layers of one block on a batch, as bare products into preallocated memory."""

    def __init__(self, config: VisionConfig, batch_size: int, dtype: torch.dtype = torch.float32) -> None:
        width, hidden = config.width, config.hidden
        tokens = (config.resolution // config.patch) ** 2 + 1
        self.flops = 2 * batch_size * tokens * (4 * width * width + 2 * width * hidden)
        generator = torch.Generator().manual_seed(4)
        self._layers: list[tuple[Tensor, Tensor, Tensor]] = []  # input, weight, output
        for inner, outer in ((width, 3 * width), (width, width), (width, hidden), (hidden, width)):
            x, weight = (torch.randn(n, inner, generator=generator, dtype=dtype) for n in (batch_size * tokens, outer))
            self._layers.append((x, weight.T, torch.empty(batch_size * tokens, outer, dtype=dtype)))
        self._sizes = sorted({min(_PART, batch_size) * tokens, batch_size * tokens})
        self.seconds: dict[int, list[float]] = {rows: [] for rows in self._sizes}

    def measure(self, *, keep: bool = True) -> None:
        """Multiply everything, part by part and as a whole; ``keep=False`` warms up.

        Products that take less than a time slice of the system are repeated and the fastest is kept: one interruption
        would make the machine look slower than it is, and the steps faster than its arithmetic.
        """
        for rows in self._sizes:
            started, taken = time.perf_counter(), [self._multiply(rows)]
            while time.perf_counter() - started < _LEAST_SECONDS:
                taken.append(self._multiply(rows))
            if keep:
                self.seconds[rows].append(min(taken))

    def _multiply(self, rows: int) -> float:
        """Seconds of all products in parts of so many rows."""
        started = time.perf_counter()
        for x, weight, out in self._layers:
            for first in range(0, len(x), rows):
                torch.mm(x[first : first + rows], weight, out=out[first : first + rows])
        return time.perf_counter() - started

    @property
    def rate(self) -> float:
        """Operations per second: the best size of part by its median over the rounds."""
        return self.flops / min(statistics.median(times) for times in self.seconds.values())
