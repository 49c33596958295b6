"""ETA against the mathematics: selections, running average and closed gradient in loops, whole streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import lmr_reference as book

CLASSES = 12


def make_problem(seed: int = 11) -> tuple[Any, Tensor, Tensor]:
    """A tower, prototypes [C, 10] in groups of near ones, and 91 images, clear and doubtful, in float64."""
    torch.manual_seed(seed)
    tower = book.Tower().double()
    anchors = torch.randn(3, 3, 6).double().repeat_interleave(4, 0) + 0.1 * torch.randn(CLASSES, 3, 6).double()
    noise = torch.tensor([0.1, 0.5, 1.5])[torch.randint(3, (91, 1, 1))]
    images = anchors[torch.randint(CLASSES, (91,))] + noise * torch.randn(91, 3, 6)
    with torch.no_grad():
        return tower, tower(anchors), images


def make_method(spec: str = "eta", **arguments: Any) -> tuple[lmr.Method, Tensor]:
    tower, prototypes, images = make_problem()
    return lmr.create(spec, lmr.ZeroShot(tower, prototypes, 100.0), **arguments), images


class Reference:
    """One stream of ETA in float64. ``slack`` is how near any yes-or-no decision came to its border."""

    def __init__(
        self,
        tower: Any,
        prototypes: Tensor,
        optimizer: str = "adam",
        margin: float = 0.4,
        diversity: float = 0.05,
        **options: float,
    ) -> None:
        self.encode = book.write_out(tower)
        self.leaves = [t.detach().double().clone().requires_grad_() for norm in tower.norms for t in norm]
        self.start = torch.cat([t.detach().clone() for t in self.leaves])
        self.prototypes = prototypes.double() / prototypes.double().norm(dim=1, keepdim=True)
        self.limit, self.diversity = margin * math.log(len(prototypes)), diversity
        self.average: list[float] | None = None
        self.slack = math.inf
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        extra = {"momentum": 0.9, "nesterov": True} if optimizer == "sgd" else {}
        self.optimizer = kinds[optimizer](self.leaves, **({"lr": 2.5e-4, "weight_decay": 0.0} | options | extra))

    def score(self, images: Tensor) -> Tensor:
        features = self.encode(images.double(), list(zip(self.leaves[::2], self.leaves[1::2], strict=True)))
        return 100 * (features / features.norm(dim=1, keepdim=True)) @ self.prototypes.T

    def compare(self, answer: list[float]) -> float:
        """|cosine| with the running average."""
        dot = sum(a * p for a, p in zip(self.average, answer, strict=True))
        lengths = math.sqrt(sum(a * a for a in self.average)) * math.sqrt(sum(p * p for p in answer))
        return abs(dot / lengths)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The answer before the step, and what happened."""
        logits = self.score(images)
        logs = [[o - book.weigh_log_sum(row, [1.0] * len(row)) for o in row] for row in logits.tolist()]
        answers = [[math.exp(log) for log in row] for row in logs]
        entropies = [-sum(math.exp(log) * log for log in row) for row in logs]
        certain = [i for i, entropy in enumerate(entropies) if entropy < self.limit]
        self.slack = min([self.slack, *(abs(entropy - self.limit) for entropy in entropies)])
        diverse = certain
        if self.average is not None:
            likeness = {i: self.compare(answers[i]) for i in certain}
            diverse = [i for i in certain if likeness[i] < self.diversity]
            self.slack = min([self.slack, *(abs(value - self.diversity) for value in likeness.values())])
        event = {"certain": len(certain), "diverse": len(diverse), "loss": 0.0, "stepped": bool(diverse)}
        if diverse:
            mean = [sum(answers[i][c] for i in diverse) / len(diverse) for c in range(len(logs[0]))]
            if self.average is None:
                self.average = mean
            else:
                self.average = [0.9 * old + 0.1 * new for old, new in zip(self.average, mean, strict=True)]
            pull = torch.zeros_like(logits)
            for i in diverse:
                weight = math.exp(self.limit - entropies[i]) / len(diverse)
                event["loss"] += weight * entropies[i]
                for c, log in enumerate(logs[i]):  # dH/do_c = -q_c (log q_c + H)
                    pull[i, c] = -weight * math.exp(log) * (log + entropies[i])
            for leaf, gradient in zip(self.leaves, torch.autograd.grad(logits, self.leaves, pull), strict=True):
                leaf.grad = gradient
            self.optimizer.step()
        ends = torch.cat([t.detach() for t in self.leaves])
        return logits.detach(), event | {"drift": float((ends - self.start).norm() / self.start.norm())}


