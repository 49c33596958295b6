"""Five batches of every method on the pocket model, compared with numbers that were written down.

A change that moves an answer shows here even if every reference moves with it. The stream runs in float64, so that the
numbers hold on other machines. ``pytest tests/test_golden.py --regenerate-golden`` writes them anew; look at the
difference before committing it.
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmr
from few_views import create
from lmr.core.spec import list_arguments
from lmr.data.dataset import CorruptedOnTheFly
from lmr.data.streams import make_stream
from pocket import CLASSES, PocketWorld, load_pocket

GOLDEN = Path(__file__).with_name("golden.json")
# Where five batches at the defaults would be those of another method: none is certain, one prompt is used, and so on.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "lmr_variants": {"share": 0.5, "pace": "image"},
    "sar": {"recovery": 0.0, "lr": 0.1, "margin": 0.9},
    "cmf": {"q": 2.0, "gamma": 0.5, "lr": 5e-3},
    "deyo": {"patches": 8, "lr": 0.02},
    "eata": {"diversity": 2.0, "lr": 2e-3},
    "onzeta": {"cw": 0.05, "cr": 2.0, "length": 60},
    "dynaprompt": {"prompts": 4, "lr": 0.05},
    "tps": {"keep": 0.7},
    "otpt": {"orthogonality": 0.1},
    "memo": {"views": 3},
    "panda": {"method": "tent(lr=2e-3)", "patch": 8, "share": 4, "again": True},
    "subtta": {"rank": 6, "drop_first": True},
}


@cache
def make_classifier() -> lmr.ZeroShot:
    backbone = load_pocket()
    backbone.encoder.double()
    backbone._text.double()  # type: ignore[attr-defined]
    return backbone.classifier(CLASSES[:20])


@cache
def draw_batches() -> list[torch.Tensor]:
    backbone = load_pocket()
    world = CorruptedOnTheFly("pocket-c", PocketWorld(seed=11, count=5 * 12), "cifar", seed=11)
    stream = make_stream(world, "gaussian_noise", severity=3, order="file", batch_size=12)
    pictures = [torch.from_numpy(np.stack(batch.images)) for batch in stream]
    return [backbone.preprocess(part).double() for part in pictures]  # type: ignore[attr-defined]


@cache
def draw_clean() -> list[torch.Tensor]:
    backbone = load_pocket()
    world = PocketWorld(seed=12, count=2 * 12)
    pictures = [np.stack(world.read("clean", 0, range(first, first + 12))) for first in (0, 12)]
    return [backbone.preprocess(torch.from_numpy(part)).double() for part in pictures]  # type: ignore[attr-defined]


def answer_stream(name: str, arguments: dict[str, Any]) -> list[list[list[float]]]:
    """The probabilities of three classes for the first three images of every batch."""
    method = create(name, make_classifier(), preset="default", **arguments)
    if method.card.source_images:
        method.fit_source(draw_clean())
    return [
        [[round(p, 8) for p in row] for row in method.step(images).probabilities[:3, ::7].tolist()]
        for images in draw_batches()
    ]


@pytest.mark.parametrize("name", lmr.list_methods())
def test_answers_are_those_written_down(name: str, request: pytest.FixtureRequest) -> None:
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    found = answer_stream(name, ARGUMENTS.get(name, {}))
    if request.config.getoption("--regenerate-golden"):
        golden[name] = found
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    if name not in golden:
        pytest.fail(f"{name} has no golden numbers yet; write them with --regenerate-golden and look at them.")
    torch.testing.assert_close(torch.tensor(found), torch.tensor(golden[name]), atol=1e-5, rtol=0)


def test_every_method_has_numbers_of_its_own() -> None:
    """Numbers that two methods share guard neither what one of them adds to the other, nor that it does anything."""
    golden = {name: torch.tensor(numbers) for name, numbers in json.loads(GOLDEN.read_text()).items()}
    pairs = itertools.combinations(golden, 2)
    assert [(one, two) for one, two in pairs if (golden[one] - golden[two]).abs().max() < 1e-4] == []
    assert list(golden) == lmr.list_methods()


@pytest.mark.parametrize(
    ("name", "base"), [("sar", "zeroshot"), ("eata", "eta"), ("dynaprompt", "tpt"), ("otpt", "tpt")]
)
def test_numbers_are_not_those_of_the_method_that_it_extends(name: str, base: str) -> None:
    """With the same arguments, as far as that one has them."""
    shared = {key: value for key, value in ARGUMENTS[name].items() if key in list_arguments(lmr.find_method(base))}
    golden = torch.tensor(json.loads(GOLDEN.read_text())[name])
    assert (torch.tensor(answer_stream(base, shared)) - golden).abs().max() > 1e-4
