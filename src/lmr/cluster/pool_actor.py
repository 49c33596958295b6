"""PoolActor: base of the workers of a pool on Ray, each on a node with a folder of its own, and a way to stop it."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from lmr.cluster.nodes import describe_mismatch, list_versions
from lmr.cluster.own_folder import OwnFolder
from lmr.core.errors import LmrError


class PoolActor:
    """Lives on one node. Its methods may be called while it is at work, from other threads."""

    def __init__(self, threads: int, versions: Mapping[str, str]) -> None:
        import torch

        torch.set_num_threads(threads)
        self._own = OwnFolder()
        self.folder = self._own.path
        self.mismatch = describe_mismatch(list_versions(), versions)
        self.stopping = False

    def get_place(self) -> tuple[str, str]:
        """Return Ray's id of the node of this worker, and a name for it."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return node, f"{socket.gethostname()}/{node[:4]}"

    def stop(self) -> None:
        """Let the present run end at its next batch, with what it has finished."""
        self.stopping = True

    def close(self) -> None:
        """Remove the folder of this worker."""
        self._own.remove()

    def check_versions(self) -> None:
        """Refuse to work with other versions than the driver's machine has."""
        if self.mismatch:
            raise UnfitNode(f"It has {self.mismatch}.")


class UnfitNode(LmrError):
    """The node cannot do its work as the driver's machine would; another node may."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error, or its cause, is a lack of memory; torch says so in its message only."""
    import torch

    found: BaseException | None = error
    while found is not None:
        if isinstance(found, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(found):
            return True
        found = found.__cause__
    return False
