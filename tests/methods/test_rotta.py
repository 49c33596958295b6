"""RoTTA against lists of images, torch's own Adam and an explicit teacher, whole streams in float64."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain
from seeded_streams import check_seed

SCALE = 20.0


def change(images: Tensor, number: int) -> Tensor:
    """An augmentation that can be repeated: it depends on the number of the update."""
    return images + 0.2 * torch.sin(3 * images + number)


class Reference(plain.NormReference):
    """One stream. The memory is a list per class of [image, uncertainty, age], as in the authors' code."""

    def __init__(
        self,
        lr: float = 1e-3,
        memory: int = 64,
        every: int = 64,
        nu: float = 1e-3,
        age: float = 1.0,
        uncertainty: float = 1.0,
    ) -> None:
        super().__init__(SCALE)
        self.size, self.every, self.nu, self.weights = memory, every, nu, (age, uncertainty)
        self.teacher = [leaf.clone() for leaf in self.start]
        self.memory: list[list[list[Any]]] = [[] for _ in range(plain.CLASSES)]
        self.optimizer = torch.optim.Adam(self.leaves, lr=lr)
        self.seen = self.updates = 0
        self.events: set[str] = set()

    def score_item(self, uncertainty: float, age: int) -> float:
        timely, doubtful = self.weights
        return timely / (1 + math.exp(-age / self.size)) + doubtful * uncertainty / math.log(plain.CLASSES)

    def make_room(self, labels: list[int], new: float) -> bool:
        worst, found = -math.inf, (0, 0)
        for label in labels:
            for place, (_, uncertainty, age) in enumerate(self.memory[label]):
                if self.score_item(uncertainty, age) >= worst:
                    worst, found = self.score_item(uncertainty, age), (label, place)
        if worst > new:
            self.memory[found[0]].pop(found[1])
            return True
        return False

    def enter(self, image: Tensor, label: int, uncertainty: float) -> None:
        counts = [len(own) for own in self.memory]
        new = self.score_item(uncertainty, 0)
        if counts[label] < self.size / plain.CLASSES:
            if sum(counts) < self.size:
                fits, event = True, "grew"
            else:
                labels = [c for c, count in enumerate(counts) if count == max(counts)]
                fits, event = self.make_room(labels, new), "took from the largest"
        else:
            fits, event = self.make_room([label], new), "took from its own"
        if fits:
            self.memory[label].append([image, uncertainty, 0])
        self.events.add(event if fits else event + " in vain")
        for own in self.memory:
            for item in own:
                item[2] += 1

    def learn(self) -> None:
        items = [item for own in self.memory for item in own]
        self.updates += 1
        images = torch.stack([item[0] for item in items])
        with torch.no_grad():
            target = self.score(images, self.teacher).softmax(1)
        changed = change(images, self.seen // self.every)
        logs = self.score(changed).log_softmax(1)
        weights = [math.exp(-age / self.size) / (1 + math.exp(-age / self.size)) for _, _, age in items]
        loss = -sum(w * (target[i] * logs[i]).sum() for i, w in enumerate(weights)) / len(items)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        pairs = zip(self.teacher, self.leaves, strict=True)
        self.teacher = [(1 - self.nu) * old + self.nu * leaf.detach() for old, leaf in pairs]

    def step(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.score(images, self.teacher)
        p = logits.softmax(1)
        doubt = -(p * torch.log(p + 1e-6)).sum(1)
        for image, label, uncertainty in zip(images, p.argmax(1).tolist(), doubt.tolist(), strict=True):
            self.enter(image, label, uncertainty)
            self.seen += 1
            if self.seen % self.every == 0:
                self.learn()
        return logits


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"memory": 15, "every": 7, "nu": 0.3, "lr": 0.01}, 10),
        ({"memory": 8, "every": 5, "nu": 0.1, "age": 0.2}, 13),
        ({"memory": 20, "every": 8, "nu": 0.5, "uncertainty": 0.1}, 8),
        ({"memory": 30, "every": 4, "nu": 0.2}, 1),
        ({}, 20),
    ],
    ids=str,
)
def test_stream_is_that_of_the_reference(spec: dict[str, Any], size: int) -> None:
    _, _, images = plain.make_problem(count=85)
    method, reference = plain.make_method("zeroshot", SCALE), Reference(**spec)
    method = lmr.create("rotta", method.classifier, **spec)
    method.jitter = change
    updates = 0
    for batch in images.split(size):
        expected = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        updates += answer.info["updates"]
        torch.testing.assert_close(method.state["student"][0], reference.flat, atol=1e-8, rtol=0)
        teacher = torch.cat([leaf.detach() for leaf in reference.teacher])
        torch.testing.assert_close(method.state["norms"][0], teacher, atol=1e-8, rtol=0)
        assert answer.info["held"] == sum(map(len, reference.memory))
        compare_memories(method, reference)
    assert updates == reference.updates == 85 // spec.get("every", 64) > 0
    if spec.get("memory") == 8:
        kinds = {"grew", "took from the largest", "took from its own"}
        assert kinds <= reference.events
        assert any("in vain" in event for event in reference.events)
    torch.testing.assert_close(
        method.predict(images).logits, reference.score(images, reference.teacher).detach(), atol=1e-8, rtol=0
    )


def compare_memories(method: lmr.Method, reference: Reference) -> None:
    """The same images with the same ages and uncertainties, whatever their places."""
    labels, ages = method.state["label"][0].tolist(), method.state["age"][0].tolist()
    held = {age: place for place, age in enumerate(ages) if labels[place] >= 0}
    items = {item[2]: (label, item) for label, own in enumerate(reference.memory) for item in own}
    assert held.keys() == items.keys()
    for age, (label, (image, uncertainty, _)) in items.items():
        assert labels[held[age]] == label
        assert torch.equal(method.state["images"][0, held[age]], image)
        assert method.state["uncertainty"][0, held[age]].item() == pytest.approx(uncertainty, abs=1e-9)


def test_augmentation_is_drawn_from_the_seed_and_the_update(tmp_path: Path) -> None:
    check_seed("rotta(memory=6, every=6, nu=0.5, lr=0.01", 9, tmp_path)


def test_inputs_other_than_rgb_images_are_not_augmented_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    _, _, images = plain.make_problem()
    method, given = (plain.make_method("rotta(every=5, memory=12, nu=0.5)", SCALE) for _ in range(2))
    given.jitter = lambda images, number: images
    with caplog.at_level(logging.WARNING, "lmr"):
        for batch in images.split(10):
            assert torch.equal(method.step(batch).logits, given.step(batch).logits)
    assert [record.message for record in caplog.records] == [
        "rotta does not augment: the classifier's inputs are not RGB images of a known scale."
    ]
