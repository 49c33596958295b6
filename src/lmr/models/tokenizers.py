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
from lmr.core.spec import find_near
from lmr.models.words import ALIASES, RELATED

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

    With ``names``, the model knows just these class names: the words of a text that occur in names must be one of them,
    and all other words are those around a name. So "fish" is refused where only "aquarium fish" was learnt. Everyday
    words such as "car" are read as the names that they mean (``ALIASES``).
    """

    def __init__(self, model: str, words: Sequence[str], names: Sequence[str] = ()) -> None:
        self.model, self.words, self.names = model, tuple(words), tuple(names)
        self._ids = {word: number for number, word in enumerate(self.words)}
        self._of_names = {word for name in names for word in name.split()}
        self.around = tuple(w for w in self.words if not w.startswith("<") and w not in self._of_names)

    def __call__(self, texts: Sequence[str], context: int) -> tuple[Tensor, Tensor]:
        """Return ids int64 [N, longest text] padded with 0, and the position [N] of each end token.

        The set is cut to its longest text: the text tower is causal, so tokens after the end cannot change a feature.
        """
        texts = [self.expand(text)[0] for text in texts]
        if unknown := dict(filter(None, map(self._find_unknown, texts))):
            (name, problem), *others = unknown.items()
            if others:
                listed = ", ".join(map(self._name_near, unknown))
                raise LmrError(f"The {self.model} model does not know {listed}.{self._describe()}")
            raise LmrError(f"The {self.model} model {problem}.{self._describe(name)}")
        rows = [[self._ids[word] for word in (START, *split_words(text), END)] for text in texts]
        if not rows:
            raise LmrError("Expected at least one text to encode, got an empty list.")
        longest = max(map(len, rows))
        if longest > context:
            text = next(t for t, row in zip(texts, rows, strict=True) if len(row) == longest)
            raise LmrError(
                f"The text {text!r} has {longest - 2} words; the {self.model} model reads at most {context - 2}."
            )
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

    def _find_unknown(self, text: str) -> tuple[str, str] | None:
        """Return the name or word of a text that is not known, and what is wrong with it; None for a known text."""
        words = split_words(text)
        if lacking := [word for word in words if word not in self._ids]:
            name = " ".join(word for word in words if word not in self.around) if self.names else lacking[0]
            return name, f"does not know the word {lacking[0]!r} in {text!r}"
        name = " ".join(word for word in words if word in self._of_names)
        if self.names and name not in self.names:
            lack = f"knows no class {name!r}, as in {text!r}" if name else f"needs a class name in {text!r}"
            return name or text, lack
        return None

    def _name_near(self, word: str) -> str:
        near = self.find_near(word, 3)
        return f"{word!r} (did you mean {' or '.join(map(repr, near))}?)" if near else repr(word)

    def _describe(self, word: str = "") -> str:
        """Return the end of a message about what is unknown: names or words near a word, and the known ones."""
        if not self.names:
            near = find_near(word, [w for w in self.around if len(w) > 2], 1) if word else []
            hint = f" Did you mean {near[0]!r}?" if near else ""
            return f"{hint} Its vocabulary: {', '.join(self.around)}."
        near = self.find_near(word) if word else []
        hint = f" Near ones: {', '.join(near)}." if near else ""
        return (
            f"{hint} It knows {len(self.names)} class names and {len(self.around)} words around them; 'lmr doctor "
            f"{self.model}' lists both. For other words load a CLIP model, such as openai/clip-vit-base-patch16."
        )

    def find_near(self, words: str, count: int = 6) -> list[str]:
        """List names near in meaning; else those that share a word, differ in number or may be meant by a slip."""
        if meant := [name for name in (*ALIASES.get(words, ()), *RELATED.get(words, ())) if name in self.names]:
            return meant[:count]
        sharing = [name for name in self.names if set(name.split()) & set(words.split())]
        near = find_near(words, self.names, count)
        slips = [name for name in near if abs(len(name) - len(words)) <= 2]  # carpet is no slip of cat
        return list(dict.fromkeys([*sharing, *slips]))[:count]


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a text; punctuation, underscores and hyphens separate them."""
    return re.findall(r"[^\W_]+", text.lower())
