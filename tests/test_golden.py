"""Five batches of every method on the pocket model, compared with numbers that were written down.

A change that moves an answer shows here even if every reference moves with it. The stream runs in float64, so that the
numbers hold on other machines. ``pytest tests/test_golden.py --regenerate-golden`` writes them anew; look at the
difference before committing it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from few_views import create

import lmr
from lmr.data.sets.catalogue import CorruptedOnTheFly, PocketWorld
from lmr.data.sets.pocket_world import CLASSES
from lmr.data.streams import make_stream

GOLDEN = Path(__file__).with_name("golden.json")


@cache
def make_classifier() -> lmr.ZeroShot:
    backbone = lmr.load("pocket")
    backbone.encoder.double()
    backbone._text.double()  # type: ignore[attr-defined]
    return backbone.classifier(CLASSES[:20])


@cache
def draw_batches() -> list[torch.Tensor]:
    backbone = lmr.load("pocket")
    world = CorruptedOnTheFly("pocket-c", PocketWorld(seed=11, count=5 * 12), "cifar", seed=11)
    stream = make_stream(world, "gaussian_noise", severity=3, order="file", batch_size=12)
    pictures = [torch.from_numpy(np.stack(batch.images)) for batch in stream]
    return [backbone.preprocess_pixels(part).double() for part in pictures]  # type: ignore[attr-defined]


def answer_stream(name: str) -> list[list[list[float]]]:
    """The probabilities of three classes for the first three images of every batch."""
    method = create(name, make_classifier())
    return [
        [[round(p, 8) for p in row] for row in method.step(images).probabilities[:3, ::7].tolist()]
        for images in draw_batches()
    ]


@pytest.mark.parametrize("name", lmr.list_methods())
def test_answers_are_those_written_down(name: str, request: pytest.FixtureRequest) -> None:
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if request.config.getoption("--regenerate-golden"):
        golden[name] = answer_stream(name)
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    if name not in golden:
        pytest.fail(f"{name} has no golden numbers yet; write them with --regenerate-golden and look at them.")
    torch.testing.assert_close(torch.tensor(answer_stream(name)), torch.tensor(golden[name]), atol=1e-5, rtol=0)
