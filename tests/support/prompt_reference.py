"""Prompt tuning of one image at a time, slowly: plain autograd over all prompts, torch's own AdamW."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lmr
from view_problem import ViewProblem, choose_confident, make_view_problem, make_views

SIZES = (3, 2, 4)
VIEWS = 12

Loss = Callable[[Tensor, Tensor], Tensor]  # of the confident views' logits [k, C] and the texts [C, D]
Answer = Callable[[Tensor, Tensor], Tensor]  # of the views' features [V, D] and the texts [C, D]: logits [C]


def tune(
    problem: ViewProblem,
    views: Tensor,
    loss: Loss,
    answer: Answer | None = None,
    *,
    lr: float = 5e-3,
    weight_decay: float = 0.01,
    keep: float = 0.1,
) -> tuple[Tensor, float]:
    """The logits [C] of one image after its step, and the loss before it."""
    features = problem.encode_images(views)
    context = problem.context.requires_grad_()
    optim = torch.optim.AdamW([context], lr, weight_decay=weight_decay)
    texts = problem.encode_texts(context)
    logits = problem.scale * features @ texts.T
    chosen = choose_confident(logits.detach(), keep)
    value = loss(logits[chosen], texts)
    value.backward()
    optim.step()
    with torch.no_grad():
        texts = problem.encode_texts(context)
        after = problem.scale * features[0] @ texts.T if answer is None else answer(features, texts)
    return after, value.item()


def compare_streams(spec: str, loss: Loss, answer: Answer | None = None, **settings: float) -> None:
    """A stream of given views through the library and through the reference, within 1e-8."""
    problem = make_view_problem()
    method = lmr.create(spec, problem.classifier)
    plain = lmr.create("zeroshot", problem.classifier)
    moved = 0.0
    for batch in range(len(SIZES)):
        views = make_views(batch, SIZES, VIEWS)
        found = method.step(views)
        tuned, losses = zip(*(tune(problem, own, loss, answer, **settings) for own in views), strict=True)
        expected = torch.stack(tuned)
        torch.testing.assert_close(found.logits, expected, atol=1e-8, rtol=0)
        torch.testing.assert_close(method.predict(views).logits, expected, atol=1e-8, rtol=0)
        assert found.info["stepped"] is True
        assert found.info["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-8)
        moved = max(moved, float((expected - plain.predict(views[:, 0]).logits).abs().max()))
    assert moved > 1e-2
    assert method.state["seen"].tolist() == [sum(SIZES)]
