"""BCA against lists and loops, image by image, over whole streams in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import feature_streams as plain


class Reference:
    """One stream of BCA; an image is a list of views."""

    def __init__(
        self, prototypes: Tensor, tau1: float = 0.05, c1: int = 20000, tau2: float = 0.65, c2: int = 1
    ) -> None:
        self.tau1, self.tau2 = tau1, tau2
        self.means = [plain.unit(row) for row in prototypes]
        self.prior = [list(row) for row in torch.eye(len(prototypes), dtype=torch.float64)]
        self.first, self.second = [c1] * len(prototypes), [c2] * len(prototypes)
        self.updates = [0, 0]

    def step(self, views: Tensor) -> Tensor:
        features = [plain.unit(view) for view in views]
        logits = [torch.stack([plain.SCALE * (z @ mean) for mean in self.means]) for z in features]
        entropies = [float(-(row.softmax(0) * row.log_softmax(0)).sum()) for row in logits]
        count = len(views) // 10 if len(views) > 1 else 1
        best = sorted(range(len(views)), key=lambda k: entropies[k])[:count]
        q = (sum(logits[k] for k in best) / count).softmax(0)
        z = sum(features[k] for k in best) / count
        f = torch.stack([sum(q[m] * self.prior[m][c] for m in range(len(q))) for c in range(len(q))])
        y = int(f.argmax())
        if f[y] > self.tau1:
            self.means[y] = plain.unit((self.first[y] * self.means[y] + z) / (self.first[y] + 1))
            self.first[y] += 1
            self.updates[0] += 1
        if f[y] > self.tau2:
            self.prior[y] = [(self.second[y] * p + f[c]) / (self.second[y] + 1) for c, p in enumerate(self.prior[y])]
            self.second[y] += 1
            self.updates[1] += 1
        return torch.log(f + 1e-12)


@pytest.mark.parametrize(
    ("given", "views"),
    [
        ({}, 1),
        ({"c1": 20, "c2": 3, "tau2": 0.4}, 1),
        ({"c1": 50, "tau1": 0.6, "tau2": 0.8}, 1),
        ({"c1": 30}, 20),
    ],
    ids=str,
)
def test_stream_is_that_of_the_reference(given: dict[str, Any], views: int) -> None:
    prototypes, features = plain.make_stream(8, 120)
    words = ", ".join(f"{key}={value!r}" for key, value in given.items())
    method, reference = plain.make_method(f"bca({words})", prototypes), Reference(prototypes, **given)
    stream = plain.make_views(features, views)
    moved = [0, 0]
    for batch in stream.split(17):
        expected = torch.stack([reference.step(image) for image in batch])
        answer = method.step(batch[:, 0] if views == 1 else batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-9, rtol=0)
        moved = [a + b for a, b in zip(moved, (answer.info["means"], answer.info["priors"]), strict=True)]
    assert moved == reference.updates
    assert 0 < moved[1] < 120
    torch.testing.assert_close(method.state["means"][0], torch.stack(reference.means), atol=1e-9, rtol=0)
    rows = torch.stack([torch.stack(row) for row in reference.prior])
    torch.testing.assert_close(method.state["prior"][0], rows, atol=1e-9, rtol=0)
    torch.testing.assert_close(rows.sum(1), torch.ones(8, dtype=torch.float64))
    assert method.state["mean_counts"][0].tolist() == reference.first


def test_threshold_itself_is_not_enough() -> None:
    prototypes, features = plain.make_stream(8, 1)
    method = plain.make_method("bca", prototypes)
    row = {key: value[0] for key, value in method.state.items()}
    largest = method.look(method.classifier.features(features), row)[1][0].max().item()  # to the last bit
    for moved, tau in ((0, largest), (1, largest - 1e-9)):
        info = plain.make_method(f"bca(tau1={tau!r}, tau2={tau!r})", prototypes).step(features).info
        assert (info["means"], info["priors"]) == (moved, moved)
