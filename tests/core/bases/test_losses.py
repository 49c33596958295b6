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


def test_loss_that_compares_samples_is_refused() -> None:
    def loss(self: Any, logits: Tensor) -> Tensor:
        return entropy(logits) - entropy(logits.softmax(1).mean(0, keepdim=True).log())

    refuse("compares", {"loss": loss}, "define 'batch_loss' for a loss that compares samples")


def imbalance(logits: Tensor) -> Tensor:
    """The loss of a batch: how much more certain its answers are together than one by one."""
    return entropy(logits).mean() - entropy(logits.softmax(1).mean(0, keepdim=True).log())[0]


def step_with_loss(name: str, loss: Any, images: Tensor) -> lmr.Method:
    kind = lmr.register(name)(type(name.title(), (lmr.GradientMethod,), {"__doc__": "A test.", "loss": loss}))
    method = kind(small_world.make_classifier())
    method.step(images)
    return method


@pytest.mark.parametrize(
    "loss",
    [
        lambda self, logits: entropy(logits).mean().expand(len(logits)),
        lambda self, logits: entropy(logits) + imbalance(logits),
        lambda self, logits: entropy(logits) + 1e-3 * imbalance(logits),
        lambda self, logits: 1e-3 * imbalance(logits).expand(len(logits)),
        lambda self, logits: entropy(logits) / len(logits),
    ],
)
def test_term_of_the_batch_is_refused_on_frames_that_hardly_differ(loss: Any) -> None:
    frames = small_world.make_images(0)[:1].repeat(8, 1, 1)
    frames = frames + 1e-4 * torch.randn(frames.shape, dtype=frames.dtype, generator=torch.Generator().manual_seed(0))
    with pytest.raises(lmr.LmrError, match="define 'batch_loss' for a loss that compares samples"):
        step_with_loss("hidden", loss, frames)


def test_term_of_large_batches_is_refused_there() -> None:
    def loss(self: Any, logits: Tensor) -> Tensor:
        return entropy(logits) + (imbalance(logits) if len(logits) > 16 else 0)

    images = torch.cat([small_world.make_images(number) for number in range(8)])
    method = step_with_loss("large", loss, images[:8])
    with pytest.raises(lmr.LmrError, match="define 'batch_loss' for a loss that compares samples"):
        method.step(images[:20])


def test_loss_sees_one_sample_whatever_the_values() -> None:
    """A term that only these images have is not found on random logits, and is that of each sample alone."""
    images = small_world.make_images(0)
    mark = small_world.make_classifier()(images)[0, 0].item()

    def loss(self: Any, logits: Tensor) -> Tensor:
        marked = ((logits[:, 0] - mark).abs() < 1e-6).any()
        return entropy(logits) + torch.where(marked, imbalance(logits), 0)

    method = step_with_loss("marked", loss, images)
    plain = step_with_loss("plain", lambda self, logits: entropy(logits), images)
    assert torch.equal(method.state["norms"], plain.state["norms"])


def test_loss_that_branches_on_values_is_refused() -> None:
    def loss(self: Any, logits: Tensor) -> Tensor:
        return entropy(logits) if logits.amax() > 0 else -entropy(logits)

    refuse("branches", {"loss": loss}, "torch.where in place of 'if'")
