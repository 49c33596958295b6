"""The rule that recommends a candidate from the label-free scores; it is decided here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

RULE = "placeholder"


def recommend(scores: Sequence[Mapping[str, float]], default: int = 0) -> int:
    """The number of the recommended candidate; ``scores`` are those of every candidate, by criterion."""
    return choose_best([score["information"] for score in scores], default)


def choose_best(values: Sequence[float], default: int = 0) -> int:
    """The number of the largest value; of equal ones the default, then the first. Values that are NaN never win."""
    sound = [place for place, value in enumerate(values) if not math.isnan(value)]
    return max(sound, key=lambda place: (values[place], place == default, -place), default=default)
