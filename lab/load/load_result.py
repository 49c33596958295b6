"""What an experiment found, with its aim and a verdict; and the table of all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["met", "missed", "not measured"]


@dataclass(frozen=True)
class LoadResult:
    """One row: what was tried, what it should show, what it showed. ``figures`` holds all that was measured."""

    experiment: str
    setting: str
    aim: str
    found: str
    verdict: Verdict
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """A line of JSON."""
        return json.dumps(dataclasses.asdict(self))


def judge(*claims: bool) -> Verdict:
    """Whether everything holds that had to."""
    return "met" if all(claims) else "missed"


def format_load_table(results: Sequence[LoadResult]) -> str:
    """The results as a Markdown table."""
    lines = ["| experiment | setting | aim | found | verdict |", "|---|---|---|---|---|"]
    lines += [f"| {one.experiment} | {one.setting} | {one.aim} | {one.found} | {one.verdict} |" for one in results]
    return "\n".join(lines)
