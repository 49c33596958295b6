"""LoadBench: the setting of an experiment; LoadResult: its finding, with an aim and a verdict."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lab.load.child_service import ChildService
from lab.load.inputs import LoadModel

STORE_FILE = "streams.sqlite"
Verdict = Literal["met", "missed", "not measured"]


@dataclass(frozen=True)
class LoadBench:
    """The folder and the size of an experiment. ``short`` ones take seconds; the figures come from the long ones."""

    folder: Path
    short: bool = False
    seed: int = 0
    kills: int = 200
    report: Callable[[str], object] = lambda message: None

    def choose(self, long: float, short: float) -> float:
        """Return the size of something in this experiment."""
        return short if self.short else long

    def count(self, long: int, short: int) -> int:
        """Return the number of something in this experiment."""
        return short if self.short else long

    def make_state_dir(self, name: str) -> Path:
        """Create a new folder for the store of a service."""
        path = self.folder / f"state-{name}"
        number = 0
        while path.exists():
            number += 1
            path = self.folder / f"state-{name}-{number}"
        path.mkdir(parents=True)
        return path

    def make_service(self, model: LoadModel, name: str) -> ChildService:
        """Return a service of this model with a new store, not started yet."""
        state = ["--store", f"sqlite:{self.make_state_dir(name) / STORE_FILE}"]
        return ChildService([*model.options, *state], self.folder)


@dataclass(frozen=True)
class LoadResult:
    """One row of the table; ``figures`` holds all measurements."""

    experiment: str
    setting: str
    aim: str
    found: str
    verdict: Verdict
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps(dataclasses.asdict(self))


def judge(*claims: bool) -> Verdict:
    """Return "met" if all claims hold."""
    return "met" if all(claims) else "missed"


def format_load_table(results: Sequence[LoadResult]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| experiment | setting | aim | found | verdict |", "|---|---|---|---|---|"]
    lines += [f"| {one.experiment} | {one.setting} | {one.aim} | {one.found} | {one.verdict} |" for one in results]
    return "\n".join(lines)
