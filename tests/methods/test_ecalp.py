"""The library's ECALP against a dense graph that is built anew for every image, over whole streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import lmr

Array = NDArray[np.float64]
TINY = float(np.finfo(np.float64).tiny)


class Plain:
    """ECALP with full matrices: every arrival ranks, links and propagates all nodes again."""

    def __init__(self, prototypes: Tensor, **given: Any) -> None:
        self.own = {"k_text": 3, "k_image": 8, "gamma": 10.0, "alpha": 1.0, "iterations": 3, **given}
        self.text = normalise(prototypes.numpy())
        spread = self.text.var(0, ddof=1)
        self.spread = spread / np.linalg.norm(spread)
        self.features = np.zeros((0, self.text.shape[1]))
        self.similarity = np.zeros((0, 0))
        self.reset = np.zeros((0, len(self.text)))
        self.copy_wins = True

    def arrive(self, feature: Array) -> None:
        """Compare a new image with all others, which are older and re-weighted, and with its re-weighted self."""
        self.features = np.concatenate([self.features, normalise(feature)[None]])
        new = (normalise(self.spread * self.features) * self.features[-1]).sum(-1)
        self.similarity = np.block([[self.similarity, new[:-1, None]], [new[None]]])

    def rank(self, similarity: Array, k: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The k most similar columns of every row, in the given order among equals."""
        return order[np.argsort(-similarity[:, order], 1, kind="stable")[:, :k]]

    def step(self, feature: Array) -> Array:
        own, classes = self.own, len(self.text)
        self.arrive(feature)
        i = len(self.features)
        nodes = [*range(i), i - 1]  # the newest twice
        similarity = self.similarity[np.ix_(nodes, nodes)]
        newest_first = np.arange(i + 1)[::-1].copy()
        if not self.copy_wins:
            newest_first[:2] = i - 1, i
        cosines = (self.features[nodes][:, None, :] * self.text[None]).sum(-1)

        links = np.zeros((classes + i + 1, classes + i + 1))
        for row, columns in enumerate(self.rank(similarity, own["k_image"], newest_first)):
            links[classes + row, classes + columns] = np.abs(similarity[row, columns]) ** own["gamma"]
        for row, columns in enumerate(self.rank(cosines, own["k_text"], np.arange(classes))):
            links[classes + row, columns] = np.abs(cosines[row, columns]) ** own["gamma"]
        links = links + links.T
        scale = 1 / (np.sqrt(links.sum(1)) + 1e-6)
        links = scale[:, None] * links * scale

        start = np.concatenate([self.reset, np.zeros((2, classes))])
        labels = start
        for _ in range(own["iterations"]):
            spread = links[classes:] @ np.concatenate([np.eye(classes), labels])
            labels = own["alpha"] * spread + (1 - own["alpha"]) * start
        self.reset = np.zeros((i, classes))
        best = labels[:i].argmax(1)
        self.reset[np.arange(i), best] = labels[np.arange(i), best] / 5
        return labels[i]


