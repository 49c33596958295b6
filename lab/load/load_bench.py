"""LoadBench: what every experiment is given: a folder, the size of the experiment, and a place to report to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.load.child_service import ChildService
from lab.load.load_models import LoadModel
from lmr.service.client.client import Client


@dataclass(frozen=True)
class LoadBench:
    """``short`` experiments take seconds and show that everything works; the figures come from the long ones."""

    folder: Path
    short: bool = False
    seed: int = 0
    kills: int = 200
    say: Callable[[str], object] = lambda words: None

    def choose(self, long: float, short: float) -> float:
        """A size of the experiment."""
        return short if self.short else long

    def count(self, long: int, short: int) -> int:
        """A number of something."""
        return short if self.short else long

    def make_state_dir(self, name: str) -> Path:
        """A new folder for the store of a service."""
        path = self.folder / f"state-{name}"
        number = 0
        while path.exists():
            number += 1
            path = self.folder / f"state-{name}-{number}"
        path.mkdir(parents=True)
        return path

    def make_service(
        self, model: LoadModel, name: str, options: Sequence[str] = (), wrap: Sequence[str] = ()
    ) -> ChildService:
        """A service of this model with a new store; not started yet."""
        state = ["--state-dir", str(self.make_state_dir(name))]
        return ChildService([*model.options, *state, *options], self.folder, wrap)


def read_spec(service: ChildService) -> tuple[str, bool]:
    """The spec of the method that a service serves, and whether it is watched."""
    with Client(service.url) as client:
        card = client.model()
    return str(card["spec"]), card.get("watch", "off") != "off"
