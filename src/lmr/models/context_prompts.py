"""Prompts whose first words are vectors that a method learns, for CLIP's text tower."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.models.clip.shared_prefix import encode_after
from lmr.models.clip.text_tower import TextTower
from lmr.models.prompts import write_prompts

Tokenize = Callable[[Sequence[str]], tuple[Tensor, Tensor]]  # texts to ids [N, L] and where each text ends [N]


class ContextTokens:
    """Token ids [C, L] of prompts that begin alike, with a start token and ``words`` context words; their ends [C].

    What comes before the class name is the same for all classes. The tower is causal, so it is computed once for all
    of them. Classes with names of equal length are encoded together, as the longest decides the cost.
    """

    def __init__(self, tokens: Tensor, end: Tensor, words: int) -> None:
        self.tokens, self.end, self.words = tokens, end, words
        self.order = end.sort(stable=True).indices

    def start(self, tower: nn.Module) -> Tensor:
        """The vectors [n, w] of the context's words."""
        assert isinstance(tower, TextTower)
        words: Tensor = tower.words(self.tokens[0, 1 : 1 + self.words].to(tower.positions.device))
        return words

    def encode(self, tower: nn.Module, classes: Tensor, context: Tensor) -> Tensor:
        """Raw features [k, D] of some classes with a context [n, w]."""
        assert isinstance(tower, TextTower)
        device, end = tower.positions.device, self.end[classes]
        first = tower.words(self.tokens[:1, 0].to(device))
        rest = self.tokens[classes, 1 + self.words : int(end.max()) + 1]
        prefix = torch.cat([first, context.to(first.dtype)])
        return encode_after(tower, prefix, rest.to(device), end.to(device) - len(prefix))


class ContextTokenizer:
    """Writes "context name." for every class and tokenises it: what a TextSide calls to ``learn`` a context."""

    def __init__(self, tokenize: Tokenize) -> None:
        self.tokenize = tokenize

    def __call__(self, context: str, names: Sequence[str]) -> ContextTokens:
        """The prompts; the context's tokens are those that the names alone do not have."""
        if not context.strip() or "{}" in context:
            raise LmrError(f"Expected words such as 'a photo of a' as the context of the prompts, got {context!r}.")
        tokens, end = self._read(f"{context.strip()} {{}}.", names)
        bare, bare_end = self._read("{}.", names)
        words = int(end[0] - bare_end[0])
        rows = zip(tokens, end.tolist(), bare, strict=True)
        if words < 1 or not all(_joins(row[: last + 1], tokens[0, 1 : 1 + words], own) for row, last, own in rows):
            raise LmrError(
                f"The prompts '{context} NAME.' do not have the tokens of {context!r} followed by those of the class "
                "name, for every class. Choose another context, or shorter class names."
            )
        return ContextTokens(tokens, end, words)

    def _read(self, template: str, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        return self.tokenize([own[0] for own in write_prompts(names, [template])])


def _joins(prompt: Tensor, context: Tensor, name: Tensor) -> bool:
    """Whether a prompt is a start token, the context's tokens, and the name's without its start token and padding."""
    begun = 1 + len(context)
    rest = prompt[begun:]
    return torch.equal(prompt[1:begun], context) and torch.equal(rest, name[1 : 1 + len(rest)])
