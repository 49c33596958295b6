"""LMR with counted class shares, against the references of LMR and steady beside the tests."""

from __future__ import annotations

from pathlib import Path

import torch

import lmr
import lmr_reference as book
from steady_problem import Phase, PictureTower, draw, encode_pictures, make_problem
from steady_reference import SteadyReference

FILE = Path(__file__).parents[2] / "lab" / "lmr_priors.py"
PHASES = (Phase(64, skew=0.5), Phase(72, noise=0.3, detail=1.2, light=0.7, skew=0.5))


def share(counts: list[float]) -> list[float]:
    return [(count + 8 / len(counts)) / (sum(counts) + 8) for count in counts]


def make() -> tuple[lmr.ZeroShot, torch.Tensor, dict[str, object]]:
    """A classifier, a stream that drifts, and the arguments of references."""
    tower, prototypes, anchors = make_problem()
    encode = book.write_out(tower)
    copied = PictureTower().double()
    copied.load_state_dict(tower.state_dict())
    given = {
        "encode": lambda images, norms: encode_pictures(lambda columns: encode(columns, norms), images),
        "norms": tower.norms,
        "prototypes": prototypes,
    }
    return lmr.ZeroShot(copied, prototypes, 100.0), draw(anchors, PHASES), given


def test_shares_of_the_frozen_model_are_the_reference_of_the_bias() -> None:
    clip, images, given = make()
    method = lmr.create(f"{FILE}:lmr_frozen", clip)
    reference = book.Reference(**given)  # type: ignore[arg-type]
    counts = [0.0] * clip.classes
    for batch in images.split(8):
        for label in clip(batch).argmax(1).tolist():
            counts[label] += 1
        reference.shares = share(counts)
        torch.testing.assert_close(method.step(batch).logits, reference.step(batch), atol=1e-9, rtol=0)
    assert max(map(abs, reference.bias)) > 0.05


def test_shares_of_quiet_times_are_those_of_steady_and_a_change_starts_afresh() -> None:
    clip, images, given = make()
    method = lmr.create(f"{FILE}:lmr_history", clip)
    reference, counter = book.Reference(**given), SteadyReference(**given, lr=0.0, eta=0.0)  # type: ignore[arg-type]
    starts = 0
    for batch in images.split(8):
        looked = counter.looked
        counter.step(batch)
        if counter.looked < looked:
            reference, starts = book.Reference(**given), starts + 1  # type: ignore[arg-type]
        first = counter.labels if counter.usual is None else [0.0] * clip.classes
        reference.shares = share([a + b for a, b in zip(counter.counted, first, strict=True)])
        torch.testing.assert_close(method.step(batch).logits, reference.step(batch), atol=1e-9, rtol=0)
    assert starts == 1
    assert reference.steps > 0
