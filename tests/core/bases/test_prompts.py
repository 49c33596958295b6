"""Prototypes from a context and gradients back to it, against plain autograd."""

from __future__ import annotations

import torch

from lmr.core.bases.prompts import ContextTuner
from view_problem import make_view_problem


def make_tuner(chunk: int) -> ContextTuner:
    text = make_view_problem().classifier.text
    assert text is not None
    assert text.learn is not None
    return ContextTuner(text, text.learn("", []), chunk, torch.float64)


def test_gradient_of_several_losses_encodes_the_prompts_once() -> None:
    tuner, calls = make_tuner(100), []
    encode = tuner.prompts.encode
    tuner.prompts.encode = lambda *given: (calls.append(1), encode(*given))[1]  # type: ignore[method-assign]
    slopes = torch.ones(5, *tuner.start_prototypes.shape, dtype=torch.float64)
    tuner.vjp(tuner.start, slopes)
    assert len(calls) == 1
