"""TPT against plain autograd, and what all methods that learn a context share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lmr
from pocket import load_pocket
from prompt_reference import SIZES, VIEWS, compare_streams
from view_problem import make_view_problem, make_views, measure_mean_entropy


def loss(logits: Tensor, texts: Tensor) -> Tensor:
    return measure_mean_entropy(logits)


def test_stream_is_that_of_the_reference() -> None:
    compare_streams("tpt", loss)


def test_other_arguments_are_those_of_the_reference() -> None:
    compare_streams("tpt(lr=0.02, weight_decay=0.5, keep=0.4, chunk=2)", loss, lr=0.02, weight_decay=0.5, keep=0.4)


@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
def test_chunks_change_nothing(chunk: int) -> None:
    problem, views = make_view_problem(), make_views(0, SIZES, VIEWS)
    whole = lmr.create("tpt", problem.classifier).step(views).logits
    parts = lmr.create(f"tpt(chunk={chunk})", problem.classifier).step(views).logits
    torch.testing.assert_close(parts, whole, atol=1e-10, rtol=0)


def test_own_words_as_context_give_the_prototypes_of_the_template() -> None:
    backbone = lmr.load("photo")
    names = ["cat", "aquarium fish", "ship"]
    for context in ("a photo of a", "a blurry photo of a"):
        clip = backbone.classifier(names, [context + " {}."])
        method = lmr.create("tpt", clip, context=context)
        torch.testing.assert_close(method.tuner.start_prototypes, clip.prototypes, atol=1e-6, rtol=0)  # type: ignore[attr-defined]
        assert method.trainable == 128 * len(context.split())


def test_augmix_changes_the_views() -> None:
    clip = load_pocket().classifier(["red ring", "blue star"])
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain, mixed = (lmr.create(f"tpt(views=6{more})", clip).step(images).logits for more in ("", ", augmix=True"))
    assert (plain - mixed).abs().max() > 1e-4


@pytest.mark.parametrize("context", [" ", "a photo of a {}"])
def test_context_is_words(context: str) -> None:
    with pytest.raises(lmr.LmrError, match="context"):
        lmr.create("tpt", load_pocket().classifier(["red ring", "blue star"]), context=context)
