"""Where data come from: the types that code compares, and the words that rows keep for people.

A row keeps its data's origin as words, in ``protocol["pictures"]`` and ``protocol["corruptions"]``. These words are
part of what makes two rows equal, and rows of older versions hold them too: they never change. Only this file writes
and reads them; all other code compares the types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

IMAGES, CORRUPTIONS = "pictures", "corruptions"  # keys of a protocol

_OFFICIAL, _OTHER, _MADE = "the official", "not the official", "made by lmr"


class Provenance(Enum):
    """What is known about the origin of some files or images."""

    OFFICIAL = "official"  # they match the published checksums, or were unpacked from an archive that does
    MADE = "made"  # computed by lmr
    OTHER = "other"  # they were compared with the published checksums and differ
    UNCHECKED = "unchecked"  # nothing published to compare with, or not compared


@dataclass(frozen=True)
class DataOrigin:
    """The origin of the clean images and of the corrupted ones; ``corruptions`` is None for clean sets."""

    images: Provenance = Provenance.UNCHECKED
    corruptions: Provenance | None = None


def read_origin(protocol: Mapping[str, str]) -> DataOrigin:
    """The origin that the protocol of a row states, whatever version wrote it; missing words are UNCHECKED."""
    corruptions = protocol.get(CORRUPTIONS)
    return DataOrigin(
        _read_provenance(protocol.get(IMAGES, "")), None if corruptions is None else _read_provenance(corruptions)
    )


def _read_provenance(words: str) -> Provenance:
    if words.startswith(_MADE) or " of the pocket world " in words:
        return Provenance.MADE
    if words.startswith(_OTHER):
        return Provenance.OTHER
    return Provenance.OFFICIAL if words.startswith(_OFFICIAL) else Provenance.UNCHECKED


def describe_test_set(provenance: Provenance, count: int) -> str:
    """The words for a clean test set that was compared with the published one, or was not."""
    if provenance is Provenance.UNCHECKED:
        return f"{count} pictures of the test set"
    return f"{_OFFICIAL if provenance is Provenance.OFFICIAL else _OTHER} test set, {count} pictures"


def describe_excerpt(count: int, title: str) -> str:
    """The words for the images that come with the package."""
    return f"{count} pictures of the test set of {title} that come with lmr"


def describe_pocket_world(seed: int, count: int) -> str:
    """The words for images drawn by code."""
    return f"the first {count} of the pocket world {seed}"


def describe_files(provenance: Provenance, title: str, different: Sequence[str] = ()) -> str:
    """The words for corrupted images from files; ``different`` are those that do not match the published checksums."""
    if provenance is Provenance.UNCHECKED:
        return f"files in the layout of {title}, not checked"
    if provenance is Provenance.OFFICIAL:
        return f"{_OFFICIAL} files of {title}"
    return f"{_OTHER} files of {title}: {', '.join(different)} not of the published checksum"


def describe_made(constants: str, seed: int) -> str:
    """The words for corrupted images that lmr computes."""
    return f"{_MADE} with the {constants} constants, seed {seed}"
