"""RoTTA (Yuan et al. 2023): a student learns from a memory of balanced, recent images, and a slow teacher answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.method import COUNTS, Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams
from lmr.core.views.jitter import Jitter, jitter

_SOURCE = "BIT-DA/RoTTA: CIFAR-10-C and CIFAR-100-C"
_PORT = "mariodoebler/test-time-adaptation, with RoTTA's own values"
_NOBODY = -1  # the label of a free entry


class MemoryEntry(NamedTuple):
    """An image in the memory: the teacher's label, its uncertainty and its age."""

    label: int
    uncertainty: float
    age: int


class MemoryRules(NamedTuple):
    """The size of the memory, the number of classes, and the weights of age and uncertainty in a score."""

    size: int
    classes: int
    age: float
    uncertainty: float

    def score(self, entry: MemoryEntry) -> float:
        """Return a score that is high for old and uncertain entries, which are replaced first."""
        timely = self.age / (1 + math.exp(-entry.age / self.size))
        return timely + self.uncertainty * entry.uncertainty / math.log(self.classes)


def find_timely_place(held: Sequence[MemoryEntry], new: MemoryEntry, rules: MemoryRules) -> int | None:
    """Return the position that a new entry takes: the end of ``held``, that of an entry it replaces, or None.

    A class has a quota of size / classes. Below it the memory may grow; a full one gives up the entry of the highest
    score among the classes that hold most. At its quota a class gives up one of its own. Either goes only if its score
    is above that of the new entry. Of equal scores the last counts, in the order of classes and then of arrival.
    """
    counts = Counter(entry.label for entry in held)
    if counts[new.label] < rules.size / rules.classes:
        if len(held) < rules.size:
            return len(held)
        most = max(counts.values())
        labels = {label for label, count in counts.items() if count == most}
    else:
        labels = {new.label}
    worst = max(
        (place for place, entry in enumerate(held) if entry.label in labels),
        key=lambda place: (rules.score(held[place]), held[place].label, -held[place].age),
    )
    return worst if rules.score(held[worst]) > rules.score(new) else None


def weigh_age(age: int, size: int) -> float:
    """Return the weight of an entry in the loss: a half for a new one, falling with its age."""
    return 1 / (1 + math.exp(age / size))


_CARD = Card(
    label="RoTTA",
    source="Yuan et al. 2023",
    year=2023,
    presets={
        "default": Preset({}, _SOURCE),
        "cifar10-c": Preset({}, _PORT + ": CIFAR", batch_size=200),
        "cifar100-c": Preset({}, _PORT + ": CIFAR", batch_size=200),
        "imagenet": Preset({}, _PORT + ": ImageNet-C"),
    },
)


