"""What is kept of a finished stream: the scores and the answers of every candidate. The choice is made from it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lmr.bench.tune.rule import recommend
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically


@dataclass(frozen=True)
class CandidateResult:
    """A candidate: its scores by criterion, and the label it gave to every image."""

    spec: str
    scores: dict[str, float]
    labels: list[int]


@dataclass(frozen=True)
class TuneResult:
    """A stream: its candidates, the default first, and the places of the images that could be read."""

    source: str
    candidates: list[CandidateResult]
    places: list[int]
    unreadable: int
    classes: int

    @cached_property
    def scores(self) -> list[dict[str, float]]:
        """The scores of every candidate, by criterion."""
        return [candidate.scores for candidate in self.candidates]

    @cached_property
    def recommended(self) -> int:
        """The number of the candidate that the rule recommends."""
        return recommend(self.scores, self.classes)


def write_result(path: Path, result: TuneResult) -> None:
    """Write a result atomically; JSON has no NaN, so that a score which is not a number is null."""
    write_atomically(path, json.dumps(hide_nan(asdict(result)), allow_nan=False).encode())


def read_result(path: Path) -> TuneResult:
    """Read what ``write_result`` wrote."""
    try:
        content = json.loads(path.read_text("utf-8"))
        candidates = [
            CandidateResult(
                one["spec"],
                {name: math.nan if value is None else float(value) for name, value in one["scores"].items()},
                one["labels"],
            )
            for one in content["candidates"]
        ]
        numbers = (content[key] for key in ("places", "unreadable", "classes"))
        return TuneResult(content["source"], candidates, *numbers)
    except (ValueError, KeyError, TypeError) as error:
        raise LmrError(f"{str(path)!r} is damaged ({error}); remove it to measure that stream again.") from error


def hide_nan(value: Any) -> Any:
    """The same value with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: hide_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hide_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
