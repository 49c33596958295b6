"""The line at the end of a run: it differs by what the images look like and by what adapting changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary, RunTally
from lmr.apps.predict.verdict import describe_run
from lmr.core.functional.look import EMPTY, WORDS

ORDINARY = [0] * 96
NOISY, BLURRED = ([1 << WORDS.index(word)] * 96 for word in ("noisy", "blurred"))
OPTIONS = PredictOptions(labels="cat,dog,ship,truck")


def summarise(bits: list[int], *, answers: Counter[str | None] | None = None, **facts: object) -> PredictSummary:
    counted = answers or Counter[str | None]({"cat": 50, "dog": 50})
    tally = RunTally(images=100, rests=True, sureness=90.0, looks=bits, classes=4)
    return PredictSummary(counted, replace(tally, **facts), 1.0, "o.jsonl", None)


def test_each_case_has_its_own_words(tmp_path: Path) -> None:
    asleep, awake = {"adapted": 0}, {"adapted": 100, "compared": 12, "differing": 3, "first_adapted": 41}
    dogs = Counter[str | None]({"cat": 20, "dog": 80})
    cases = {
        "clean": summarise(ORDINARY, **asleep),
        "bad": summarise(NOISY, **asleep),
        "adapted": summarise(NOISY, **awake),
        "twice": replace(summarise(NOISY, **awake), passes=2),
        "same": summarise(ORDINARY, **awake | {"differing": 0}),
        "half": summarise(ORDINARY + NOISY, **asleep),
        "parts": summarise(NOISY + BLURRED + ORDINARY, **asleep),
        "mixed": summarise([bits for three in zip(NOISY, BLURRED, ORDINARY, strict=True) for bits in three], **asleep),
        "unsure": summarise(ORDINARY, **asleep, sureness=50.0),
        "black": summarise([EMPTY] * 96, **asleep),
        "covered": summarise([EMPTY] * 48 + NOISY, answers=dogs, **asleep),
        "dogs": summarise(ORDINARY, answers=dogs, **asleep),
        "taught": replace(summarise(NOISY, **asleep), taught="20 labels."),
    }
    said = {name: describe_run(summary, OPTIONS, [tmp_path]) for name, summary in cases.items()}
    assert len(set(said.values())) == len(cases)
    assert all("gamma" not in line and "pace" not in line for line in said.values())
    assert "ordinary" in said["clean"]
    assert "equally frequent" not in said["clean"]
    assert "noisy" in said["bad"]
    assert "--prior uniform" in said["bad"]
    assert "25 %" in said["adapted"]
    assert "image 41" in said["adapted"]
    assert "none of the answers (0 of a sample of 12)" in said["same"]
    assert "helped" not in said["same"]
    assert "look noisy from about image 97 on (" in said["half"]
    assert "look noisy up to about image 96 and blurred from about image 97 to 192 (" in said["parts"]
    assert "look in part noisy (33 %) and in part blurred (33 %) (" in said["mixed"]
    assert "low" in said["unsure"]
    assert "There is no picture in 48 of 144: they are of one colour. The others look noisy (" in said["covered"]
    assert all("--prior" not in said[name] for name in ("black", "covered"))
    assert said["black"] == "100 images labelled in o.jsonl. There is no picture in 96 of 96: they are of one colour."
    assert "two passes" in said["twice"]
    assert "80 % of the answers are 'dog'" in said["dogs"]
    assert "do not use --prior uniform" in said["dogs"]
    assert said["taught"].endswith("20 labels.")
    command = f"\n  lmr label {tmp_path} --labels cat,dog,ship,truck"
    assert all(line.endswith(command) for name, line in said.items() if name not in ("taught", "black"))
    assert "lmr label" not in describe_run(cases["bad"], OPTIONS, [tmp_path / "a.png"])


@pytest.mark.parametrize(
    ("facts", "noun"),
    [
        ({"answers": Counter({None: 100}), "failed": 100}, "0 of 100"),
        ({"answers": Counter({None: 4, "cat": 96}), "failed": 4}, "4 could not be read"),
        ({"answers": Counter({"unknown": 7, "cat": 93})}, "7 unknown"),
        ({"images": 60}, "40 of them earlier"),
        ({"looks": []}, "confidence 90 %; nothing was adapted."),
    ],
)
def test_what_could_not_be_labelled_is_counted(facts: dict[str, object], noun: str) -> None:
    assert noun in describe_run(summarise(ORDINARY, **facts), OPTIONS, ["a.mp4"])


def test_equal_shares_are_questioned_where_they_were_given() -> None:
    dogs = summarise(NOISY, answers=Counter({"dog": 100}), adapted=100, compared=12)
    assert "leave out --prior uniform" in describe_run(dogs, replace(OPTIONS, prior="uniform"), ["a"])
    few = replace(dogs, answers=Counter[str | None]({"dog": 3}))
    assert "plausible" not in describe_run(few, OPTIONS, ["a"])
