"""Prompts with a context: their tokens, for every kind of tokenizer, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import lmr
from lmr.models.clip.tokenizer import ClipTokenizer
from lmr.models.context_prompts import ContextTokenizer
from lmr.models.pocket.words import tokenize

NAMES = {
    "pocket": ["small green heart", "red ring", "blue star"],
    "photo": ["cat", "aquarium_fish", "ship", "pickup truck"],
}


@pytest.mark.parametrize("model", NAMES)
def test_own_words_give_the_features_of_the_plain_prompts(model: str) -> None:
    backbone = lmr.load(model)
    side = backbone.text_side(["a photo of a " + name.replace("_", " ") for name in NAMES[model]])
    assert side is not None
    assert side.learn is not None
    prompts = side.learn("a photo of a", NAMES[model])
    start = prompts.start(side.tower)
    assert start.shape == (4, 128)
    plain = backbone.encode_text([f"a photo of a {name.replace('_', ' ')}." for name in NAMES[model]])
    for part in (prompts.order, prompts.order[1:], torch.tensor([2])):
        found = torch.nn.functional.normalize(prompts.encode(side.tower, part, start), dim=1)
        torch.testing.assert_close(found, plain[part], atol=1e-6, rtol=0)


def test_classes_of_equal_length_are_encoded_together() -> None:
    prompts = ContextTokenizer(lambda texts: tokenize(texts, 20))("a photo of a", NAMES["pocket"])
    assert prompts.order.tolist() == [1, 2, 0]
    assert prompts.words == 4


def test_tokens_of_clip_may_be_parts_of_words() -> None:
    prompts = ContextTokenizer(ClipTokenizer(77))("a photo of a", ["great_white_shark", "kite", "pickelhaube"])
    assert prompts.words == 4
    tokens, _ = ClipTokenizer(77)(["a photo of a kite."])
    assert torch.equal(prompts.tokens[1, : int(prompts.end[1]) + 1], tokens[0])


def test_prompts_too_long_for_the_tower_get_a_sentence() -> None:
    with pytest.raises(lmr.LmrError, match="Choose another context, or shorter class names"):
        ContextTokenizer(ClipTokenizer(9))("a photo of a", ["great white shark of the sea", "kite"])


def test_unknown_words_get_the_sentence_of_the_tokenizer() -> None:
    clip = lmr.load("pocket").classifier(NAMES["pocket"])
    with pytest.raises(lmr.LmrError, match="does not know the word 'hologram'"):
        lmr.create("tpt", clip, context="a hologram of a")


def test_writers_can_be_copied_and_pickled() -> None:
    side = lmr.load("photo").classifier(NAMES["photo"]).text
    assert side is not None
    for again in (copy.deepcopy(side), pickle.loads(pickle.dumps(side))):
        assert again.learn("a photo of a", NAMES["photo"]).words == 4
