"""The word tokenizer: every word is known or refused."""

from __future__ import annotations

from typing import Any

import pytest

from lmr.core.errors import LmrError
from lmr.models.tokenizers import END, PAD, START, WordTokenizer, check_texts

WORDS = (PAD, START, END, "a", "photo", "of", "oak", "tree", "cat", "palm")
FREE = WordTokenizer("small", WORDS)
NAMED = WordTokenizer("named", WORDS, ("oak tree", "palm tree", "cat"))


@pytest.mark.parametrize("tokenizer", [FREE, NAMED])
def test_texts_become_ids_and_ends(tokenizer: WordTokenizer) -> None:
    tokens, end = tokenizer(["a Photo of a cat.", "oak_tree"], context=8)
    assert tokens.tolist() == [[1, 3, 4, 5, 3, 8, 2], [1, 6, 7, 2, 0, 0, 0]]
    assert end.tolist() == [6, 3]


def test_without_names_any_words_may_be_joined() -> None:
    assert FREE(["cat tree"], 8)[0].tolist() == [[1, 8, 7, 2]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a photo of a tree", "knows no class 'tree', as in 'a photo of a tree'. Near ones: oak tree, palm tree."),
        ("a cat tree", "knows no class 'cat tree'"),
        ("a photo", "needs a class name in 'a photo'"),
        ("a photo of cats", "does not know the word 'cats' in 'a photo of cats'. Near ones: cat."),
        ("", "needs a class name in ''"),
    ],
)
def test_with_names_only_these_are_read(text: str, words: str) -> None:
    with pytest.raises(LmrError) as error:
        NAMED([text], 8)
    assert words in str(error.value)
    assert "It knows 3 class names and 3 words around them; 'lmr doctor named' lists both." in str(error.value)


def test_unknown_word_without_names_lists_the_vocabulary() -> None:
    with pytest.raises(LmrError, match="photos"):
        FREE(["a photos"], 8)


def test_long_texts_and_empty_lists_are_refused() -> None:
    with pytest.raises(LmrError, match="has 7 words; the small model reads at most 6"):
        FREE(["a " * 7], 8)
    with pytest.raises(LmrError, match="at least one text"):
        FREE([], 8)


@pytest.mark.parametrize("texts", ["a cat", [], [3], ["a cat", None]])
def test_what_is_not_texts_gets_a_message(texts: Any) -> None:
    with pytest.raises(LmrError, match="Expected"):
        check_texts(texts)
