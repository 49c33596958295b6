"""DOTA against loops in NumPy, image by image, whole streams in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import feature_streams as plain
import lmr

Array = np.ndarray[Any, np.dtype[np.float64]]


class Reference:
    """One stream of DOTA; an image is a list of views."""

    def __init__(
        self,
        prototypes: Tensor,
        epsilon: float = 1e-4,
        sigma: float = 2e-3,
        eta: float = 0.3,
        rho: float = 0.02,
        keep: float = 0.1,
    ) -> None:
        self.text = [plain.unit(row).numpy() for row in prototypes]
        self.epsilon, self.eta, self.rho, self.keep = epsilon, eta, rho, keep
        classes, width = prototypes.shape
        self.means = [np.full(width, 0.001) for _ in range(classes)]
        self.covariances = [sigma * np.eye(width) for _ in range(classes)]
        self.counts, self.precision, self.weights = [1.0] * classes, np.eye(width) / sigma, set[float]()

    def step(self, views: Tensor) -> Array:
        features = [plain.unit(view).numpy() for view in views]
        logits = [np.array([plain.SCALE * float(z @ t) for t in self.text]) for z in features]
        p = [np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in logits]
        if len(views) > 1:
            entropies = [-(row * np.log(row)).sum() for row in p]
            best = sorted(range(len(views)), key=lambda k: entropies[k])[: max(1, int(self.keep * len(views)))]
            features, logits, p = ([rows[k] for k in best] for rows in (features, logits, p))
        middle = sum(features) / len(features)
        weight = min(self.rho * sum(self.counts) / len(self.counts) / len(features), self.eta)
        self.weights.add(weight)
        scores = [middle @ self.precision @ mean - 0.5 * mean @ self.precision @ mean for mean in self.means]
        answer = sum(logits) / len(logits) + weight * np.array(scores)
        for c, mean in enumerate(self.means):
            total = self.counts[c] + sum(row[c] for row in p)
            spread = sum(row[c] * np.outer(z - mean, z - mean) for z, row in zip(features, p, strict=True))
            moved = sum(row[c] * z for z, row in zip(features, p, strict=True))
            self.covariances[c] = (self.counts[c] * self.covariances[c] + spread) / total
            self.means[c] = (self.counts[c] * mean + moved) / total
            self.counts[c] = total
        common = sum(self.covariances) / len(self.covariances)
        self.precision = np.linalg.inv((1 - self.epsilon) * common + self.epsilon * np.eye(len(common)))
        return np.asarray(answer)


@pytest.mark.parametrize(
    ("given", "views"),
    [
        ({}, 1),
        ({"eta": 3.0, "rho": 0.05, "epsilon": 0.002}, 1),
        ({"sigma": 0.05, "eta": 0.05}, 1),
        ({"keep": 0.3, "eta": 1.0, "rho": 0.2}, 12),
        ({"eta": 1.0}, 4),
    ],
    ids=str,
)
def test_stream_is_that_of_the_reference(given: dict[str, Any], views: int) -> None:
    prototypes, features = plain.make_stream(7, 90)
    method = lmr.create("dota", plain.make_method("zeroshot", prototypes).classifier, **given)
    reference = Reference(prototypes, **given)
    for batch in plain.make_views(features, views).split(16):
        images = batch[:, 0] if views == 1 else batch
        ahead = method.predict(images[:1]).logits
        expected = torch.from_numpy(np.stack([reference.step(image) for image in batch]))
        torch.testing.assert_close(ahead, expected[:1], atol=1e-8, rtol=0)
        torch.testing.assert_close(method.step(images).logits, expected, atol=1e-8, rtol=0)
    for key in ("means", "covariances", "counts"):
        kept = torch.from_numpy(np.stack(getattr(reference, key)))
        torch.testing.assert_close(method.state[key][0], kept, atol=1e-10, rtol=0)
    torch.testing.assert_close(
        method.state["precision"][0], torch.from_numpy(reference.precision), atol=1e-7, rtol=1e-9
    )
    assert len(reference.weights) > 1
    if given.get("eta") == 0.05:
        assert max(reference.weights) == 0.05


def test_first_answer_is_that_of_the_text_but_for_the_start_of_the_means() -> None:
    prototypes, features = plain.make_stream(7, 5)
    method = plain.make_method("dota", prototypes)
    plainly = plain.make_method("zeroshot", prototypes).predict(features[:1])
    difference = method.step(features[:1]).logits - plainly.logits
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference))


def test_covariance_that_cannot_be_inverted_refuses_the_step() -> None:
    prototypes, features = plain.make_stream(7, 4)
    method = plain.make_method("dota(epsilon=0.0)", prototypes)
    method.state["covariances"].zero_()
    method.state["means"][:] = method.classifier.features(features[:1])  # so that the image adds nothing
    before = {key: value.clone() for key, value in method.state.items() if key != "predicted"}
    answer = method.step(features[:1])
    assert answer.info["finite"] is False
    assert answer.logits.isfinite().all()
    assert all(torch.equal(method.state[key], value) for key, value in before.items())
