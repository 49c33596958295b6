"""Everyday words: the names that the embedded model reads them as, and hints by meaning."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn import functional as F

import lmr
from lmr.models.embedded import Embedded
from lmr.models.words import ALIASES, RELATED


@pytest.fixture(scope="module")
def photo() -> Embedded:
    return Embedded()


def test_every_word_means_names_of_the_model_and_is_none_itself(photo: Embedded) -> None:
    names = set(photo.tokenizer.names)
    assert all(set(meant) <= names for meant in (*ALIASES.values(), *RELATED.values()))
    assert not names & {*ALIASES, *RELATED}
    assert not ALIASES.keys() & RELATED.keys()


def test_aliases_have_the_features_of_their_names(photo: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        clip = photo.classifier(["Car", "person", "cat"], cache=False)
    assert caplog.messages == ["The photo model reads 'Car' as automobile; 'person' as man, woman, boy, girl, baby."]
    expected = photo.classifier(["automobile", "cat"], cache=False).prototypes
    assert torch.allclose(clip.prototypes[[0, 2]], expected, atol=1e-6)
    people = photo.encode_text([f"a photo of a {name}." for name in ("man", "woman", "boy", "girl", "baby")])
    assert torch.allclose(clip.prototypes[1], F.normalize(people.mean(0), dim=0), atol=1e-6)
    assert clip.names == ("Car", "person", "cat")
    caplog.clear()
    photo.classifier(["Car", "cat"], cache=False)
    assert not caplog.messages
    assert clip.text is None
    side = photo.classifier(["tv", "cat"], cache=False).text
    assert side is not None


def test_two_words_for_one_name_are_refused(photo: Embedded) -> None:
    for names in (["car", "automobile"], ["auto", "cat", "car"], ["person", "people"]):
        with pytest.raises(lmr.LmrError, match="omit one"):
            photo.classifier(names, cache=False)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("kitten", "cat"),
        ("vehicle", "truck"),
        ("flower", "rose"),
        ("truk", "truck"),
        ("food", "apple"),
        ("forklift", "tractor"),
        ("catepilar", "caterpillar"),
    ],
)
def test_hints_are_by_meaning_before_spelling(photo: Embedded, word: str, near: str) -> None:
    with pytest.raises(lmr.LmrError, match=rf"Near ones: .*{near}"):
        photo.classifier([word, "dog"], cache=False)
    with pytest.raises(lmr.LmrError, match=rf"'{word}' \(did you mean .*{near}"):
        photo.classifier([word, "xylophones", "dog"], cache=False)


def test_what_is_only_spelt_alike_is_no_hint(photo: Embedded) -> None:
    for word in ("helmet", "carpet", "pillow", "seaweed", "wig", "housefly"):
        with pytest.raises(lmr.LmrError) as caught:
            photo.classifier([word, "dog"], cache=False)
        assert "Near ones" not in str(caught.value)
    photo.classifier(["kid", "lady", "dog"], cache=False)
