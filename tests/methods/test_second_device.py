"""Every method on a second device: the answers of the CPU, no tensor left behind, and how often it is waited for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch

import lmr
from few_views import create
from pocket import CLASSES
from second_device import DEVICE, count_waits, move_backbone
from tiny_models import draw_batches, load_tiny

PAGE = Path(__file__).parents[2] / "docs" / "platforms.md"
ROWS = {  # the waits of some methods
    name: (int(few), int(many))
    for name, few, many in re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
}
NAMES = CLASSES[::7]  # 15 classes
METHODS = lmr.list_methods()
MANY = [name for name in METHODS if not lmr.find_method(name).single_stream_reason]
# Which prompts, nodes or operations an image needs is known only from its values, or it is learnt from at an own step.
GROWING = ["ctpt", "dynaprompt", "ecalp", "memo", "mta", "otpt", "rotta", "rtpt", "tpt", "zero"]
FEW = {"zeroshot": 3, "lmr": 5, "tda": 5, "steady": 6}  # the most waits


@cache
def load_classifier(device: torch.device) -> lmr.ZeroShot:
    backbone = load_tiny().to(torch.float64)
    return (move_backbone(backbone) if device == DEVICE else backbone).classifier(NAMES)


def make_method(name: str, device: torch.device, streams: int = 1) -> lmr.Method:
    return create(name, load_classifier(device), streams=streams)


def count_waits_of(name: str, images: int) -> int:
    """The waits of the second step of a stream."""
    method = make_method(name, DEVICE)
    first, second = (batch.double().to(DEVICE) for batch in draw_batches((images, images)))
    method.step(first)
    with count_waits() as counts:
        method.step(second)
    return counts.total()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("streams", [1, 2])
def test_answers_are_those_of_the_cpu(name: str, streams: int) -> None:
    if streams > 1 and name not in MANY:
        pytest.skip("It serves one stream.")
    here, there = make_method(name, torch.device("cpu"), streams), make_method(name, DEVICE, streams)
    for batch in draw_batches((8, 5)):
        ids = None if streams == 1 else [k % 3 % 2 for k in range(len(batch))]
        expected, found = here.step(batch.double(), ids), there.step(batch.double().to(DEVICE), ids)
        assert found.logits.device == DEVICE
        torch.testing.assert_close(found.logits.cpu(), expected.logits, rtol=0, atol=1e-6)
        assert found.info.keys() == expected.info.keys()
    assert {value.device for value in there.state.values()} == {DEVICE}
    assert there.predict(batch.double().to(DEVICE), ids).logits.device == DEVICE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in GROWING else ()) for name in METHODS]
)
def test_waits_do_not_grow_with_the_batch(name: str) -> None:
    few, many = count_waits_of(name, 8), count_waits_of(name, 32)
    assert (many > few) == (name in GROWING), (few, many)
    assert ROWS.get(name, (few, many)) == (few, many)
    assert many <= FEW.get(name, many)


def test_page_has_rows() -> None:
    assert set(FEW) <= set(ROWS)
