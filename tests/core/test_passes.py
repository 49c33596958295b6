"""Passes, counted on a stand-in model: the published arithmetic of methods, and the same on a real model."""

from __future__ import annotations

import pytest
import torch

import lmr
from few_views import create
from lmr.core.passes import count_passes, count_samples
from pocket import load_pocket

NAMES = ["red ring", "blue star", "green heart"]
KNOWN = {
    "zeroshot": (1, 0),
    "lmr": (2, 1),
    'lmr_variants(emit="before")': (1, 1),
    "lmr(pmr=False)": (1, 0),
    "steady": (1, 1),  # of a stream that has drifted
    'steady(prior="uniform")': (1, 1),
    "tent": (1, 1),
    "mint": (2, 1),
    "subtta": (3, 2),
    "ramen": (2, 1),
    "panda(share=2)": (1.5, 0),
    'panda(method="tent", share=2, again=True)': (3, 1.5),
    'infomax(strength="auto")': (1, 1),  # of a stream whose strength is known
    'infomax(emit="after")': (2, 1),
    "sar": (2, 2),
    "deyo(plpd=-1.0)": (2, 1),
    "roid(weighting=False)": (2, 2),
    "roid(weighting=False, consistency=False)": (1, 1),
    "tda": (1, 0),
    "memo(views=4)": (5, 4),
    "zero(views=4)": (4, 0),
    "tps(views=4, steps=2)": (4, 0),
    "rotta": (3, 1),  # one forward, and a step on the memory for as many images as it holds
    "clipartt(steps=3)": (4, 3),
    "watt(inner=1, rounds=1)": (9, 8),
}


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    return load_pocket().classifier(NAMES)


@pytest.mark.parametrize("spec", KNOWN)
def test_passes_are_those_of_the_published_step(spec: str, clip: lmr.ZeroShot) -> None:
    passes = count_passes(lmr.create(spec, clip))
    assert passes is not None
    assert (passes.forwards, passes.backwards) == KNOWN[spec]


@pytest.mark.parametrize("name", lmr.list_methods())
def test_every_method_can_be_counted(name: str, clip: lmr.ZeroShot) -> None:
    passes = count_passes(create(name, clip), batch_size=2)
    assert passes is not None
    assert passes.forwards >= 1


@pytest.mark.parametrize("spec", ["lmr_variants(share=0.5, tau=0.0)", "tent", "mint", "eta(margin=1.0, diversity=2.0)"])
def test_a_real_model_takes_as_many_passes(spec: str, clip: lmr.ZeroShot) -> None:
    method = lmr.create(spec, clip)
    with count_samples(clip.encoder) as counts:
        method.step(torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    passes = count_passes(method, 8)
    assert passes is not None
    assert (counts["forwards"] / 8, counts["backwards"] / 8) == (passes.forwards, passes.backwards)
