"""Losses of single samples and of whole streams: what a gradient method's author cannot get wrong unnoticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import small_world
from lmr.core.functional.losses import entropy

pytestmark = pytest.mark.usefixtures("own_methods")


@pytest.fixture
def diverse(own_methods: None) -> type[lmr.Method]:
    @lmr.register("diverse")
    class Diverse(lmr.GradientMethod):
        """Information maximisation."""

        lr: float = 1e-2

        def batch_loss(self, logits: Tensor) -> Tensor:
            p = logits.softmax(1)
            return entropy(logits).mean() + (p.mean(0) * p.mean(0).log()).sum()

    return Diverse


@pytest.mark.usefixtures("diverse")
def test_batch_loss_is_that_of_torch_on_the_same_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain loop, with an encoder that would rather work in parts."""
    clip, plain = small_world.make_classifier(), small_world.make_classifier()
    monkeypatch.setattr(lmr.ZeroShot, "split", lambda self, count: [slice(0, 2), slice(2, count)])
    method = lmr.create("diverse(optimizer='sgd')", clip)
    norms = [p.requires_grad_() for name, p in plain.encoder.named_parameters() if name.startswith(("first", "second"))]
    images = small_world.make_images(0)
    logits = plain.logits(plain.cosines(torch.nn.functional.normalize(plain.encoder(images), dim=-1)))
    loss = entropy(logits).mean() - entropy(logits.softmax(1).mean(0, keepdim=True).log())[0]
    answer = method.step(images)
    assert (answer.logits - logits).abs().max() < 1e-9
    assert answer.info["loss"] == pytest.approx(loss.item(), abs=1e-9)
    expected = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, norms)])
    moved = (method.bank.start - method.state["norms"][0]) / (1e-2 * 1.9)  # type: ignore[attr-defined]
    assert (moved - expected).abs().max() < 1e-9  # a first step with the momentum of Nesterov, 1 + 0.9


def refuse(name: str, methods: dict[str, Any], match: str) -> None:
    lmr.register(name)(type(name.title(), (lmr.GradientMethod,), {"__doc__": "A test.", **methods}))
    method = lmr.create(name, small_world.make_classifier())
    before = {key: value.clone() for key, value in method.state.items()}
    with pytest.raises(lmr.LmrError, match=match):
        method.step(small_world.make_images(0))
    assert all(torch.equal(value, method.state[key]) for key, value in before.items())


def test_losses_of_another_form_are_refused() -> None:
    refuse("meant", {"loss": lambda self, logits: entropy(logits).mean()}, "define 'batch_loss'")
    refuse("apart", {"batch_loss": lambda self, logits: entropy(logits)}, "define 'loss'")


def imbalance(logits: Tensor) -> Tensor:
    """The loss of a batch: how much more certain its answers are together than one by one."""
    return entropy(logits).mean() - entropy(logits.softmax(1).mean(0, keepdim=True).log())[0]


def step_with_loss(name: str, loss: Any, images: Tensor) -> lmr.Method:
    kind = lmr.register(name)(type(name.title(), (lmr.GradientMethod,), {"__doc__": "A test.", "loss": loss}))
    method = kind(small_world.make_classifier())
    method.step(images)
    return method


def test_loss_sees_one_sample() -> None:
    """A term that compares samples is that of each sample alone."""
    images = small_world.make_images(0)
    method = step_with_loss("hidden", lambda self, logits: entropy(logits) + imbalance(logits), images)
    plain = step_with_loss("plain", lambda self, logits: entropy(logits), images)
    assert torch.equal(method.state["norms"], plain.state["norms"])
