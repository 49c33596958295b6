"""Tokenizers of transformers: read from a model's folder, told apart by a digest, and serving CLIP's text tower."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.models.clip.tokenizer import check_texts
from lmr.models.quiet_transformers import quiet_transformers

HIGHEST = 2  # as the id of the end token: "the highest id of a text", in configurations of early versions


class TransformersTokenizer:
    """Texts to the ids of a tokenizer of transformers, and where each text ends, as CLIP's text tower needs them."""

    def __init__(self, tokenizer: Any, name: str, *, context: int, vocabulary: int, end: int) -> None:
        self.tokenizer, self.name = tokenizer, name
        self.context, self.vocabulary, self.end = context, vocabulary, end
        self.digest = digest_tokenizer(tokenizer)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids int64 [N, longest], zero after each text, and the position [N] of each text's end token.

        The end is found as transformers' CLIP does: the first place of the configuration's end token, or of the highest
        id where that is 2. Texts are read one by one and without padding, which a causal tower does not see.
        """
        rows = [self._read(text) for text in check_texts(texts)]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return tokens, torch.tensor([self._find_end(row) for row in rows])

    def _read(self, text: str) -> list[int]:
        with quiet_transformers():
            row = [int(token) for token in self.tokenizer(text, truncation=True, max_length=self.context)["input_ids"]]
        if not row or max(row) >= self.vocabulary:
            came = f"the token {max(row)}" if row else "no tokens"
            raise LmrError(
                f"The tokenizer of {self.name!r} gives {came} for {text!r:.60}, but the model knows {self.vocabulary} "
                "tokens; the tokenizer belongs to another model."
            )
        return row

    def _find_end(self, row: list[int]) -> int:
        end = max(row) if self.end == HIGHEST else self.end
        if end not in row:
            raise LmrError(
                f"The tokenizer of {self.name!r} does not end texts with the token {end}, as the model's configuration "
                "says; the tokenizer belongs to another model."
            )
        return row.index(end)


def read_tokenizer(folder: Path, expected: str = "tokenizer.json with tokenizer_config.json") -> Any:
    """The tokenizer that transformers reads from a folder: its files alone, never code."""
    try:
        from transformers import AutoTokenizer

        with quiet_transformers():
            tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise LmrError(
            "This model's tokenizer needs more packages: pip install transformers sentencepiece protobuf."
        ) from error
    except Exception as error:  # the tokenizers library raises bare exceptions
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise LmrError(f"Cannot read the tokenizer in {str(folder)!r} ({reason}); expected {expected}.") from error
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # transformers makes one up without a file
        raise LmrError(f"The tokenizer in {str(folder)!r} has no vocabulary; expected {expected}.")
    return tokenizer


def digest_tokenizer(tokenizer: Any) -> str:
    """A digest of what decides the ids of a tokenizer: its class, its vocabulary, and its rules where it tells them."""
    rules = describe_rules(tokenizer) or ""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(f"{type(tokenizer).__name__} {vocabulary} {rules}".encode()).hexdigest()


def describe_rules(tokenizer: Any) -> str | None:
    """The content of a tokenizer.json, for tokenizers of the tokenizers library; None for others.

    Without padding and truncation, which every call sets anew.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    content = json.loads(backend.to_str())
    return json.dumps({key: value for key, value in content.items() if key not in ("padding", "truncation")})


def name_tokenizer(tokenizer: Any) -> str:
    """Class and size of a tokenizer, for the screen."""
    return f"{type(tokenizer).__name__}, {len(tokenizer)} tokens"
