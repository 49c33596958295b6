"""The word tokenizer: every word is known or refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lmr.core.errors import LmrError
from lmr.models.tokenizers import END, PAD, START, WordTokenizer, check_texts

WORDS = (PAD, START, END, "a", "photo", "of", "oak", "tree", "cat", "palm")
TOKENIZER = WordTokenizer("named", WORDS, ("oak tree", "palm tree", "cat"))


def test_texts_become_ids_and_ends() -> None:
    tokens, end = TOKENIZER(["a Photo of a cat.", "oak_tree"], context=8)
    assert tokens.tolist() == [[1, 3, 4, 5, 3, 8, 2], [1, 6, 7, 2, 0, 0, 0]]
    assert end.tolist() == [6, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a photo of a tree", "'tree' (did you mean 'oak tree'"),
        ("a cat tree", "'cat tree'"),
        ("a photo", "'a photo'"),
        ("a photo of cats", "'cats' (did you mean 'cat'?)"),
        ("", "''"),
    ],
)
def test_only_names_are_read(text: str, words: str) -> None:
    with pytest.raises(LmrError, match=re.escape(f"does not know {words}")):
        TOKENIZER([text], 8)


def test_long_texts_are_refused() -> None:
    with pytest.raises(LmrError, match="at most 6"):
        TOKENIZER([f"cat {'a ' * 7}"], 8)


@pytest.mark.parametrize("texts", ["a cat", [], [3], ["a cat", None]])
def test_what_is_not_texts_gets_a_message(texts: Any) -> None:
    with pytest.raises(LmrError, match="Expected"):
        check_texts(texts)
