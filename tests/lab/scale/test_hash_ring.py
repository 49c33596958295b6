"""Consistent hashing: a new replica takes its share from all others, and nothing else moves."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lab.scale.hash_ring import HashRing, hash_names

NAMES = [f"camera-{number}" for number in range(20_000)]


@pytest.mark.parametrize("replicas", [1, 2, 7, 40])
def test_one_more_replica_takes_its_share(replicas: int) -> None:
    hashes = hash_names(NAMES)
    before = HashRing(replicas, 100).assign(hashes)
    ring = HashRing(replicas + 1, 100)
    after = ring.assign(hashes)
    moved = before != after
    assert set(after[moved]) == {replicas}  # only to the new one
    assert moved.mean() == pytest.approx(1 / (replicas + 1), rel=0.35)
    assert moved.mean() == pytest.approx(ring.shares[replicas], rel=0.1)


def test_shares_are_those_of_the_streams() -> None:
    ring = HashRing(5, 50)
    assert ring.shares.sum() == pytest.approx(1)
    counted = np.bincount(ring.assign(hash_names(NAMES)), minlength=5) / len(NAMES)
    np.testing.assert_allclose(counted, ring.shares, atol=0.015)
    assert ring.imbalance == pytest.approx(5 * ring.shares.max())
    assert HashRing(1, 1).shares.tolist() == [1.0]


def test_more_places_make_replicas_more_equal() -> None:
    assert HashRing(50, 1000).imbalance < HashRing(50, 10).imbalance


def test_hashes_are_the_same_everywhere() -> None:
    assert hash_names(["camera-0"]).tolist() == [int.from_bytes(hashlib.blake2b(
        b"camera-0", digest_size=8).digest(), "little")]  # fmt: skip
