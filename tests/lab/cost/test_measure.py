"""``python -m lab.cost``: the table has what was measured, every image passes a gate, and errors are sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmr
from lab.cost import against
from lab.cost.__main__ import main
from lab.cost.measure import FORWARD, CostRequest, measure_cost
from lab.cost.model import MeasuredModel, ModelSource, find_measured_model

SMALL = ModelSource(random="small")


@pytest.fixture(scope="module")
def model() -> MeasuredModel:
    return find_measured_model(SMALL)


def test_every_image_passes_the_gate_of_lmr_in_several_classes(model: MeasuredModel) -> None:
    for count in (1, 3, 10):
        images, clip = model.draw_images(count), model.make_classifier(count, 20)
        answer = lmr.create("lmr", clip).step(images)
        assert answer.info["gate_share"] == 1
        assert answer.info["stepped"]
        assert len(lmr.create("zeroshot", clip).step(images).labels.unique()) == min(count, 4)


def test_table_has_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--random", "small", "--batch-size", "4", "--classes", "20", "--streams", "2", "--rounds", "1"]
    assert main([*words, "--methods", "lmr", "rotta(memory=4, every=8)", "--no-memory"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("entry"))
    rows = {line.split("  ")[0]: line.split() for line in lines[start + 2 : start + 8]}
    names = [FORWARD, "lmr", "rotta(memory=4, every=8)", "transformers forward", "plain lmr", "plain tent"]
    assert list(rows) == names
    assert rows["forward"][-1] == "1.00"
    assert rows["lmr"][-2] == f"{2 * 1024:,}"  # the norms of both streams


@pytest.mark.slow
def test_memory_is_measured_in_fresh_processes() -> None:
    request = CostRequest(SMALL, ("zeroshot",), 4, classes=20, rounds=1, threads=1, plain=False)
    table = measure_cost(request)
    assert " - " not in table
    assert "zeroshot" in table


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "Give either a model or the architecture"),
        (["photo", "--random", "small"], "Give either a model or the architecture"),
        (["--random", "ViT-B-17"], "Expected one of small"),
        (["--random", "small", "--rounds", "0"], "'rounds' of at least 1"),
        (["--random", "small", "--methods", "lmr", "lmr"], "Name every method once"),
        (["--random", "small", "--classes", "11"], "at least 12 classes"),
    ],
    ids=str,
)
def test_wrong_options_get_a_sentence(given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_two_checkouts_take_turns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "SPECS", ("lmr(tau=0.0) x 2",))
    here = str(Path(__file__).parents[3])
    words = ["photo", "--batch-size", "2", "--rounds", "1", "--threads", "1", "--cpu-time"]
    assert main([*words, "--against", here]) == 0
    (row,) = capsys.readouterr().out.splitlines()[2:]
    assert row.startswith("lmr(tau=0.0) x 2")
    assert len(row.split()) == 3 + 6
