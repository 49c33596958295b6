"""DMN-ZS against lists and loops, image by image, over whole streams in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import feature_streams as plain


class Reference:
    """One stream of DMN-ZS; an image is a list of views."""

    def __init__(
        self, prototypes: Tensor, alpha: float = 1.0, beta: float = 5.5, memory: int = 50, keep: float = 0.1
    ) -> None:
        self.alpha, self.beta, self.size, self.keep = alpha, beta, memory, keep
        self.text = [plain.unit(row) for row in prototypes]
        self.memory: list[list[tuple[float, Tensor]]] = [[] for _ in prototypes]
        self.events: set[str] = set()

    def step(self, views: Tensor) -> Tensor:
        features = [plain.unit(view) for view in views]
        z = features[0]
        p = [torch.stack([plain.SCALE * (v @ t) for t in self.text]).softmax(0) for v in features]
        mean = p[0]
        if len(views) > 1:
            entropies = [float(-(row * torch.log(row + 1e-6)).sum()) for row in p]
            count = int(self.keep * len(views))
            best = sorted(range(len(views)), key=lambda k: entropies[k])[:count]
            mean = sum(p[k] for k in best) / count
        label, h = int(mean.argmax()), float(-(mean * torch.log(mean + 1e-8)).sum())
        own = self.memory[label]
        if len(own) < self.size:
            own.append((h, z))
            self.events.add("appended")
        elif own and h < max(entry[0] for entry in own):
            own[[entry[0] for entry in own].index(max(entry[0] for entry in own))] = (h, z)
            self.events.add("replaced")
        else:
            self.events.add("refused")
        logits = []
        for text, entries in zip(self.text, self.memory, strict=True):
            keys = [text, *(key for _, key in entries)]
            total = sum(math.exp(-self.beta * (1 - float(z @ key))) * key for key in keys)
            logits.append(plain.SCALE * (z @ plain.unit(total)))
        return torch.log(p[0] + self.alpha * torch.stack(logits).softmax(0))


@pytest.mark.parametrize(
    ("given", "views"),
    [
        ({}, 1),
        ({"memory": 3}, 1),
        ({"memory": 4, "alpha": 0.03, "beta": 2.0}, 1),
        ({"memory": 2, "keep": 0.3}, 12),
        ({"memory": 0}, 1),
        ({"memory": 3, "beta": 0.0}, 1),
        ({"memory": 3, "beta": 100.0}, 1),
    ],
    ids=str,
)
def test_stream_is_that_of_the_reference(given: dict[str, Any], views: int) -> None:
    prototypes, features = plain.make_stream(7, 110)
    words = ", ".join(f"{key}={value!r}" for key, value in given.items())
    method, reference = plain.make_method(f"dmn({words})", prototypes), Reference(prototypes, **given)
    for batch in plain.make_views(features, views).split(16):
        expected = torch.stack([reference.step(image) for image in batch])
        answer = method.step(batch[:, 0] if views == 1 else batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert answer.info["held"] == sum(map(len, reference.memory))
    if 0 < given.get("memory", 50) < 5:
        assert reference.events == {"appended", "replaced", "refused"}
    for label, own in enumerate(reference.memory):
        kept = method.state["keys"][0, label, : len(own)]
        torch.testing.assert_close(kept, torch.stack([key for _, key in own]) if own else kept, atol=1e-12, rtol=0)
        assert method.state["entropy"][0, label, : len(own)].tolist() == pytest.approx([h for h, _ in own], abs=1e-12)


def test_views_are_ranked_by_entropies_with_the_authors_epsilon() -> None:
    """It takes about 1e-6 off for every class that is possible: the wider of two nearly equal views comes first."""
    prototypes = torch.eye(7, dtype=torch.float64)[[0, 1, 3, 2, 4, 5, 6]]  # not the identity, which is refused

    def write(own: float) -> Tensor:
        """A view of class 6 with a probability that grows with ``own``, the other classes but the first two alike."""
        return plain.unit(torch.tensor([0, 0, 1, 1, 1, 1, own], dtype=torch.float64))

    def measure(view: Tensor) -> float:
        p = (50.0 * view).softmax(0)
        return float(-(p * p.log()).sum())

    narrow = plain.unit(torch.tensor([1.01, 1, 0, 0, 0, 0, 0], dtype=torch.float64))
    low, high = 1.0, 3.0
    for _ in range(100):  # to an entropy that is larger by 1e-6
        middle = (low + high) / 2
        low, high = (middle, high) if measure(write(middle)) > measure(narrow) + 1e-6 else (low, middle)
    wide = write(low)
    assert 0 < measure(wide) - measure(narrow) < 2e-6
    method = plain.make_method("dmn(keep=0.5)", prototypes, scale=50.0)
    method.step(torch.stack([narrow, wide]).unsqueeze(0))
    assert (method.state["entropy"][0, :, 0] < 1e6).nonzero().flatten().tolist() == [6]


def test_probabilities_are_the_mean_of_both() -> None:
    prototypes, features = plain.make_stream(7, 20)
    alone = plain.make_method("dmn(alpha=0.0)", prototypes).step(features).probabilities
    torch.testing.assert_close(alone, plain.make_method("zeroshot", prototypes).predict(features).probabilities)
