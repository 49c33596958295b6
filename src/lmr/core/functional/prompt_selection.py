"""Which prompts of its buffer DynaPrompt uses for an image: pure functions, by the code and by the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.functional.losses import entropy


def measure_logit_drop(logits: Tensor) -> Tensor:
    """How far the largest logit falls from the image to its views, on average: [M] of logits [M, V, C].

    The largest logit of each view is taken for itself, whatever its class, as in the code. Without views it is 0.
    """
    most = logits.amax(-1)
    return (most[:, :1] - most[:, 1:]).sum(1) / max(1, most.shape[1] - 1)


def measure_probability_drop(logits: Tensor) -> Tensor:
    """How far the probability of the class that the image has falls from it to its views, on average: [M]."""
    shares = logits.softmax(-1)
    chosen = shares[:, 0].argmax(-1).view(-1, 1, 1).expand(-1, shares.shape[1], 1)
    own = shares.gather(2, chosen).squeeze(2)
    return (own[:, :1] - own[:, 1:]).sum(1) / max(1, own.shape[1] - 1)


def select_by_code(logits: Tensor, reference: int) -> list[int]:
    """The prompts that the released code selects by the logits [M, V, C] of an image, the reference last.

    Prompts are ranked by entropy, the largest first; r is the reference's place. Candidates are the prompts ranked
    after it (or the last one, if there is none) that are also among the first r by the drop of the logits. Their
    numbers are then used as places in the ranking by entropy, which is apparently a mistake, and is kept. A prompt can
    occur twice.
    """
    ranking = entropy(logits).mean(1).sort(descending=True, stable=True).indices.tolist()
    fallen = measure_logit_drop(logits).sort(descending=True, stable=True).indices.tolist()
    place = ranking.index(reference)
    candidates = set(ranking[min(place + 1, len(ranking) - 1) :]) & set(fallen[:place])
    return [*(ranking[number] for number in sorted(candidates)), reference]


def select_by_paper(logits: Tensor, initial: Tensor, used: Tensor) -> list[int]:
    """The used [M] prompts that are as certain as the initial one, and whose probabilities fall as far; maybe none.

    ``logits`` [M, V, C] are those of the prompts in the buffer, ``initial`` [V, C] those of the original prompt.
    """
    first = initial.unsqueeze(0)
    certain = entropy(logits).mean(1) <= entropy(first).mean(1)
    falling = measure_probability_drop(logits) >= measure_probability_drop(first)
    chosen: list[int] = (certain & falling & used).nonzero().flatten().tolist()
    return chosen


def move_to_back(order: Tensor, chosen: list[int]) -> Tensor:
    """The order [M] of the prompts after these were used, one after the other."""
    places: list[int] = order.tolist()
    for number in chosen:
        places.remove(number)
        places.append(number)
    return torch.tensor(places, dtype=order.dtype, device=order.device)
