"""SubTTA against autograd through the eigenvectors and loops over classes, whole streams in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
import lmr_reference as book
import norm_reference as plain

WIDTH = 10
EPS = 1e-6


class Reference(plain.NormReference):
    """One stream of SubTTA with torch's own optimisers. The last leaf is the bias that a shift of all features is."""

    def __init__(
        self,
        loss: str = "mint",
        lr: float = 1e-3,
        optimizer: str = "adamw",
        weight_decay: float = 0.01,
        rank: int = 256,
        momentum: float = 0.1,
        drop_first: bool = True,
        ent_scale: float = 0.05,
    ) -> None:
        super().__init__()
        self.loss, self.momentum, self.ent_scale, self.first = loss, momentum, ent_scale, int(drop_first)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
        self.optim = kind(self.leaves, lr=lr, weight_decay=weight_decay)
        centred = self.prototypes - self.prototypes.sum(0) / plain.CLASSES
        self.covariance = centred.T @ centred / (plain.CLASSES - 1 + EPS)
        _, vectors = torch.linalg.eigh(centred.T @ centred)  # of rising eigenvalues
        self.rank = min(plain.CLASSES - 1 - self.first, WIDTH - self.first, rank)
        order = [WIDTH - 1 - self.first - k for k in range(self.rank)]
        self.projector = sum(torch.outer(vectors[:, k], vectors[:, k]) for k in order)

    def raw(self, images: Tensor) -> Tensor:
        return self.encode(images.double(), list(zip(self.leaves[::2], self.leaves[1::2], strict=True)))

    def align(self, images: Tensor) -> float:
        features = self.raw(images)
        centred = features - features.sum(0) / len(features)
        own = sum(torch.outer(row, row) for row in centred) / (len(features) - 1 + EPS) + EPS * torch.eye(WIDTH)
        covariance = self.momentum * self.covariance + (1 - self.momentum) * own
        self.covariance = covariance.detach()
        _, vectors = torch.linalg.eigh(covariance)
        chosen = vectors[:, WIDTH - self.first - self.rank : WIDTH - self.first]
        loss = -torch.trace(chosen.T @ self.projector @ chosen) / (self.rank * (1 - self.momentum))
        gradients = torch.autograd.grad(loss, self.leaves)
        assert gradients[-1].abs().max() < 1e-12  # of the bias that only rounding gives a gradient
        self.descend([*gradients[:-1], torch.zeros_like(gradients[-1])])
        return loss.item()

    def separate(self, images: Tensor) -> float:
        projected = self.raw(images) @ self.projector
        q = [row / torch.sqrt((row**2).sum()) for row in projected]
        members: dict[int, list[Tensor]] = {}
        for row in q:
            members.setdefault(int((self.prototypes @ row.detach()).argmax()), []).append(row)
        self.present = len(members)
        means = {label: sum(rows) / len(rows) for label, rows in members.items()}
        loss = torch.zeros((), dtype=torch.float64) + 0 * sum(row.sum() for row in q)
        if self.loss == "tent":
            loss = plain.measure_entropies(self.ent_scale * torch.stack(q)).mean()
        elif self.loss == "mint" and len(means) > 1:
            whole = sum(q) / len(q)
            for label, rows in members.items():
                loss = loss + sum(((row - means[label]) ** 2).sum() - ((row - whole) ** 2).sum() for row in rows) / len(
                    q
                )
        elif self.loss == "batclip" and len(means) > 1:
            units = [mean / torch.sqrt((mean**2).sum()) for mean in means.values()]
            cosines = [units[i] @ units[j] for i in range(len(units)) for j in range(i)]
            loss = sum(cosines) / len(cosines)
        self.descend(list(torch.autograd.grad(loss, self.leaves)))
        return loss.item()

    def descend(self, gradients: list[Tensor]) -> None:
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient
        self.optim.step()

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        several = len(images) > 1
        event: dict[str, Any] = {"stepped": several and (self.momentum > 0 or self.loss != "source")}
        if several and self.momentum > 0:
            event["alignment"] = self.align(images)
        if several and self.loss != "source":
            event["loss"] = self.separate(images)
        return self.score(images).detach(), event | {"drift": self.drift}


SPECS: list[dict[str, Any]] = [
    {},
    {"rank": 4, "momentum": 0.5, "optimizer": "adam", "lr": 5e-3},
    {"loss": "batclip", "rank": 6, "lr": 3e-3},
    {"loss": "tent", "ent_scale": 3.0, "rank": 5},
    {"loss": "source", "rank": 3, "drop_first": False},
    {"momentum": 0.0, "rank": 5},
]


def follow(
    spec: dict[str, Any], sizes: int | list[int] = 12, images: Tensor | None = None, atol: float = 1e-10
) -> tuple[Any, Reference]:
    images = plain.make_problem()[2] if images is None else images
    method, reference = lmr.create("subtta", plain.make_method("zeroshot").classifier, **spec), Reference(**spec)
    for batch in images.split(sizes):
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=atol, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=atol)
        torch.testing.assert_close(method.state["covariance"][0], reference.covariance, atol=atol, rtol=0)
        plain.compare_norms(method, reference)
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=atol, rtol=0)
    return method, reference


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    method, reference = follow(spec, [12, 12, 1, 15, 12, 7])
    assert reference.drift > 1e-3
    steps = 5 * ((spec.get("momentum", 0.1) > 0) + (spec.get("loss") != "source"))
    assert method.state["steps"].tolist() == [steps]  # none on the batch of one image


@pytest.mark.parametrize("loss", ["mint", "batclip"])
def test_images_of_one_class_have_nothing_to_separate(loss: str) -> None:
    near = plain.make_problem()[2][:1] + 1e-3 * plain.make_problem()[2][1:13]
    _, reference = follow({"loss": loss, "rank": 4}, 6, near, 1e-8)  # small gaps of eigenvalues
    assert reference.present == 1


class Squared(nn.Module):
    """A tower whose features are not linear in its last bias, as that of SigLIP."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, images: Tensor) -> Tensor:
        return self.tower(images) ** 2


def test_last_bias_takes_no_step_of_the_alignment() -> None:
    tower, prototypes, images = plain.make_problem()
    spec = "subtta(loss='source', rank=4, weight_decay=0.0)"
    method = lmr.create(spec, lmr.ZeroShot(Squared(tower), prototypes, 100.0))
    method.step(images[:12])
    moved = method.state["norms"][0] - method.bank.start  # type: ignore[attr-defined]
    last = method.bank.norms[-1].bias  # type: ignore[attr-defined]
    assert moved.any()
    assert not moved[last].any()


def test_two_classes_keep_their_only_direction() -> None:
    torch.manual_seed(0)
    clip = lmr.ZeroShot(book.Tower(), torch.randn(2, 10))
    kept, dropped = (lmr.create(f"subtta(drop_first={drop})", clip) for drop in (False, True))
    images = torch.randn(6, 3, 6)
    assert torch.equal(kept.step(images).logits, dropped.step(images).logits)
    assert dropped.state["norms"].ne(dropped.bank.start).any()  # type: ignore[attr-defined]
