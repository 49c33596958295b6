"""Origins: the words of every row, old or new, become the type that wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmr.data.provenance import (
    DataOrigin,
    Provenance,
    describe_files,
    describe_made,
    describe_pocket_world,
    describe_test_set,
    read_origin,
)
from lmr.data.sets.catalogue import open_dataset

ROWS = Path(__file__).parents[1] / "compat" / "v0_2_0" / "rows.jsonl"


@pytest.mark.parametrize("provenance", [Provenance.OFFICIAL, Provenance.OTHER, Provenance.UNCHECKED])
def test_words_become_the_type_that_wrote_them(provenance: Provenance) -> None:
    protocol = {"pictures": describe_test_set(provenance, 10_000)}
    assert read_origin(protocol) == DataOrigin(provenance)
    protocol["corruptions"] = describe_files(provenance, "CIFAR-10-C", ["fog.npy"])
    assert read_origin(protocol) == DataOrigin(provenance, provenance)


def test_what_lmr_made_is_made() -> None:
    protocol = {"pictures": describe_pocket_world(7, 10_000), "corruptions": describe_made("cifar", 0)}
    assert read_origin(protocol) == DataOrigin(Provenance.MADE, Provenance.MADE)
    protocol = {"pictures": "500 of 50000 pictures", "corruptions": describe_made("imagenet", 3) + ", stored as JPEG"}
    assert read_origin(protocol) == DataOrigin(Provenance.UNCHECKED, Provenance.MADE)


def test_missing_and_foreign_words_are_unchecked() -> None:
    assert read_origin({}) == DataOrigin(Provenance.UNCHECKED, None)
    assert read_origin({"pictures": "mine", "corruptions": "", "classes": "9"}) == DataOrigin(
        Provenance.UNCHECKED, Provenance.UNCHECKED
    )


@pytest.mark.parametrize(
    ("words", "provenance"),
    [
        ("the official files of CIFAR-10-C", Provenance.OFFICIAL),
        ("not the official files of CIFAR-10-C: fog.npy not of the published checksum", Provenance.OTHER),
        ("files in the layout of CIFAR-10-C, not checked", Provenance.UNCHECKED),
        ("made by lmr with the cifar constants, seed 0", Provenance.MADE),
    ],
)
def test_words_of_earlier_versions_are_read(words: str, provenance: Provenance) -> None:
    """These are the words of 0.2.0: they may never change, as rows that hold them are compared with new ones."""
    assert read_origin({"corruptions": words}).corruptions is provenance
    made = describe_made("cifar", 0)
    assert words in (made, describe_files(provenance, "CIFAR-10-C", ["fog.npy"]))


def test_rows_of_earlier_versions_are_read() -> None:
    protocols = [json.loads(line)["protocol"] for line in ROWS.read_text().splitlines()]
    assert protocols
    assert {read_origin(protocol) for protocol in protocols} == {DataOrigin(Provenance.MADE, Provenance.MADE)}


@pytest.mark.parametrize("name", ["pocket", "pocket-c"])
def test_sets_say_the_same_in_words_and_as_a_type(name: str) -> None:
    dataset = open_dataset(name)
    expected = DataOrigin(Provenance.MADE, Provenance.MADE if name == "pocket-c" else None)
    assert dataset.find_origin(dataset.domains) == read_origin(dataset.describe_part(dataset.domains)) == expected
