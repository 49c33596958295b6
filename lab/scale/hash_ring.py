"""HashRing: consistent hashing of streams over replicas, as Ray Serve's router does it.

Each replica has several places on a ring; a stream belongs to the next place after its own. A new replica takes streams
from all others and moves no stream between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WHOLE = 2.0**64


class HashRing:
    """Replicas 0 to ``replicas`` - 1 on a ring."""

    def __init__(self, replicas: int, virtual_nodes: int) -> None:
        self.replicas = replicas
        names = [f"replica-{one}:{place}" for one in range(replicas) for place in range(virtual_nodes)]
        places = hash_names(names)
        order = np.argsort(places, kind="stable")
        self._places = places[order]
        self._owners = order // virtual_nodes

    def assign(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the replica of each stream, by the hash of its name."""
        found = np.searchsorted(self._places, hashes, side="right") % len(self._places)
        return self._owners[found]

    @property
    def shares(self) -> NDArray[np.float64]:
        """Return the expected share of the streams of each replica: its part of the ring."""
        arcs = np.diff(self._places, prepend=self._places[-1])  # of unsigned numbers, so that the first wraps around
        parts = np.ones(1) if len(arcs) == 1 else arcs / _WHOLE
        return np.bincount(self._owners, weights=parts, minlength=self.replicas).astype(np.float64)

    @property
    def imbalance(self) -> float:
        """Return the share of the replica with the most streams, divided by the average."""
        return float(self.shares.max() * self.replicas)


def hash_names(names: Sequence[str]) -> NDArray[np.uint64]:
    """Return a number of 64 bits for each name, the same in every process."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
