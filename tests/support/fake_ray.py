"""As much of Ray as a pool uses, in one thread: nodes with cores, actors on them, and jobs that end at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

Work = Callable[[str, str], Any]  # node and run -> result, or an exception that the worker dies of


@dataclass(eq=False)
class FakeFuture:
    """Something that is there already, or an exception."""

    value: Any = None
    ready: bool = True


class FakeMethod:
    """A method of an actor."""

    def __init__(self, call: Callable[..., FakeFuture]) -> None:
        self.remote = call


@dataclass(eq=False)
class FakeActor:
    """Has a node and does what the test says."""

    node: str
    work: Work
    strategy: Any
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> FakeMethod:
        return FakeMethod(lambda *given: self._call(name, *given))

    def _call(self, name: str, *given: Any) -> FakeFuture:
        self.calls.append(name)
        if name == "get_place":
            return FakeFuture((self.node, self.node[:1]))
        if name == "run":
            value = self.work(self.node, given[0])
            return FakeFuture(value, ready=value is not None)
        return FakeFuture()


class FakeRay:
    """A cluster. ``cores`` are those of nodes by their letters, ``taken`` those that other programs use."""

    def __init__(self, work: Work, **cores: int) -> None:
        ray = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
        self.exceptions, self.work = ray.exceptions, work
        self.cores = {letter * 56: count for letter, count in cores.items()}  # as long as Ray's ids
        self.taken: dict[str, int] = {}
        self.actors: list[FakeActor] = []
        self.killed: list[FakeActor] = []
        state = SimpleNamespace(available_resources_per_node=self._count_free)
        self._private = SimpleNamespace(state=state)

    def _count_free(self) -> dict[str, dict[str, float]]:
        used = [actor.node for actor in self.actors if actor not in self.killed]
        return {
            node: {"CPU": float(count - self.taken.get(node, 0) - used.count(node))}
            for node, count in self.cores.items()
        }

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": node, "Alive": True, "Resources": {"CPU": count}} for node, count in self.cores.items()]

    def remote(self, kind: Any) -> Any:
        def make(**options: Any) -> Any:
            def place(*given: Any) -> FakeActor:
                strategy = options["scheduling_strategy"]
                self.actors.append(FakeActor(strategy.node_id, self.work, strategy))
                return self.actors[-1]

            return SimpleNamespace(remote=place)

        return SimpleNamespace(options=make)

    def wait(
        self, futures: Sequence[FakeFuture], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[FakeFuture], list[FakeFuture]]:
        ready = [future for future in futures if future.ready]
        return ready[:num_returns], [future for future in futures if not future.ready]

    def get(self, future: FakeFuture, timeout: float = 0) -> Any:
        if isinstance(future.value, BaseException):
            raise future.value
        return future.value

    def kill(self, actor: FakeActor) -> None:
        self.killed.append(actor)

    def count_actors(self) -> dict[str, int]:
        """The actors that are alive, by the letters of their nodes."""
        alive = [actor.node[:1] for actor in self.actors if actor not in self.killed]
        return {letter: alive.count(letter) for letter in sorted(set(alive))}
