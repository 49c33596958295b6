"""The rule that recommends a candidate from the label-free scores; it is decided here and nowhere else.

Among the criteria, diversity is the one that ranks candidates well on drawings and on photographs; mutual information,
which rewards certainty too, does so on drawings alone. docs/tune.md has the numbers. Two guards limit the harm where
it errs. A candidate that contradicts the frozen model on most of the images that it is surest of has left the task. And
a gain too small to mean anything does not replace the default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

CRITERION = "diversity"
LEAST_AGREEMENT = 0.5  # with the frozen model, on the images it is most confident of
LEAST_GAIN = 0.01  # of the criterion over the default, in parts of its largest possible value

RULE = (
    "the largest diversity of the answers among the candidates that agree with the frozen model on at least half of "
    "the images it is most confident of; the default, unless that gains at least 1 % of ln(classes)"
)


def recommend(scores: Sequence[Mapping[str, float]], classes: int, default: int = 0) -> int:
    """The number of the recommended candidate; ``scores`` are those of every candidate, by criterion."""
    values = [
        score[CRITERION] if score["agreement"] >= LEAST_AGREEMENT or place == default else math.nan
        for place, score in enumerate(scores)
    ]
    best = choose_best(values, default)
    gain = values[best] - values[default]
    return default if gain < LEAST_GAIN * math.log(classes) else best  # a default without a score is replaced


def choose_best(values: Sequence[float], default: int = 0) -> int:
    """The number of the largest value; of equal ones the default, then the first. Values that are NaN never win."""
    sound = [place for place, value in enumerate(values) if not math.isnan(value)]
    return max(sound, key=lambda place: (values[place], place == default, -place), default=default)
