"""The interface that people touch: what objects say of themselves, and methods as modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lmr
from pocket import load_pocket

NAMES = ["red ring", "blue star", "green heart", "purple square"]
CONTRACT = {
    "adapt", "add_labels", "answer", "begin", "card", "choose_values", "class_sums", "classes_reason", "classifier",
    "cycle", "describe", "emission", "emits", "export", "export_reason", "fill_state", "fit_source", "grows",
    "logit_floor", "logit_offset", "margin_width", "memory_span", "name", "phases", "prepare", "ranges", "rewind",
    "scores", "single_stream_reason", "spec", "state", "streams", "takes_views", "towers", "trainable", "trained",
    "unknown",
}  # fmt: skip
USE = {
    "adopt", "as_module", "count_labels", "dump", "export_parameters", "load", "load_state_dict", "predict", "reset",
    "restore", "save", "state_dict", "step", "to", "with_classes",
}  # fmt: skip
WRAP = {
    "begin_rows", "carry", "carry_all", "check", "check_rows", "convert", "find_rows", "session", "stand_in",
    "transaction",
}  # fmt: skip
PUBLIC = CONTRACT | USE | WRAP


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    return load_pocket().classifier(NAMES)


def test_prediction_shows_the_first_names_with_their_confidence(clip: lmr.ZeroShot) -> None:
    answer = lmr.create("zeroshot", clip).step(torch.randn(6, 3, 32, 32))
    assert answer.names == [NAMES[label] for label in answer.labels.tolist()]
    first = f"{answer.names[0]} {answer.probabilities[0].max():.2f}"
    assert repr(answer).startswith(f"Prediction of 6 images: {first}, ")
    assert repr(answer).endswith(", ...")
    assert lmr.create("zeroshot", clip).predict(torch.randn(1, 3, 32, 32)).names[0] in NAMES
    assert lmr.Prediction(torch.tensor([[0.0, 1.0]])).names == ["1"]


def test_dir_of_a_method_is_its_interface_and_its_arguments(clip: lmr.ZeroShot) -> None:
    shown = {name for name in dir(lmr.create("zeroshot", clip)) if not name.startswith("_")}
    assert shown == PUBLIC
    method = lmr.create("lmr", clip)
    shown = {name for name in dir(method) if not name.startswith("_")}
    arguments = {"lr", "delta", "negatives", "tau", "gamma0", "beta", "eta", "mu", "clip", "eps", "pmr", "am", "bc"}
    assert shown == PUBLIC | arguments | {"positives"} | {"tower", "bank", "optim"}


def evaluate(model: nn.Module, batches: list[torch.Tensor], labels: torch.Tensor) -> float:
    """An evaluation loop as written for tent.Tent(model): reset, then forward every batch once."""
    model.eval()
    model.reset()
    right = 0
    for images, expected in zip(batches, labels.split(8), strict=True):
        output = model(images)
        right += int((output.max(1)[1] == expected).sum())
    return right / len(labels)


def test_module_adapts_in_its_forward(clip: lmr.ZeroShot) -> None:
    batches, labels = list(torch.randn(24, 3, 32, 32).split(8)), torch.randint(4, (24,))
    method, other = lmr.create("tent", clip), lmr.create("tent", clip)
    model = method.as_module()
    assert isinstance(model, nn.Module)
    method.step(batches[0])  # is forgotten at the reset
    accuracy = evaluate(model, batches, labels)
    answers = torch.cat([other.step(batch).labels for batch in batches])
    assert accuracy == pytest.approx((answers == labels).double().mean().item())
    assert all(torch.equal(value, other.state[key]) for key, value in method.state.items())
    assert not model.train().encoder.training  # the frozen encoder stays in evaluation mode
    assert torch.equal(model(batches[0]), other.step(batches[0]).logits)


class Logits(nn.Module):
    """A classifier with a head: images [B, 4] to logits [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(images))  # type: ignore[no-any-return]


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_model_that_returns_logits_is_refused(scale: float) -> None:
    with pytest.raises(lmr.LmrError, match="classification"):
        lmr.ZeroShot(Logits(), scale * torch.eye(3))
