"""Prompts from templates and sentences, and prompts whose context is learnt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import lmr
from checkpoint_maker import WORDS, write_tokenizer
from lmr.models.prompts import ContextTokenizer, write_prompts
from lmr.models.tokenizers import CausalTokenizer

NAMES = ["great_white_shark", "Tabby Cat", "dog"]
SENTENCES: dict[str, Any] = {
    "Great White Shark": ["A shark with a white belly.", "A large grey fish."],
    "tabby_cat": ["A striped cat."],
    "dog": ["A loyal animal.", "It barks.", "A {} runs."],
    "zebra": ["Not asked for."],
}
EXPECTED = [
    ["A shark with a white belly.", "A large grey fish."],
    ["A striped cat."],
    ["A loyal animal.", "It barks.", "A dog runs."],
]


def test_every_name_is_put_into_every_template() -> None:
    prompts = write_prompts(NAMES, ["a {}.", "{} or {}"])
    assert prompts == [
        ["a great white shark.", "great white shark or great white shark"],
        ["a Tabby Cat.", "Tabby Cat or Tabby Cat"],
        ["a dog.", "dog or dog"],
    ]


def test_sentences_are_matched_whatever_case_and_underscores() -> None:
    assert write_prompts(NAMES, SENTENCES) == EXPECTED
    assert write_prompts(NAMES, MappingProxyType(SENTENCES)) == EXPECTED
    assert write_prompts(NAMES[::-1], SENTENCES) == EXPECTED[::-1]


@pytest.mark.parametrize("form", [str, Path])
def test_sentences_come_from_a_file(form: Any, tmp_path: Path) -> None:
    path = tmp_path / "cupl.json"
    path.write_text(json.dumps({**SENTENCES, "dog": [*SENTENCES["dog"], "Ein Hund, größer als 🐱."]}), encoding="utf-8")
    prompts = write_prompts(NAMES, form(path))
    assert prompts[:2] == EXPECTED[:2]
    assert prompts[2][-1] == "Ein Hund, größer als 🐱."


@pytest.mark.parametrize(
    ("one", "other"), [("dog", "dog "), ("red star", "red  star"), ("red star", "red_star"), (" dog", "dog ")]
)
def test_names_that_differ_in_white_space_are_refused(one: str, other: str) -> None:
    words = re.escape(f"The class names {one!r} and {other!r} differ only in white space or underscores")
    for templates in (["a {}"], {one: ["It barks."], other: ["It runs."], "cat": ["x"]}):
        with pytest.raises(lmr.LmrError, match=words):
            write_prompts([one, "cat", other], templates)
    with pytest.raises(lmr.LmrError, match=words):
        lmr.load().classifier([one, other])


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        ({"dog": ["x"]}, r"no sentences for 'great_white_shark', 'Tabby Cat'; it needs every one of the 3 classes"),
        ({**SENTENCES, "dog": []}, r"should give 'dog' a list of sentences, none of them empty; got \[\]"),
        ({**SENTENCES, "dog": "It barks."}, "should give 'dog' a list of sentences.*got 'It barks.'"),
    ],
)
def test_bad_sentences_get_a_message(sentences: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match=f"The set of prompts .*{words}"):
        write_prompts(NAMES, sentences)
    path = tmp_path / "cupl.json"
    path.write_text(json.dumps(sentences))
    with pytest.raises(lmr.LmrError, match=f"The prompt file .*cupl.json' .*{words}"):
        write_prompts(NAMES, path)


@pytest.mark.parametrize("content", ["{", "[1, 2]", b"\xff\xfe\x00"])
def test_file_that_is_not_prompts_gets_a_message(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with pytest.raises(
        lmr.LmrError,
        match=r"Cannot read the JSON file .*odd\.json'|class -> list of sentences in .*odd\.json', found a (list|str)",
    ):
        write_prompts(NAMES, path)


LEARNT_NAMES = ["cat", "aquarium_fish", "ship", "pickup truck"]


def test_own_words_give_the_features_of_the_plain_prompts() -> None:
    backbone = lmr.load()
    side = backbone.text_side(["a photo of a " + name.replace("_", " ") for name in LEARNT_NAMES])
    assert side is not None
    assert side.learn is not None
    prompts = side.learn("a photo of a", LEARNT_NAMES)
    start = prompts.start(side.tower)
    assert start.shape == (4, 128)
    plain = backbone.encode_text([f"a photo of a {name.replace('_', ' ')}." for name in LEARNT_NAMES])
    for part in (prompts.order, prompts.order[1:], torch.tensor([2])):
        found = torch.nn.functional.normalize(prompts.encode(side.tower, part, start), dim=1)
        torch.testing.assert_close(found, plain[part], atol=1e-6, rtol=0)


def test_tokens_of_clip_may_be_parts_of_words(tmp_path: Path) -> None:
    tokenizer = CausalTokenizer(write_tokenizer(tmp_path), 40, WORDS - 1)
    prompts = ContextTokenizer(tokenizer)("a photo of a", ["great_white_shark", "kite", "pickelhaube"])
    assert prompts.words == 4
    tokens, _ = tokenizer(["a photo of a kite."])
    assert torch.equal(prompts.tokens[1, : int(prompts.end[1]) + 1], tokens[0])
    tight = CausalTokenizer(tokenizer.tokenizer, 9, WORDS - 1)
    with pytest.raises(lmr.LmrError, match="context"):
        ContextTokenizer(tight)("a photo of a", ["great white shark of the sea", "kite"])


def test_exact_name_comes_first() -> None:
    sentences = {"crane": ["A bird."], "Crane": ["A machine."]}
    assert write_prompts(["crane", "Crane"], sentences) == [["A bird."], ["A machine."]]
    with pytest.raises(lmr.LmrError, match="has both 'crane' and 'Crane' for the class 'CRANE'; keep one"):
        write_prompts(["crane", "CRANE"], sentences)
