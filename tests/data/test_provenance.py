"""Origins: texts that stored rows have."""

from __future__ import annotations

from lmr.data.provenance import describe_files, describe_made, describe_test_set


def test_texts_are_those_of_stored_rows() -> None:
    """They may never change, as stored rows are compared with new ones."""
    assert [describe_files(official, "CIFAR-10-C", ["fog.npy"]) for official in (True, False, None)] == [
        "the official files of CIFAR-10-C",
        "not the official files of CIFAR-10-C: fog.npy not of the published checksum",
        "files in the layout of CIFAR-10-C, not checked",
    ]
    assert describe_made("cifar", 0) == "made by lmr with the cifar constants, seed 0"
    assert describe_test_set(False, 9) == "not the official test set, 9 images"
