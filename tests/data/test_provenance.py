"""Origins: the texts in rows become the type that wrote them."""

from __future__ import annotations

import pytest

from lmr.data.provenance import (
    DataOrigin,
    Provenance,
    describe_files,
    describe_made,
    read_origin,
)


def test_missing_and_foreign_texts_are_unchecked() -> None:
    assert read_origin({}) == DataOrigin(Provenance.UNCHECKED, None)
    assert read_origin({"images": "mine", "corruptions": "", "classes": "9"}) == DataOrigin(
        Provenance.UNCHECKED, Provenance.UNCHECKED
    )


@pytest.mark.parametrize(
    ("text", "provenance"),
    [
        ("the official files of CIFAR-10-C", Provenance.OFFICIAL),
        ("not the official files of CIFAR-10-C: fog.npy not of the published checksum", Provenance.OTHER),
        ("files in the layout of CIFAR-10-C, not checked", Provenance.UNCHECKED),
        ("made by lmr with the cifar constants, seed 0", Provenance.MADE),
    ],
)
def test_texts_of_stored_rows_are_read(text: str, provenance: Provenance) -> None:
    """These texts may never change, as stored rows are compared with new ones."""
    assert read_origin({"corruptions": text}).corruptions is provenance
    made = describe_made("cifar", 0)
    assert text in (made, describe_files(provenance, "CIFAR-10-C", ["fog.npy"]))
