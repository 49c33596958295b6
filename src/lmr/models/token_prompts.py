"""Tokenised prompts, encoded by the tower they are given to; unlike closures they can be copied and pickled.

They go to where the tower is, so that a tower that was moved can still read them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.placement import find_placement, widen


class TokenPrompts:
    """Token ids [N, L] of N prompts, for a tower that takes nothing else."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __call__(self, tower: nn.Module, part: slice) -> Tensor:
        """Features [n, D] of some prompts, as the tower gives them."""
        features: Tensor = tower(_bring(self.tokens[part], tower))
        return features

    def encode(self, tower: nn.Module) -> Tensor:
        """Unit features [N, D] of all prompts, without gradient and never below float32."""
        with torch.no_grad():
            raw = self(tower, slice(0, len(self.tokens)))
            return F.normalize(raw.to(widen(raw.dtype)), dim=-1)


class CausalPrompts(TokenPrompts):
    """Token ids [N, L] and where each prompt ends [N], for a causal tower.

    Every part is cut to its own longest prompt, as tokens after the end cannot change a feature.
    """

    def __init__(self, tokens: Tensor, end: Tensor) -> None:
        super().__init__(tokens)
        self.end = end

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return int(self.end.max()) + 1

    def __call__(self, tower: nn.Module, part: slice) -> Tensor:
        """Features [n, D] of some prompts, as the tower gives them."""
        end = self.end[part]
        features: Tensor = tower(*(_bring(x, tower) for x in (self.tokens[part, : int(end.max()) + 1], end)))
        return features


def _bring(tokens: Tensor, tower: nn.Module) -> Tensor:
    """The same on the device of the tower. Ids are kept on the host, so that cutting them waits for no device."""
    placement = find_placement(tower)
    return tokens if placement is None else tokens.to(placement[0])
