"""Runs of `lmr predict` for its tests: pictures to label, ways to start a run and to end it, what it leaves."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmr
from lmr.apps.predict import run as run_file
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary
from lmr.cli import main
from lmr.core.state import read_state
from lmr.data.dataset import CLEAN
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from nursery import Program

LABELS = ["apple", "aquarium fish", *read_list("cifar10")]
TEXT = ",".join(LABELS)
# Runs adapt from their first image on, so that each one depends on its state, and in one pass. An option that is given
# again later replaces these.
USUAL = ("--model", "photo", "--method", "lmr", "--passes", "1")
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals, limits or locks")


class Crash(BaseException):
    """A death that nobody expects, in the middle of a call."""


def predict_images(sources: Any, labels: Any, **options: Any) -> PredictSummary:
    """The function of the package, on photographs and with LMR unless something else is named."""
    usual = {"model": "photo", "method": "lmr", "passes": 1}
    return run_file.predict_images(sources, PredictOptions(labels=labels, **usual | options))


def draw_arrays(numbers: range) -> Any:
    return Photographs().read(CLEAN, 0, numbers)


def draw_pictures(folder: Path, numbers: range) -> Path:
    folder.mkdir(exist_ok=True)
    for number, pixels in zip(numbers, draw_arrays(numbers), strict=True):
        Image.fromarray(pixels).save(folder / f"img{number}.png")
    return folder


def turn_grey(folder: Path) -> None:
    """Take most of the contrast of all images."""
    for path in folder.iterdir():
        Image.fromarray((100 + 0.15 * np.asarray(Image.open(path))).astype(np.uint8)).save(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_paths(path: Path) -> list[str]:
    return [line["path"] for line in read_lines(path)]


def same_state(one: Path, other: Path, notes: bool = True) -> bool:
    """Whether two state files hold the same bytes of every tensor and the same facts."""
    tensors, facts = read_state(one)
    others, other_facts = read_state(other)
    if tensors.keys() != others.keys() or not all(torch.equal(tensors[key], others[key]) for key in tensors):
        return False
    return not notes or facts == other_facts


def photograph(folder: Path) -> dict[str, bytes]:
    """Every file of the folder with its bytes."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run_here(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The program in this process, with LMR unless another method is named: exit code, standard output and error."""
    capsys.readouterr()
    code = main(["predict", *USUAL, *words])
    said = capsys.readouterr()
    return code, said.out, said.err


# The command; step number ``hold`` waits until standard input is closed, so that it is met in the middle of its run.
COMMAND = """
import sys
import lmr
from lmr.cli import main

hold, step, calls = int(sys.argv.pop(1)), lmr.Method.step, []

def step_when_free(self, *given, **options):
    calls.append(1)
    if len(calls) == hold:
        sys.stdin.read()
    return step(self, *given, **options)

lmr.Method.step = step_when_free
sys.exit(main())
"""


def start(*words: str, hold: int = 0, stdout: int | None = None) -> Program:
    """The program in a process of its own, held at this step."""
    return Program(COMMAND, str(hold), *words, stdout=stdout)


@contextmanager
def crash_at(owner: Any, name: str, number: int, when: str, error: type[BaseException] = Crash) -> Iterator[list[int]]:
    """Make the ``number``-th call of a function die before or after doing its work."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def die(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == number and when == "before":
            raise error
        answer = real(*args, **options)
        if calls[0] == number:
            raise error
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, die)
        yield calls


def wait_for_growth(process: Program, out: Path, size: int) -> None:
    end = time.monotonic() + 300
    while not out.exists() or out.stat().st_size <= size:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)


def prepare(here: Path) -> list[str]:
    """An interrupted run and what surrounds it; the words that would resume it."""
    draw_pictures(here / "a", range(6))
    words = ["a", "--labels", TEXT, "--batch-size", "2", "--out", "o.jsonl"]
    with crash_at(lmr.Method, "step", 3, "before"), pytest.raises(Crash):
        main(["predict", *USUAL, *words])
    return words


def refuse(capsys: pytest.CaptureFixture[str], here: Path, sentence: str, *words: str) -> None:
    """The words must end with code 2, one sentence, and every file as it was."""
    before = photograph(here)
    code, out, err = run_here(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("lmr: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert photograph(here) == before