def normalise(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def make_stream(classes: int, count: int, width: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Prototypes [C, D], and clustered features [N, D] not of unit length; the two lie apart, as those of CLIP do."""
    torch.manual_seed(seed)
    centres, common = torch.randn(classes, width, dtype=torch.float64), torch.randn(2, width, dtype=torch.float64)
    prototypes = centres + 0.5 * torch.randn(classes, width, dtype=torch.float64) + common[0]
    features = centres[torch.randint(classes, (count,))] + torch.randn(count, width, dtype=torch.float64) + common[1]
    return prototypes, features * (0.5 + torch.rand(count, 1, dtype=torch.float64))


def make(prototypes: Tensor, spec: str = "ecalp") -> lmr.Method:
    return lmr.create(spec, lmr.ZeroShot(nn.Identity(), prototypes))


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def follow(prototypes: Tensor, features: Tensor, size: int = 16, **given: Any) -> tuple[lmr.Method, Plain]:
    """Send one stream through the library and the reference and compare all that is emitted and kept."""
    words = ", ".join(f"{key}={value!r}" for key, value in given.items())
    method, plain = make(prototypes, f"ecalp({words})"), Plain(prototypes, **given)
    k_image, k_text = plain.own["k_image"], min(plain.own["k_text"], len(prototypes))
    for images in features.split(size):
        answer = method.step(images)
        rows = np.stack([plain.step(row) for row in images.numpy()])
        torch.testing.assert_close(answer.logits, torch.from_numpy(np.log(rows + TINY)), atol=1e-6, rtol=0)
        shares = torch.from_numpy(rows / rows.sum(1, keepdims=True))
        torch.testing.assert_close(answer.probabilities, shares, atol=1e-6, rtol=0)
        n = len(plain.features)
        assert (answer.info["nodes"], answer.info["edges"]) == (n, n * min(k_image, n) + n * k_text)
        assert (answer.info["stepped"], answer.info["finite"]) == (True, True)
    n, k = len(plain.features), min(k_image, len(plain.features))
    lists = plain.rank(plain.similarity, k, np.arange(n)[::-1])
    assert np.array_equal(method.state["images"][0, :, :k].numpy(), lists)
    kept = torch.from_numpy(np.take_along_axis(plain.similarity, lists, 1))
    torch.testing.assert_close(method.state["similarity"][0, :, :k], kept, atol=1e-12, rtol=0)
    torch.testing.assert_close(method.state["value"][0], torch.from_numpy(plain.reset.max(1)), atol=1e-9, rtol=0)
    assert np.array_equal(method.state["label"][0].numpy(), plain.reset.argmax(1))
    return method, plain


@pytest.mark.parametrize(("classes", "count"), [(10, 300), (100, 240)])
def test_stream_is_that_of_the_reference(classes: int, count: int) -> None:
    method, plain = follow(*make_stream(classes, count))
    follows = np.mean(plain.reset.argmax(1) == (plain.features @ plain.text.T).argmax(1))
    assert 0.3 < follows < 0.98  # the graph has its own opinion, otherwise this stream tests little
    assert not method.state["value"].eq(0).any()


@pytest.mark.parametrize(
    "given",
    [
        {"k_image": 1},
        {"k_image": 2, "k_text": 1},
        {"k_image": 30, "k_text": 5},
        {"gamma": 4.0, "alpha": 0.6},
        {"gamma": 3.5, "alpha": 0.1, "k_text": 9},
        {"iterations": 1},
        {"iterations": 2, "alpha": 0.9},
        {"iterations": 6},
    ],
    ids=str,
)
def test_other_arguments_are_those_of_the_reference(given: dict[str, Any]) -> None:
    follow(*make_stream(10, 70, seed=1), size=9, **given)


@pytest.mark.parametrize("distinct", [1, 3, 12])
def test_duplicates_are_ranked_by_age(distinct: int) -> None:
    """Far more equal images than a list has places: which of them are kept changes every answer."""
    prototypes, features = make_stream(10, distinct)
    torch.manual_seed(1)
    follow(prototypes, features[torch.randint(distinct, (130,))])


def test_equal_prototypes_are_ranked_in_their_order() -> None:
    prototypes, features = make_stream(6, 60)
    method, _ = follow(prototypes[[0, 1, 2, 3, 4, 5, 0, 0, 2, 2, 1]], features)
    lists = method.state["classes"][0]
    assert ((lists[:, 0] == 0) & (lists[:, 1] == 6) & (lists[:, 2] == 7)).any()


# What is out of the ordinary.


def test_graph_without_links_still_answers() -> None:
    """Prototypes without spread and an image at right angles to all: similarities of zero everywhere."""
    prototypes = torch.eye(4)[:1].repeat(3, 1)
    images = torch.eye(4)[[1, 0, 2, 1, 0]]
    method = make(prototypes)
    answer = method.step(images)
    assert answer.logits.isfinite().all()
    torch.testing.assert_close(answer.probabilities[1], torch.full((3,), 1 / 3))
    assert all(value.isfinite().all() for value in method.state.values())