def follow(size: int, **spec: Any) -> list[dict[str, Any]]:
    """Send one stream through the library and the reference, compare everything, return what happened."""
    tower, prototypes, images = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    method, reference = lmr.create("eta", clip, **spec), Reference(tower, prototypes, **spec)
    batches, events = images.split(size), []
    assert len(batches) >= 8
    assert size == 1 or len(batches[-1]) < size
    for batch in batches:
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-7, rtol=0)
        assert set(answer.info) == {*event, "finite", "top_class_share"}
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-9)
        for key in event:
            assert type(answer.info[key]) is type(event[key]), key
        average = [0.0] * CLASSES if reference.average is None else reference.average
        torch.testing.assert_close(
            method.state["average"][0], torch.tensor(average, dtype=torch.float64), atol=1e-9, rtol=0
        )
        events.append(event)
    assert reference.slack > 1e-7 or reference.diversity == 0  # no cosine is below 0, however small
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-7, rtol=0)
    return events


@pytest.mark.parametrize("size", [8, 1])
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"lr": 2e-3, "diversity": 0.3},
        {"lr": 2e-3, "diversity": 0.7, "weight_decay": 0.1},
        {"lr": 2e-3, "diversity": 0.7, "margin": 0.2},
        {"lr": 2e-3, "diversity": 0.7, "optimizer": "sgd"},
        {"lr": 2e-3, "diversity": 0.7, "optimizer": "adamw", "weight_decay": 0.5},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any], size: int) -> None:
    events = follow(size, **spec)
    assert any(event["certain"] < size for event in events)
    assert any(event["diverse"] < event["certain"] for event in events)
    if spec and size > 1:
        assert sum(event["stepped"] for event in events) >= 4
        assert any(0 < event["diverse"] < event["certain"] for event in events)
        assert events[-1]["drift"] > 1e-3
    if size == 1:
        assert any(event["certain"] == 0 for event in events)
        assert any(event["certain"] == 1 and event["diverse"] == 0 for event in events)


def sort_images(method: lmr.Method, images: Tensor) -> tuple[Tensor, Tensor]:
    """Those with entropy above and below the border before anything is learned."""
    logits = method.predict(images).logits
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    border = 0.4 * math.log(CLASSES)
    return images[entropy > border + 0.05], images[entropy < border - 0.05]


def keep(method: lmr.Method) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in method.state.items() if key != "predicted"}


def test_nothing_certain_means_no_step_and_no_average() -> None:
    """And the first batch that has something certain still meets no diversity filter, however late it comes."""
    method, images = make_method("eta(diversity=0.0)")
    doubtful, clear = sort_images(method, images)
    assert min(len(doubtful), len(clear)) >= 12
    before = keep(method)
    for batch in doubtful[:12].split(4):
        expected = method.predict(batch).logits
        answer = method.step(batch)
        assert torch.equal(answer.logits, expected)
        assert [answer.info[key] for key in ("certain", "diverse", "loss", "stepped", "drift")] == [0, 0, 0, False, 0]
        assert all(torch.equal(method.state[key], value) for key, value in before.items())
    first = method.step(torch.cat([clear[:5], doubtful[:2]]))
    assert (first.info["certain"], first.info["diverse"], first.info["stepped"]) == (5, 5, True)
    assert first.info["drift"] > 0
    torch.testing.assert_close(method.state["average"][0], first.probabilities[:5].mean(0))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_nothing_diverse_means_no_step_of_any_kind(optimizer: str) -> None:
    """Not of momentum, not of weight decay; the average stays as well."""
    method, images = make_method(f"eta(diversity=0.0, weight_decay=0.1, optimizer={optimizer!r})")
    _, clear = sort_images(method, images)
    assert method.step(clear[:6]).info["stepped"] is True
    before, expected = keep(method), method.predict(clear[6:12]).logits
    answer = method.step(clear[6:12])
    assert (answer.info["certain"], answer.info["diverse"], answer.info["stepped"]) == (6, 0, False)
    assert answer.info["loss"] == 0
    assert torch.equal(answer.logits, expected)
    assert all(torch.equal(method.state[key], value) for key, value in before.items())
    assert before["steps"].item() == 1


def test_both_borders_are_strict() -> None:
    """On a scale where every answer is one class and nothing else, entropy and cosine are 0 to the last bit."""
    tower, prototypes, images = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 1e6)
    labels = clip.cosines(clip.features(images)).argmax(1)
    one, other = images[labels == labels[0]][:1], images[labels != labels[0]][:1]
    assert lmr.create("eta(margin=0.0)", clip).step(one).info["certain"] == 0
    method = lmr.create("eta(diversity=0.0)", clip)
    assert method.step(one).info["stepped"] is True
    answer = method.step(other)
    assert torch.equal((answer.probabilities * method.state["average"]).sum(), torch.zeros(()).double())
    assert (answer.info["certain"], answer.info["diverse"]) == (1, 0)
