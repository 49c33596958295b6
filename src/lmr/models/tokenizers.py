"""Tokenizers: the words of the embedded model, and those of transformers as the two kinds of text towers need them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.spec import list_unknown
from lmr.models.words import ALIASES

HIGHEST = 2  # as the id of the end token: "the highest id of a text", in configurations of early versions
PAD, START, END = "<pad>", "<start>", "<end>"  # the first three words of every vocabulary of whole words


class CausalTokenizer:
    """Texts to the ids of a tokenizer of transformers, and where each text ends, as CLIP's text tower needs them.

    ``end`` is the id of the end token in the model's configuration.
    """

    def __init__(self, tokenizer: Any, context: int, end: int) -> None:
        self.tokenizer, self.context, self.end = tokenizer, context, end
        self.digest = f"{digest_tokenizer(tokenizer)} {end} {context}"

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return ids int64 [N, longest], zero after each text, and the position [N] of each text's end token.

        The end is where transformers' CLIP finds it: the first place of the end token, or of the highest id where the
        configuration's end token is 2.
        """
        # One by one: batches start threads of the tokenizers library, and a later fork would warn about them.
        rows = [
            self.tokenizer(text, truncation=True, max_length=self.context)["input_ids"] for text in check_texts(texts)
        ]
        ends = [max(row) if self.end == HIGHEST else self.end for row in rows]
        for row, end in zip(rows, ends, strict=True):
            if end not in row:
                raise LmrError(
                    f"Expected the tokenizer to end texts with the token {end}, as the model's configuration says, got "
                    f"{row[-5:]}; the tokenizer belongs to another model."
                )
        return _pad(rows), torch.tensor([row.index(end) for row, end in zip(rows, ends, strict=True)])


class PaddedTokenizer:
    """Texts to the ids of a tokenizer of transformers, padded to the full context as in SigLIP's training."""

    def __init__(self, tokenizer: Any, context: int) -> None:
        self.tokenizer, self.context = tokenizer, context
        self.digest = digest_tokenizer(tokenizer)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return ids int64 [N, context]; SigLIP reads its feature from the last position."""
        texts = check_texts(texts)
        # SigLIP 2 was trained on lower case, but Gemma's tokenizer keeps capitals. SigLIP's own has its own rule.
        if type(self.tokenizer).__name__ != "SiglipTokenizer":
            texts = [text.lower() for text in texts]
        options = {"padding": "max_length", "truncation": True, "max_length": self.context, "return_tensors": "pt"}
        tokens: Tensor = self.tokenizer(texts, **options)["input_ids"]  # no mask: padding was attended to in training
        return tokens


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts as a list; anything else is refused."""
    if isinstance(texts, str):
        raise LmrError(f"Expected a list of texts, got the single text {texts[:50]!r}; put it in a list.")
    texts = list(texts)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise LmrError(f"Expected at least one text to encode and nothing but texts, got {texts[:5]}.")
    return texts


def digest_tokenizer(tokenizer: Any) -> str:
    """Return a digest of what decides the ids of a tokenizer, so that a state fits a model from files and from memory.

    Padding and truncation do not count: every call sets them anew.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = {} if backend is None else json.loads(backend.to_str())
    kept = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    kind, lower = type(tokenizer).__name__, getattr(tokenizer, "do_lower_case", None)
    content = json.dumps([kind, sorted(tokenizer.get_vocab().items()), kept, lower])
    return hashlib.sha256(content.encode()).hexdigest()


def _pad(rows: list[list[int]]) -> Tensor:
    """Return ids int64 [N, longest], zero after the end of each row."""
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


class WordTokenizer:
    """Texts to the ids of their words. A word outside the vocabulary is an error, never dropped.

    The model knows the class ``names``: the words of a text that occur in names must be one of them, and all other
    words are those around a name. So "fish" is refused where only "aquarium fish" was learnt. Everyday words such as
    "car" are read as the names that they mean (``ALIASES``).
    """

    def __init__(self, model: str, words: Sequence[str], names: Sequence[str]) -> None:
        self.model, self.words, self.names = model, tuple(words), tuple(names)
        self._ids = {word: number for number, word in enumerate(self.words)}
        of_names = {word for name in names for word in name.split()}
        self.around = tuple(word for word in self.words if not word.startswith("<") and word not in of_names)

    def __call__(self, texts: Sequence[str], context: int) -> tuple[Tensor, Tensor]:
        """Return ids int64 [N, longest text] padded with 0, and the position [N] of each end token.

        The set is cut to its longest text: the text tower is causal, so tokens after the end cannot change a feature.
        """
        texts = [self.expand(text)[0] for text in check_texts(texts)]
        if unknown := [name or text for text in texts if (name := self._find_name(text)) not in self.names]:
            raise LmrError(
                f"The {self.model} model does not know {list_unknown(list(dict.fromkeys(unknown)), self.names)}. It "
                f"knows {len(self.names)} class names and {len(self.around)} words around them; 'lmr doctor "
                f"{self.model}' lists both. For other words load a CLIP model, such as openai/clip-vit-base-patch16."
            )
        rows = [[self._ids[word] for word in (START, *split_words(text), END)] for text in texts]
        longest = max(map(len, rows))
        if longest > context:
            raise LmrError(f"A text has {longest - 2} words; the {self.model} model reads at most {context - 2}.")
        return _pad(rows), torch.tensor([len(row) - 1 for row in rows])

    def find_alias(self, name: str) -> tuple[str, ...]:
        """Return the names that a word which is not a name is read as; none for other words."""
        plain = " ".join(split_words(name))
        meant = ALIASES.get(plain, ()) if plain not in self.names else ()
        return meant if set(meant) <= set(self.names) else ()

    def expand(self, text: str) -> list[str]:
        """Return a text with each name that the word in it is read as; the text itself where there is no such word."""
        for word in split_words(text):
            if word not in self._ids and (meant := self.find_alias(word)):
                return [re.sub(rf"\b{word}\b", name, text.lower()) for name in meant]
        return [text]

    def _find_name(self, text: str) -> str:
        """Return the words of a text that are not those around a name."""
        return " ".join(word for word in split_words(text) if word not in self.around)


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a text; punctuation, underscores and hyphens separate them."""
    return re.findall(r"[^\W_]+", text.lower())
