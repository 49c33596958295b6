"""The pocket model's words: a fixed vocabulary and the tokenizer over it."""

from __future__ import annotations

from lmr.models.word_tokenizer import END, PAD, START, WordTokenizer

WORDS: tuple[str, ...] = tuple(
    f"{PAD} {START} {END} a an the of in on at with and this that one is here there it see i my "
    "photo picture image drawing snapshot sketch painting view rendering shot "
    "red orange green blue purple striped plain "
    "circle ring crescent square diamond cross triangle pentagon star heart shape "
    "small large little big left right top bottom side corner centre middle "
    "blurry bright dark noisy clean good bad close up background cluttered scene some coloured".split()
)
tokenize = WordTokenizer("pocket", WORDS)
