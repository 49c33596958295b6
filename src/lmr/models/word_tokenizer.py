"""A word-level vocabulary and the tokenizer over it: how the embedded models read texts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from lmr.core.errors import LmrError

PAD, START, END = "<pad>", "<start>", "<end>"  # the first three words of every vocabulary


class WordTokenizer:
    """Texts to the ids of their words. A word outside the vocabulary is an error, never dropped.

    With ``names``, the model knows just these class names: the words of a text that occur in names must be one of them,
    and all other words are those around a name. So "fish" is refused where only "aquarium fish" was learnt.
    """

    def __init__(self, model: str, words: Sequence[str], names: Sequence[str] = ()) -> None:
        self.model, self.words, self.names = model, tuple(words), tuple(names)
        self._ids = {word: number for number, word in enumerate(self.words)}
        self._of_names = {word for name in names for word in name.split()}
        self.around = tuple(w for w in self.words if not w.startswith("<") and w not in self._of_names)

    def __call__(self, texts: Sequence[str], context: int) -> tuple[Tensor, Tensor]:
        """Words to ids: int64 [N, longest text] padded with 0, and the position [N] of each end token.

        The set is cut to its longest text: the text tower is causal, so tokens after the end cannot change a feature.
        """
        rows = [[self._ids[START], *self._read(text), self._ids[END]] for text in texts]
        if not rows:
            raise LmrError("Expected at least one text to encode, got an empty list.")
        longest = max(map(len, rows))
        if longest > context:
            text = next(t for t, row in zip(texts, rows, strict=True) if len(row) == longest)
            raise LmrError(
                f"The text {text!r} has {longest - 2} words; the {self.model} model reads at most {context - 2}."
            )
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return tokens, torch.tensor([len(row) - 1 for row in rows])

    def _read(self, text: str) -> list[int]:
        words = split_words(text)
        for word in words:
            if word not in self._ids:
                raise LmrError(
                    f"The {self.model} model does not know the word {word!r} in {text!r}.{self._describe(word)}"
                )
        name = " ".join(word for word in words if word in self._of_names)
        if self.names and name not in self.names:
            lack = f"knows no class {name!r}, as in {text!r}" if name else f"needs a class name in {text!r}"
            raise LmrError(f"The {self.model} model {lack}.{self._describe(name)}")
        return [self._ids[word] for word in words]

    def _describe(self, word: str) -> str:
        """What could have been meant, and what there is."""
        if not self.names:
            near = difflib.get_close_matches(word, [w for w in self.around if len(w) > 2], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            return f"{hint} Its vocabulary: {', '.join(self.around)}."
        near = self.find_near(word)
        hint = f" Near ones: {', '.join(near)}." if near else ""
        return (
            f"{hint} It knows {len(self.names)} class names and {len(self.around)} words around them; 'lmr doctor "
            f"{self.model}' lists both. For other words load a CLIP model, such as ViT-B-16."
        )

    def find_near(self, words: str, count: int = 6) -> list[str]:
        """Names that share a word with these words, then names that are spelt alike."""
        sharing = [name for name in self.names if set(name.split()) & set(words.split())]
        alike = difflib.get_close_matches(words, self.names, n=count, cutoff=0.55)
        inside = [name for name in self.names if len(words) > 3 and (words in name or name in words)]
        return list(dict.fromkeys([*sharing, *inside, *alike]))[:count]


def split_words(text: str) -> list[str]:
    """Lower-case words; punctuation, underscores and hyphens separate them."""
    return re.findall(r"[^\W_]+", text.lower())
