"""Prototypes from a context and gradients back to it, against plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lmr.core.bases.prompts import ContextTuner
from view_problem import make_view_problem


def make_tuner(chunk: int) -> ContextTuner:
    text = make_view_problem().classifier.text
    assert text is not None
    assert text.learn is not None
    return ContextTuner(text, text.learn("", []), chunk, torch.float64)


@pytest.mark.parametrize("chunk", [1, 2, 4, 50])
def test_prototypes_and_gradients_are_those_of_one_graph(chunk: int) -> None:
    problem, tuner = make_view_problem(), make_tuner(chunk)
    generator = torch.Generator().manual_seed(0)
    moved = 0.1 * torch.randn(tuner.shape, generator=generator, dtype=torch.float64)
    context = (problem.context + moved).requires_grad_()
    texts = problem.encode_texts(context)
    row = context.detach().flatten()
    torch.testing.assert_close(tuner.encode(row), texts.detach(), atol=1e-11, rtol=0)
    slopes = torch.randn(3, *texts.shape, generator=generator, dtype=torch.float64)
    for slope, found in zip(slopes, tuner.vjp(row, slopes), strict=True):
        (expected,) = torch.autograd.grad(texts, context, slope, retain_graph=True)
        torch.testing.assert_close(found, expected.flatten(), atol=1e-10, rtol=0)


def test_start_is_the_context_s_own_words() -> None:
    problem, tuner = make_view_problem(), make_tuner(100)
    assert torch.equal(tuner.start.view(tuner.shape), problem.context)
    plain = F.normalize(problem.model.text(problem.tokens, problem.end), dim=1)
    torch.testing.assert_close(tuner.start_prototypes, plain, atol=1e-11, rtol=0)


def test_gradient_of_several_losses_encodes_the_prompts_once() -> None:
    tuner, calls = make_tuner(100), []
    encode = tuner.prompts.encode
    tuner.prompts.encode = lambda *given: (calls.append(1), encode(*given))[1]  # type: ignore[method-assign]
    slopes = torch.ones(5, *tuner.start_prototypes.shape, dtype=torch.float64)
    tuner.vjp(tuner.start, slopes)
    assert len(calls) == 1
