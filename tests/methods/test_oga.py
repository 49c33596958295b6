"""OGA against lists and NumPy, whole streams in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import feature_streams as plain
import lmr

Array = np.ndarray[Any, np.dtype[np.float64]]


class Reference:
    """One stream of OGA: lists of (entropy, feature) per class."""

    def __init__(self, prototypes: Tensor, shots: int = 8, tau: float = 0.05, normalize: bool = False) -> None:
        self.text = np.stack([plain.unit(row).numpy() for row in prototypes])
        self.shots, self.tau, self.normalize = shots, tau, normalize
        self.memory: list[list[tuple[float, Array]]] = [[] for _ in prototypes]
        self.means, self.precision = self.text.copy(), self.text.shape[1] * np.eye(self.text.shape[1])
        self.events: set[str] = set()

    def predict(self, features: Array) -> tuple[Array, Array]:
        logits = plain.SCALE * features @ self.text.T
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return p, -(p * np.log(p + 1e-9)).sum(1)

    def enter(self, feature: Array, label: int, entropy: float) -> bool:
        own = self.memory[label]
        if len(own) < self.shots and entropy < math.log(len(self.text)):
            own.append((entropy, feature))
            self.events.add("appended")
            return True
        worst = max(range(len(own)), key=lambda k: own[k][0], default=None)
        if worst is not None and len(own) == self.shots and entropy < own[worst][0]:
            own[worst] = (entropy, feature)
            self.events.add("replaced")
            return True
        self.events.add("refused")
        return False

    def fit(self) -> None:
        width = self.text.shape[1]
        for c, own in enumerate(self.memory):
            mean = sum(feature for _, feature in own) / self.shots if len(own) >= 2 else self.text[c]
            self.means[c] = mean / np.linalg.norm(mean) if self.normalize else mean
        if max(map(len, self.memory)) <= 2:
            self.events.add("no precision")
            return
        rows = [feature - self.means[c] for c, own in enumerate(self.memory) for _, feature in own]
        residuals = np.stack(rows) - sum(rows) / len(rows)
        covariance = residuals.T @ residuals / (len(rows) - 1)
        if len(rows) <= 4 * width:
            shrunk = (len(rows) - 1) * covariance + np.trace(covariance) * np.eye(width)
            self.precision = width * np.linalg.pinv(shrunk)
        else:
            self.precision = np.linalg.pinv(covariance)
        self.events.add("shrunk" if len(rows) <= 4 * width else "plain")

    def step(self, images: Tensor, enter: bool = True) -> Tensor:
        features = np.stack([plain.unit(image).numpy() for image in images])
        p, entropies = self.predict(features)
        if enter:
            pairs = zip(features, p.argmax(1), entropies, strict=True)
            if sum([self.enter(feature, int(label), float(h)) for feature, label, h in pairs]):
                self.fit()
        rows = []
        for z, own in zip(features, p, strict=True):
            scores = np.array([-0.5 * (z - mean) @ self.precision @ (z - mean) for mean in self.means])
            weights = np.exp(self.tau * (scores - scores.max()))
            rows.append(own * weights / weights.sum())
        answers = np.stack(rows)
        return torch.from_numpy(answers / answers.sum(1, keepdims=True))


@pytest.mark.parametrize(
    ("given", "size", "kinds"),
    [
        ({}, 32, {"appended", "shrunk"}),
        ({"shots": 9, "tau": 0.2}, 16, {"appended", "replaced", "refused", "shrunk", "plain"}),
        ({"shots": 4, "tau": 1.0, "normalize": True}, 7, {"appended", "replaced", "refused", "shrunk"}),
        ({"shots": 2, "tau": 0.5}, 1, {"appended", "replaced", "refused", "no precision"}),
        ({"shots": 1}, 5, {"appended", "replaced", "refused", "no precision"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),  # the same in every process
)
def test_stream_is_that_of_the_reference(given: dict[str, Any], size: int, kinds: set[str]) -> None:
    prototypes, features = plain.make_stream(7, 190)
    method = lmr.create("oga", plain.make_method("zeroshot", prototypes).classifier, **given)
    reference, moved = Reference(prototypes, **given), 0.0
    for batch in features.split(size):
        looked = reference.step(batch, enter=False)
        torch.testing.assert_close(method.predict(batch).probabilities, looked, atol=1e-8, rtol=0)
        expected = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.probabilities, expected, atol=1e-8, rtol=0)
        torch.testing.assert_close(answer.logits.logsumexp(1), torch.zeros(len(batch), dtype=torch.float64))
        assert answer.info["held"] == sum(map(len, reference.memory))
        moved = max(moved, float((method.classifier(batch).softmax(1) - expected).abs().max()))
    assert kinds <= reference.events
    assert moved > 1e-3
    torch.testing.assert_close(method.state["means"][0], torch.from_numpy(reference.means), atol=1e-10, rtol=0)
    torch.testing.assert_close(
        method.state["precision"][0], torch.from_numpy(reference.precision), atol=1e-6, rtol=1e-9
    )


def test_batch_is_answered_with_all_of_it_in_memory() -> None:
    prototypes, features = plain.make_stream(7, 32)
    together = plain.make_method("oga(tau=1.0)", prototypes).step(features).logits
    alone = plain.make_method("oga(tau=1.0)", prototypes)
    assert not torch.allclose(together, torch.cat([alone.step(image).logits for image in features.split(1)]))
