"""Serving the images of a stream in order, one at a time; a batch only encodes them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from lmr.core.prediction import State, Step
from lmr.core.streams import Streams

T = TypeVar("T")


@torch.no_grad()
def adapt_in_order(
    features: Tensor,
    state: State,
    streams: Streams,
    look: Callable[[Tensor, State], tuple[Tensor, T]],
    learn: Callable[[T, State], Tensor],
    count: Callable[[Tensor], dict[str, Tensor]] = lambda sums: {},
) -> Step:
    """Answer each image by ``look`` and let ``learn`` change the state of its stream before the next one.

    ``features`` are [B, D], or [B, V, D] of views. ``look`` gets those of an image and the row of its stream, and
    returns logits [C] and what ``learn`` needs to know. ``learn`` changes the row in place and returns counts, of which
    ``count`` gets the sums [A, ...] and returns facts [A]. Both compute with tensors alone where they can: whoever
    reads a value makes the program wait for the device at every image. Images are counted where the state has "seen".
    """
    new, answers, counts = {key: value.clone() for key, value in state.items()}, [], []
    for image, row in _pair(features, new, streams):
        logits, known = look(image, row)
        answers.append(logits)
        counts.append(learn(known, row))
        if "seen" in row:
            row["seen"] += 1
    sums = streams.sum(torch.stack(counts).long())
    info = {"stepped": sums.flatten(1).any(1) if sums.ndim > 1 else sums > 0}
    return Step(torch.stack(answers), new, info | count(sums))


def answer_in_order(
    features: Tensor, state: State, streams: Streams, look: Callable[[Tensor, State], tuple[Tensor, object]]
) -> Tensor:
    """Return logits [B, C] as if each image arrived now, alone."""
    return torch.stack([look(image, row)[0] for image, row in _pair(features, state, streams)])


def _pair(features: Tensor, state: State, streams: Streams) -> Iterator[tuple[Tensor, State]]:
    """Yield the features of each image with views of the row of its stream."""
    for image, k in zip(features, streams.places(), strict=True):
        yield image, {key: value[k] for key, value in state.items()}
