"""OnZeta against loops in NumPy, image by image, whole streams in float64."""

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
CALM = {"cw": 0.05, "cr": 2.0}  # with the published steps rounding errors grow too fast for whole streams


class Reference:
    """One stream of OnZeta."""

    def __init__(
        self,
        prototypes: Tensor,
        tau_text: float = 0.01,
        tau_image: float = 0.04,
        cw: float = 0.5,
        cr: float = 20.0,
        alpha: float = 1.0,
        beta: float = 0.8,
        length: int | None = None,
    ) -> None:
        self.text = np.stack([plain.unit(row).numpy() for row in prototypes])
        self.taus, self.cw, self.cr, self.alpha, self.beta = (tau_text, tau_image), cw, cr, alpha, beta
        self.length, self.number = length, 0
        self.proxies, self.multipliers = self.text.copy(), np.zeros(len(self.text))

    def step(self, image: Tensor) -> Array:
        z, classes = plain.unit(image).numpy(), len(self.text)
        self.number += 1
        rate = 1 / math.sqrt(self.number)
        scores = self.text @ z / self.taus[0]
        q = np.exp(scores - scores.max()) * np.exp(self.multipliers)
        q /= q.sum()
        scores = self.proxies @ z / self.taus[1]
        v = np.exp(scores - scores.max())
        v /= v.sum()
        whole = max(self.number, 10_000) if self.length is None else max(self.number, self.length)
        b = self.beta * math.sqrt(self.number / whole)
        answer = b * v + (1 - b) * q
        for c in range(classes):
            self.multipliers[c] = max(0.0, self.multipliers[c] - self.cr * rate * (q[c] - self.alpha / classes))
            moved = self.proxies[c] - self.cw * rate / self.taus[1] * (v[c] - q[c]) * z
            self.proxies[c] = moved / np.linalg.norm(moved)
        return np.asarray(answer)


@pytest.mark.parametrize(
    "given",
    [
        CALM,
        CALM | {"length": 110},
        CALM | {"length": 40, "beta": 1.0},
        CALM | {"alpha": 0.0, "length": 110},
        CALM | {"tau_text": 0.05, "tau_image": 0.1, "alpha": 0.7, "beta": 0.4, "length": 110},
        {"cw": 0.02, "cr": 20.0, "length": 110},
    ],
    ids=str,
)
def test_stream_is_that_of_the_reference(given: dict[str, Any]) -> None:
    prototypes, features = plain.make_stream(7, 110)
    method = lmr.create("onzeta", plain.make_method("zeroshot", prototypes).classifier, **given)
    reference = Reference(prototypes, **given)
    for batch in features.split(16):
        ahead = method.predict(batch[:1]).probabilities
        expected = torch.from_numpy(np.stack([reference.step(image) for image in batch]))
        torch.testing.assert_close(ahead, expected[:1], atol=1e-8, rtol=0)
        answer = method.step(batch)
        torch.testing.assert_close(answer.probabilities, expected, atol=1e-8, rtol=0)
        torch.testing.assert_close(answer.logits.logsumexp(1), torch.zeros(len(batch), dtype=torch.float64))
    torch.testing.assert_close(method.state["proxies"][0], torch.from_numpy(reference.proxies), atol=1e-7, rtol=0)
    kept = torch.from_numpy(reference.multipliers)
    torch.testing.assert_close(method.state["multipliers"][0], kept, atol=1e-6, rtol=0)
    assert bool(kept.any()) == (given.get("alpha") != 0)
    assert int(method.state["seen"]) == 110


def test_published_steps_begin_as_the_reference() -> None:
    prototypes, features = plain.make_stream(7, 24)
    method, reference = plain.make_method("onzeta(length=24)", prototypes), Reference(prototypes, length=24)
    expected = torch.from_numpy(np.stack([reference.step(image) for image in features]))
    torch.testing.assert_close(method.step(features).probabilities, expected, atol=1e-6, rtol=0)


def test_length_that_is_not_known_is_ten_thousand_and_then_as_long_as_the_stream() -> None:
    prototypes, features = plain.make_stream(7, 3)
    answers = []
    for spec, seen in (
        ("onzeta", 6),
        ("onzeta(length=10000)", 6),
        ("onzeta", 20_000),
        ("onzeta(length=20001)", 20_000),
    ):
        method = plain.make_method(spec, prototypes)
        method.state["seen"][:] = seen
        answers.append(method.step(features).logits[:1])
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[2], answers[3])
    assert not torch.equal(answers[0], answers[2])


def test_model_s_scale_plays_no_part() -> None:
    prototypes, features = plain.make_stream(7, 8)
    one, other = (plain.make_method("onzeta", prototypes, scale).step(features).logits for scale in (5.0, 50.0))
    assert torch.equal(one, other)
