"""DeYO against plain autograd and images cut by loops, whole streams in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain
from lmr.methods.deyo import cover_middle, shuffle_patches
from seeded_streams import check_seed

SCALE = 30.0
PATCHES = 3  # of images [3, 6]


def draw_permutation(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.stack([torch.randperm(PATCHES**2, generator=generator) for _ in range(count)])


def shuffle(image: Tensor, order: list[int]) -> Tensor:
    """An image [H, W] whose patches are moved one by one."""
    high, wide = image.shape[0] // PATCHES, image.shape[1] // PATCHES
    made = torch.empty_like(image)
    for j, source in enumerate(order):
        for row in range(high):
            for column in range(wide):
                from_row, from_column = source // PATCHES * high + row, source % PATCHES * wide + column
                made[j // PATCHES * high + row, j % PATCHES * wide + column] = image[from_row, from_column]
    return made


def cover(image: Tensor) -> Tensor:
    made = image.clone()
    for row in range(image.shape[0] // 4, image.shape[0] // 4 + image.shape[0] // 2):
        for column in range(image.shape[1] // 4, image.shape[1] // 4 + image.shape[1] // 2):
            made[row, column] = image.sum() / image.numel()
    return made


class Reference(plain.NormReference):
    """One stream of DeYO with torch's own optimisers."""

    def __init__(
        self,
        permutation: Tensor,
        lr: float = 1e-3,
        optimizer: str = "sgd",
        nesterov: bool = False,
        margin: float = 0.5,
        weight_margin: float = 0.4,
        plpd: float = 0.2,
        aug: str = "patch",
    ) -> None:
        super().__init__(SCALE)
        self.permutation, self.aug, self.plpd, self.seen = permutation.tolist(), aug, plpd, 0
        self.limit, self.start_weight = margin * math.log(plain.CLASSES), weight_margin * math.log(plain.CLASSES)
        sgd = torch.optim.SGD(self.leaves, lr=lr, momentum=0.9, nesterov=nesterov)
        self.optimizer = sgd if optimizer == "sgd" else torch.optim.Adam(self.leaves, lr=lr)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        logits = self.score(images)
        entropies = plain.measure_entropies(logits)
        p = logits.detach().softmax(1)
        certain = [i for i in range(len(images)) if entropies[i] < self.limit]
        terms = []
        for i in certain:
            order = self.permutation[self.seen + i]
            changed = shuffle(images[i], order) if self.aug == "patch" else cover(images[i])
            after = self.score(changed.unsqueeze(0)).detach().softmax(1)[0]
            label = int(p[i].argmax())
            drop = float(p[i, label] - after[label])
            if drop > self.plpd:
                weight = math.exp(self.start_weight - entropies[i].item()) + math.exp(drop)
                terms.append(weight * entropies[i])
        self.seen += len(images)
        loss = sum(terms) / len(terms) if terms else torch.zeros(())
        if terms:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        event = {"certain": len(certain), "chosen": len(terms), "loss": loss.item(), "stepped": bool(terms)}
        return logits.detach(), event | {"drift": self.drift}


def make_method(spec: str) -> Any:
    return lmr.create(f"deyo({spec}patches={PATCHES})", plain.make_method("zeroshot", SCALE).classifier)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"lr": 0.02, "nesterov": True},
        {"lr": 0.01, "optimizer": "adam", "margin": 0.7, "weight_margin": 0.6},
        {"plpd": 0.6, "lr": 0.02},
        {"aug": "occ", "plpd": 0.05, "lr": 0.02},
        {"plpd": -1.0, "margin": 1.0, "lr": 0.01},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    _, _, images = plain.make_problem()
    permutation = draw_permutation(len(images))
    method = make_method("".join(f"{key}={value!r}, " for key, value in spec.items()))
    method._order = lambda numbers: permutation[numbers]
    reference, events = Reference(permutation, **spec), []
    for batch in images.split(9):
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        plain.compare_norms(method, reference)
        events.append(event)
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-8, rtol=0)
    assert events[-1]["drift"] > 1e-5
    if spec.get("plpd", 0.2) >= 0:
        assert any(0 < event["chosen"] < event["certain"] < 9 for event in events)


def test_batch_without_a_chosen_sample_does_not_move_by_momentum() -> None:
    _, _, images = plain.make_problem()
    permutation = draw_permutation(27)
    permutation[9:18] = torch.arange(PATCHES**2)  # nothing is destroyed, so nothing is lost
    method, reference = make_method("lr=0.002, "), Reference(permutation, lr=0.002)
    method._order = lambda numbers: permutation[numbers]
    drifts = []
    for batch in images[:27].split(9):
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        drifts.append(answer.info["drift"])
        assert answer.info["stepped"] == event["stepped"]
    assert 0 < drifts[0] == drifts[1] != drifts[2]


def test_order_of_patches_is_drawn_from_the_seed_and_the_number_of_the_image(tmp_path: Path) -> None:
    check_seed("deyo(lr=0.1, patches=8, plpd=-1.0, margin=1.0", 9, tmp_path)


def test_patches_of_pictures_change_places() -> None:
    images = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)
    order = torch.tensor([[3, 2, 1, 0], [0, 1, 2, 3]])
    turned = shuffle_patches(images, order, 2)
    assert torch.equal(turned[0, :, :2, :3], images[0, :, 2:, 3:])
    assert torch.equal(turned[0, :, :2, 3:], images[0, :, 2:, :3])
    assert torch.equal(turned[1], images[1])


def test_side_that_is_no_multiple_is_made_smaller_and_large_again() -> None:
    image = torch.rand(1, 3, 9, 11, generator=torch.Generator().manual_seed(0))
    small = torch.nn.functional.interpolate(image, (8, 8), mode="bilinear")
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1)).unsqueeze(0)
    expected = torch.nn.functional.interpolate(shuffle_patches(small, order, 4), (9, 11), mode="bilinear")
    torch.testing.assert_close(shuffle_patches(image, order, 4), expected)


def test_square_in_the_middle_has_the_mean_colour() -> None:
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    covered = cover_middle(images)
    assert torch.equal(covered[:, :, 2:6, 2:6], images.mean((2, 3), keepdim=True).expand(2, 3, 4, 4))
    assert int((covered != images).sum()) == 2 * 3 * 16


def test_images_that_are_too_small_get_a_sentence() -> None:
    method = plain.make_method("deyo(patches=4, margin=1.0)", SCALE)
    with pytest.raises(lmr.LmrError, match="patches"):
        method.step(plain.make_problem()[2][:4])
