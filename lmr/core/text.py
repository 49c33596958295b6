"""The text side of a classifier: for methods that adapt the text tower and encode all prompts again at every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.errors import LmrError

T = TypeVar("T")


@dataclass(frozen=True)
class TextSide:
    """A text tower and the class prompts it encodes, one per class.

    ``encode`` maps the tower and a slice of the classes to their raw features [n, D]; gradient flows to the norms of
    ``tower`` while a NormBank serves them. The tower is put in evaluation mode and frozen. Where it is causal the
    prompts should be cut to the longest of the set: padding after the end of a text cannot influence it and costs as
    much as words do.
    """

    tower: nn.Module
    encode: Callable[[nn.Module, slice], Tensor]  # takes the tower, so that a copy of this encodes with its own
    classes: int

    def __post_init__(self) -> None:
        self.tower.eval().requires_grad_(False)

    def prototypes(self, part: slice) -> Tensor:
        """Unit features [n, D] of some classes, never below float32."""
        raw = self.encode(self.tower, part)
        if raw.ndim != 2 or len(raw) != part.stop - part.start:
            raise LmrError(
                f"Expected text features {[part.stop - part.start, 'D']} for the classes {part.start} to "
                f"{part.stop - 1}, got {list(raw.shape)}; the text side encodes one prompt per class."
            )
        return F.normalize(raw.to(torch.promote_types(raw.dtype, torch.float32)), dim=-1)

    def all_prototypes(self, chunk: int) -> Tensor:
        """Unit features [C, D] of all classes without gradient, ``chunk`` classes at a time."""
        with torch.no_grad():
            return torch.cat([self.prototypes(part) for part in self.chunks(chunk)])

    def chunks(self, chunk: int) -> Iterator[slice]:
        """Slices of at most ``chunk`` classes that cover all of them."""
        return (slice(first, min(first + chunk, self.classes)) for first in range(0, self.classes, chunk))


def differentiate(
    loss: Callable[[Tensor], tuple[Tensor, T]], rows: Tensor, text: TextSide, chunk: int
) -> tuple[Tensor, T, Tensor]:
    """Value, by-product and gradient of ``loss(prototypes) -> (value, by-product)``, evaluated once.

    The gradient is the exact one with respect to ``rows``, from which a NormBank serves the text tower (and whatever
    else the loss was computed with). Peak memory does not grow with the number of classes: all chunks of prompts but
    the last are encoded without gradient, the loss gives its gradient to the prototypes, and then those chunks are
    encoded once more, each chunk's graph freed before the next. With no more classes than ``chunk`` nothing is encoded
    twice.
    """
    *early, last = text.chunks(chunk)
    with torch.no_grad():
        before = [text.prototypes(part) for part in early]
    kept = text.prototypes(last)
    prototypes = torch.cat([*before, kept.detach()]).requires_grad_()
    value, rest = loss(prototypes)
    gradient, to_text = torch.autograd.grad(value, (rows, prototypes), materialize_grads=True)
    gradient = gradient + _pull_back(kept, rows, to_text[last])
    del kept
    for part in early:
        gradient += _pull_back(text.prototypes(part), rows, to_text[part])
    return value.detach(), rest, gradient


def _pull_back(prototypes: Tensor, rows: Tensor, to_text: Tensor) -> Tensor:
    """The gradient that reaches ``rows`` through some prototypes; none where the text tower has no norms."""
    if not prototypes.requires_grad:
        return torch.zeros_like(rows)
    return torch.autograd.grad(prototypes, rows, to_text)[0]