@register("rotta", _CARD)
class RoTTA(NormMethod):
    """A memory balanced over the teacher's labels; after every ``every`` images one step of the student on all of it.

    The teacher labels a batch and answers it, before any step of this batch. Then the images enter the memory one by
    one (``find_timely_place``), and where the count of the stream is a multiple of ``every``, also inside a batch, the
    student takes a step of Adam on the mean of w CE(teacher(x), student(A(x))) over the memory, w falling with age, and
    the teacher follows: teacher + ``nu`` (student - teacher). With 0.001 it moves little; that is as published.

    A is the authors' augmentation (``lmr.core.views.jitter``), drawn from ``seed`` and the number of the update. It
    needs RGB images and a classifier that knows how they were scaled; otherwise images are not augmented, and a
    warning says so. In towers with BatchNorm the
    authors also replace its statistics; here only LayerNorms adapt. The state holds ``memory`` images.
    """

    classes_reason = "its memory holds numbers of classes"

    lr: float = 1e-3  # learning rate of the student's Adam
    memory: int = 64  # images in the memory
    every: int = 64  # images between two steps
    nu: float = 1e-3  # how fast the teacher follows the student
    age: float = 1.0  # weight of age in the choice of entries that leave the memory
    uncertainty: float = 1.0  # weight of uncertainty in that choice
    seed: int = 0  # seed of the augmentation

    def prepare(self) -> None:
        self._require_not_negative("lr", "nu", "age", "uncertainty")
        self._require_count("memory", "every", most=10**6)
        self.shape = self.classifier.require_shape(self.name)
        super().prepare()
        self.optim = Optimizer("adam", self.lr)
        self.rules = MemoryRules(self.memory, self.classifier.classes, self.age, self.uncertainty)
        self.jitter = Jitter(self.name, self.seed, self.classifier.pixels, jitter)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the teacher (``norms``), the student and its moments, the memory, and the number of images seen."""
        state = super().begin()
        counts = torch.zeros(self.memory, dtype=torch.int64, device=self.classifier.device)
        memory = {
            "images": torch.zeros((self.memory, *self.shape), dtype=self.classifier.dtype, device=counts.device),
            "label": counts + _NOBODY,
            "uncertainty": self.classifier.prototypes.new_zeros(self.memory),
            "age": counts,
        }
        return {**state, **memory, "student": state["norms"], "seen": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {"label": (_NOBODY, self.classifier.classes - 1), "uncertainty": (-1e-3, None), "age": COUNTS}
        own |= {"seen": COUNTS, "student": (-self.bank.limit, self.bank.limit)}
        return super().ranges(state) | own

    @property
    def cycle(self) -> int:
        return self.every

    def fill_state(self, images: Tensor) -> None:
        places = torch.arange(self.memory, device=images.device)  # a full memory with as many classes as possible
        self.state["images"][:] = images[places % len(images)]
        self.state["label"][:] = places % self.classifier.classes

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        with torch.no_grad():
            logits = self.tower.logits(images, state["norms"], streams)
            p = logits.softmax(1)
            uncertainty = -(p * (p + 1e-6).log()).sum(1)  # a little below 0 for a certain answer
        labels, values = p.argmax(1).tolist(), uncertainty.tolist()
        found = []
        for k in range(streams.count):
            own = (streams.index == k).nonzero()[:, 0].tolist()
            entries = [(number, MemoryEntry(labels[number], values[number], 0)) for number in own]
            found.append(self._serve_stream(images, entries, {key: value[k : k + 1] for key, value in state.items()}))
        rows, updates = zip(*found, strict=True)
        new = {key: torch.cat([row[key] for row in rows]) for key in state}
        count = torch.tensor(updates, device=images.device)
        held = (new["label"] != _NOBODY).sum(1)
        return Step(logits, new, {"held": held, "updates": count, "stepped": count > 0})

    def _serve_stream(self, images: Tensor, entries: list[tuple[int, MemoryEntry]], row: State) -> tuple[State, int]:
        """Return a stream's state [1, ...] after its images, and the number of steps taken."""
        known = zip(*(row[key][0].tolist() for key in ("label", "uncertainty", "age")), strict=True)
        held = [MemoryEntry(*values) for values in known if values[0] != _NOBODY]
        row = row | {"images": row["images"].clone()}
        seen, updates = int(row["seen"]), 0
        for number, new in entries:
            place = find_timely_place(held, new, self.rules)
            if place is not None:
                held[place : place + 1] = [new]
                row["images"][0, place] = images[number]
            held = [entry._replace(age=entry.age + 1) for entry in held]
            seen += 1
            if seen % self.every == 0 and held:
                weights = [weigh_age(entry.age, self.memory) for entry in held]
                row |= self._learn(row["images"][0, : len(held)], weights, row, seen // self.every)
                updates += 1
        padded = [*held, *[MemoryEntry(_NOBODY, 0.0, 0)] * (self.memory - len(held))]
        memory = {key: row[key].new_tensor([[getattr(e, key) for e in padded]]) for key in MemoryEntry._fields}
        return row | memory | {"seen": torch.full_like(row["seen"], seen)}, updates

    def _learn(self, kept: Tensor, weights: list[float], row: State, number: int) -> State:
        """Return student, moments and teacher [1, P] after one step on the images of the memory."""
        index = torch.zeros(len(kept), dtype=torch.int64, device=kept.device)
        alone = Streams(index[:1], index)
        with torch.no_grad():
            target = self.tower.logits(kept, row["norms"], alone).softmax(1)
        weight = target.new_tensor(weights)

        def loss(features: Tensor, _: int) -> Tensor:
            logs = self.classifier.logits(self.classifier.cosines(features)).log_softmax(1)
            return -(weight * (target * logs).sum(1)).mean()

        changed = self.jitter(kept, number)
        gradient, *_ = self.tower.differentiate(changed, row["student"], alone, loss)
        student, moments = self.optim.step(row["student"], gradient, row)
        return {"student": student, **moments, "norms": (1 - self.nu) * row["norms"] + self.nu * student}
