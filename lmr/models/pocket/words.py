"""The pocket model's words: a fixed word-level vocabulary and the tokenizer over it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from lmr.core.errors import LmrError

START, END = "<start>", "<end>"
WORDS: tuple[str, ...] = tuple(
    f"<pad> {START} {END} a an the of in on at with and this that one is here there it see i my "
    "photo picture image drawing snapshot sketch painting view rendering shot "
    "red orange green blue purple striped plain "
    "circle ring crescent square diamond cross triangle pentagon star heart shape "
    "small large little big left right top bottom side corner centre middle "
    "blurry bright dark noisy clean good bad close up background cluttered scene some coloured".split()
)
_IDS = {word: number for number, word in enumerate(WORDS)}


def tokenize(texts: Sequence[str], context: int) -> tuple[Tensor, Tensor]:
    """Words to ids: int64 [N, longest text] padded with 0, and the position [N] of each end token.

    The set is cut to its longest text: the text tower is causal, so tokens after the end cannot change a feature.
    """
    rows = [[_IDS[START], *(_look_up(word, text) for word in split_words(text)), _IDS[END]] for text in texts]
    if not rows:
        raise LmrError("Expected at least one text to encode, got an empty list.")
    longest = max(map(len, rows))
    if longest > context:
        text = next(t for t, row in zip(texts, rows, strict=True) if len(row) == longest)
        raise LmrError(f"The text {text!r} has {longest - 2} words; the pocket model reads at most {context - 2}.")
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return tokens, torch.tensor([len(row) - 1 for row in rows])


def split_words(text: str) -> list[str]:
    """Lower-case words; punctuation, underscores and hyphens separate them."""
    return re.findall(r"[^\W_]+", text.lower())


def _look_up(word: str, text: str) -> int:
    if word in _IDS:
        return _IDS[word]
    known = [w for w in WORDS if not w.startswith("<")]
    near = difflib.get_close_matches(word, [w for w in known if len(w) > 2], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise LmrError(
        f"The pocket model does not know the word {word!r} in {text!r}.{hint} Its vocabulary: {', '.join(known)}."
    )
