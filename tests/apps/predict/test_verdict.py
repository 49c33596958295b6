"""The line at the end of a run: it differs by what the images look like and by what adapting changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary, RunTally
from lmr.apps.predict.verdict import describe_run
from lmr.core.functional.look import RANGES

ORDINARY = [(low + high) / 2 for low, high in RANGES[32]]
NOISY = [*ORDINARY[:2], 1.0, *ORDINARY[3:]]
OPTIONS = PredictOptions(labels="cat,dog,ship,truck")


def summarise(look: list[float], *, answers: Counter[str | None] | None = None, **facts: object) -> PredictSummary:
    counted = answers or Counter[str | None]({"cat": 50, "dog": 50})
    tally = RunTally(images=100, rests=True, sureness=90.0, looks=[look] * 40, side=32, classes=4)
    return PredictSummary(counted, replace(tally, **facts), 1.0, "o.jsonl", None)


def test_each_case_has_its_own_words(tmp_path: Path) -> None:
    asleep, awake = {"adapted": 0}, {"adapted": 100, "compared": 12, "differing": 3, "first_adapted": 41}
    dogs = Counter[str | None]({"cat": 20, "dog": 80})
    cases = {
        "clean": summarise(ORDINARY, **asleep),
        "bad": summarise(NOISY, **asleep),
        "adapted": summarise(NOISY, **awake),
        "twice": replace(summarise(NOISY, **awake), passes=2),
        "dogs": summarise(ORDINARY, answers=dogs, **asleep),
        "taught": replace(summarise(NOISY, **asleep), taught="20 labels."),
    }
    said = {name: describe_run(summary, OPTIONS, [tmp_path]) for name, summary in cases.items()}
    assert len(set(said.values())) == len(cases)
    assert all("\n" not in line and "gamma" not in line and "pace" not in line for line in said.values())
    assert "ordinary" in said["clean"]
    assert "equally frequent" not in said["clean"]
    assert "noisy" in said["bad"]
    assert "--prior uniform" in said["bad"]
    assert "25 %" in said["adapted"]
    assert "image 41" in said["adapted"]
    assert "two passes" in said["twice"]
    assert "80 % of the answers are 'dog'" in said["dogs"]
    assert "do not use --prior uniform" in said["dogs"]
    assert said["taught"].endswith("20 labels.")
    command = f"lmr label {tmp_path} --labels cat,dog,ship,truck"
    assert all(line.endswith(command) for name, line in said.items() if name != "taught")
    assert "lmr label" not in describe_run(cases["bad"], OPTIONS, [tmp_path / "a.png"])


@pytest.mark.parametrize(
    ("facts", "noun"),
    [
        ({"answers": Counter({None: 100}), "failed": 100}, "0 of 100"),
        ({"answers": Counter({None: 4, "cat": 96}), "failed": 4}, "4 could not be read"),
        ({"answers": Counter({"unknown": 7, "cat": 93})}, "7 unknown"),
        ({"images": 60}, "40 of them earlier"),
        ({"looks": []}, "confidence"),
    ],
)
def test_what_could_not_be_labelled_is_counted(facts: dict[str, object], noun: str) -> None:
    assert noun in describe_run(summarise(ORDINARY, **facts), OPTIONS, ["a.mp4"])


def test_equal_shares_are_questioned_where_they_were_given() -> None:
    dogs = summarise(NOISY, answers=Counter({"dog": 100}), adapted=100, compared=12)
    assert "leave out --prior uniform" in describe_run(dogs, replace(OPTIONS, prior="uniform"), ["a"])
    few = replace(dogs, answers=Counter[str | None]({"dog": 3}))
    assert "plausible" not in describe_run(few, OPTIONS, ["a"])
