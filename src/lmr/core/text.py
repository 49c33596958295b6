"""The text side of a classifier: for methods that adapt the text tower and re-encode all prompts at every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.gradients import vjp

T = TypeVar("T")


class ContextPrompts(Protocol):
    """One prompt per class, whose first words are vectors that a method learns: the context, the same for all."""

    order: Tensor  # the classes [C], those together that are best encoded together

    def start(self, tower: nn.Module) -> Tensor:
        """Return the vectors [n, w] of the context's words."""
        ...

    def encode(self, tower: nn.Module, classes: Tensor, context: Tensor) -> Tensor:
        """Return raw features [k, D] of some classes [k] with a context [n, w]; gradient flows to it."""
        ...


ContextWriter = Callable[[str, Sequence[str]], ContextPrompts]  # of the context's words and the names of the classes


@dataclass(frozen=True)
class TextSide:
    """A text tower and the class prompts it encodes, one per class.

    ``encode`` maps the tower and a slice of the classes to their raw features [n, D]; gradient flows to the norms of
    ``tower`` while a NormBank serves them. The tower is set to evaluation mode and frozen. If it is causal, cut
    the prompts to the longest of the set: padding after the end of a text has no influence and costs as much as words.

    Examples:
        >>> import lmr, torch
        >>> from torch import nn
        >>> image = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8))
        >>> text = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8))
        >>> prompts = torch.randn(3, 4)  # what the text tower reads for each of three classes
        >>> side = lmr.TextSide(text, lambda tower, part: tower(prompts[part]), classes=3)
        >>> clip = lmr.ZeroShot(image, side.all_prototypes(chunk=3), text=side)
        >>> lmr.create("bitta", clip).step(torch.randn(4, 6)).info["stepped"]
        True
    """

    tower: nn.Module
    encode: Callable[[nn.Module, slice], Tensor]  # takes the tower, so that a copy encodes with its copy
    classes: int
    tokens: int | None = None  # of each prompt as it is encoded, where that is known: what one prompt costs
    learn: ContextWriter | None = None  # writes prompts whose context can be learnt, where the tower takes them

    def __post_init__(self) -> None:
        self.tower.eval().requires_grad_(False)

    def prototypes(self, part: slice) -> Tensor:
        """Return unit features [n, D] of some classes, never below float32."""
        raw = self.encode(self.tower, part)
        return F.normalize(raw.to(torch.promote_types(raw.dtype, torch.float32)), dim=-1)

    def all_prototypes(self, chunk: int) -> Tensor:
        """Return unit features [C, D] of all classes without gradient, ``chunk`` classes at a time."""
        with torch.no_grad():
            return torch.cat([self.prototypes(part) for part in self.chunks(chunk)])

    def chunks(self, chunk: int) -> Iterator[slice]:
        """Return slices of at most ``chunk`` classes that cover all of them."""
        return (slice(first, min(first + chunk, self.classes)) for first in range(0, self.classes, chunk))


@dataclass(frozen=True)
class TextReader:
    """A text tower and how it reads any texts, for methods that write texts of their own.

    ``encode`` maps N texts to their features [N, D], without gradient. A text that it cannot read is an LmrError.
    """

    tower: nn.Module
    encode: Callable[[Sequence[str]], Tensor]


def differentiate_towers(
    loss: Callable[[Tensor, Tensor], tuple[Tensor, T]],
    encode: Callable[[], Tensor],
    rows: Tensor,
    text: TextSide,
    chunk: int,
) -> tuple[Tensor, T, Tensor]:
    """Return value, by-product and gradient of ``loss(features, prototypes) -> (value, by-product)``, evaluated once.

    ``encode`` gives the image features. The gradient is the exact one with respect to ``rows``, from which a NormBank
    serves both towers. Peak memory does not grow with the number of classes, and the graphs of images and texts never
    exist at the same time: the images are encoded, then the prompts without gradient; the loss is differentiated along
    the rows through the images, and along the prototypes; then the prompts are encoded again with gradient, chunk by
    chunk, each chunk's graph freed before the next. A single chunk is encoded only once.
    """
    parts = list(text.chunks(chunk))
    features = encode()
    with torch.set_grad_enabled(len(parts) == 1):
        kept = [text.prototypes(part) for part in parts]
    unit = torch.cat([part.detach() for part in kept]).requires_grad_()
    value, rest = loss(features, unit)
    gradient, to_text = torch.autograd.grad(value, (rows, unit), materialize_grads=True)
    del features
    for k, part in enumerate(parts):
        gradient = gradient + _row_vjp(kept[k] if len(parts) == 1 else text.prototypes(part), rows, to_text[part])
    return value.detach(), rest, gradient


def _row_vjp(encoded: Tensor, rows: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient along ``rows`` through the output of a tower; zero if the tower has no norms."""
    if not encoded.requires_grad:
        return torch.zeros_like(rows)
    return vjp(encoded, rows, gradient)
