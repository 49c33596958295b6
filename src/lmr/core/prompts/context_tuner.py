"""ContextTuner: prototypes from a context, and gradients from prototypes back to the context."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.functional.gradients import pull_back
from lmr.core.locks import hold
from lmr.core.placement import widen
from lmr.core.text import ContextPrompts, TextSide


class ContextTuner:
    """A text tower and prompts whose context is given as a row [n * w].

    Prompts are encoded ``chunk`` at a time, so that memory does not grow with the number of classes. A gradient keeps
    the graph of one chunk only; the tower's own weights take no part in it.
    """

    def __init__(self, text: TextSide, prompts: ContextPrompts, chunk: int, dtype: torch.dtype) -> None:
        self.tower, self.prompts, self.chunk, self.dtype = text.tower, prompts, chunk, dtype
        with hold(self.tower), torch.no_grad():
            words = prompts.start(self.tower)
        self.shape = words.shape
        self.start = words.detach().to(widen(words.dtype)).flatten()
        self.start_prototypes = self.encode(self.start)

    def encode(self, row: Tensor) -> Tensor:
        """Unit prototypes [C, D] of a context, without gradient."""
        with hold(self.tower), torch.no_grad():
            parts = [(part, self._encode(part, row)) for part in self._split()]
        prototypes = parts[0][1].new_empty(len(self.prompts.order), parts[0][1].shape[1])
        for part, found in parts:
            prototypes[part] = found
        return prototypes

    def pull_back(self, row: Tensor, slopes: Tensor) -> Tensor:
        """Gradients [m, n * w] along a context of m losses, whose gradients along its prototypes are [m, C, D].

        The prompts are encoded once for all of them.
        """
        total = row.new_zeros(len(slopes), len(row))
        with hold(self.tower), torch.enable_grad():
            for part in self._split():
                own = row.detach().requires_grad_()
                prototypes = self._encode(part, own)
                for k, slope in enumerate(slopes[:, part]):
                    total[k] += pull_back(prototypes, own, slope, keep_graph=k + 1 < len(slopes))
        return total

    def _split(self) -> Iterator[Tensor]:
        order = self.prompts.order
        return (order[first : first + self.chunk] for first in range(0, len(order), self.chunk))

    def _encode(self, classes: Tensor, row: Tensor) -> Tensor:
        raw = self.prompts.encode(self.tower, classes, row.view(self.shape))
        return F.normalize(raw.to(self.dtype), dim=-1)
