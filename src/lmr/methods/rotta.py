"""RoTTA (Yuan et al. 2023): a student learns from a memory of balanced, recent images, and a slow teacher answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.functional.by_stream import choose_rows
from lmr.core.functional.timely_memory import MemoryEntry, MemoryRules, find_timely_place, weigh_age
from lmr.core.gradient import NormMethod
from lmr.core.log import LOGGER
from lmr.core.method import COUNTS, Mix, Prediction, Preset, Ranges
from lmr.core.optim import Optimizer
from lmr.core.registry import register
from lmr.core.traits import Passes
from lmr.core.views.jitter import jitter
from lmr.core.views.view_maker import seed_generator

_SOURCE = "BIT-DA/RoTTA: CIFAR-10-C and CIFAR-100-C"
_PORT = "mariodoebler/test-time-adaptation, with RoTTA's own values"
_NOBODY = -1  # the label of a free place


@register("rotta")
class RoTTA(NormMethod):
    """A memory balanced over the teacher's labels; after every ``every`` images one step of the student on all of it.

    The teacher labels a batch and answers it, before any step of this batch. Then the images enter the memory one by
    one (``find_timely_place``), and where the count of the stream is a multiple of ``every``, also inside a batch, the
    student takes a step of Adam on the mean of w CE(teacher(x), student(A(x))) over the memory, w falling with age, and
    the teacher follows: teacher + ``nu`` (student - teacher). With 0.001 it moves little; that is as published.

    A is the authors' augmentation (``lmr.core.views.jitter``), drawn from ``seed`` and the number of the update. It
    needs pictures and a classifier that knows how they were scaled; without, images are not augmented, and the log
    tells that. ``method.augment = f`` gives another: ``f(images, number)``. In towers with BatchNorm the
    authors also replace its statistics; here only LayerNorms adapt. The state holds ``memory`` images.
    """

    source = "Yuan et al. 2023"
    year = 2023
    label = "RoTTA"
    many_streams = True
    keeps_images = True
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE),
        "cifar10-c": Preset({}, _PORT + ": CIFAR", batch_size=200),
        "cifar100-c": Preset({}, _PORT + ": CIFAR", batch_size=200),
        "imagenet": Preset({}, _PORT + ": ImageNet-C"),
    }

    lr: float = 1e-3
    memory: int = 64  # images
    every: int = 64  # images between two steps
    nu: float = 1e-3  # how fast the teacher follows
    age: float = 1.0  # weight of age, in the choice of what leaves the memory
    uncertainty: float = 1.0  # weight of uncertainty
    seed: int = 0  # of the augmentation

    def __post_init__(self) -> None:
        self.augment: Callable[[Tensor, int], Tensor] | None = None
        super().__post_init__()

    def prepare(self) -> None:
        self._require_not_negative("lr", "nu", "age", "uncertainty")
        self._require_count("memory", "every", most=10**6)
        self.shape = self.classifier.require_shape(self.name)
        super().prepare()
        self.optim = Optimizer("adam", self.lr)
        self.rules = MemoryRules(self.memory, self.classifier.classes, self.age, self.uncertainty)
        self._told = False

    def begin(self, streams: int) -> dict[str, Tensor]:
        """The teacher (``norms``), the student and its moments, the memory, and how many images were seen."""
        state = super().begin(streams)
        counts = state["steps"].unsqueeze(1).repeat(1, self.memory)
        images = torch.zeros((streams, self.memory, *self.shape), dtype=self.classifier.dtype, device=counts.device)
        uncertainty = self.classifier.prototypes.new_zeros(streams, self.memory)
        state |= {"images": images, "label": counts + _NOBODY, "uncertainty": uncertainty, "age": counts}
        return state | {"student": state["norms"].clone(), "seen": state["steps"].clone()}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {"label": (_NOBODY, self.classifier.classes - 1), "uncertainty": (-1e-3, None), "age": COUNTS}
        own |= {"seen": COUNTS, "student": (-self.bank.limit, self.bank.limit)}
        return super().ranges(state) | own

    @property
    def cycle(self) -> int:
        return self.every

    def saturate(self, images: Tensor) -> None:
        places = torch.arange(self.memory, device=images.device)  # all taken, by as many classes as there can be
        self.state["images"][:] = images[places % len(images)]
        self.state["label"][:] = places % self.classifier.classes

    def count_passes(self, learning: float = 1.0) -> Passes:
        """With a full memory, on average over the images between two steps."""
        step = self.memory / self.every
        return Passes(forwards=1 + 2 * step, backwards=step)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old = self.take(mix, *(key for key in self.state if key not in ("images", "predicted")))
        with torch.no_grad():
            logits = self.classifier.logits(self.image_cosines(images, old["norms"], mix.index))
            p = logits.softmax(1)
            doubt = -(p * (p + 1e-6).log()).sum(1)  # a little below 0 for a certain answer
        found = []
        for k, stream in enumerate(mix.active.tolist()):
            own = ((mix.index == k) & logits.isfinite().all(1)).nonzero()[:, 0].tolist()
            news = [(number, MemoryEntry(int(p[number].argmax()), float(doubt[number]), 0)) for number in own]
            row = {key: value[k : k + 1] for key, value in old.items()}
            found.append(self._follow_stream(images, news, row, self.state["images"][stream]))
        rows, entered, updates = zip(*found, strict=True)
        new = {key: torch.cat([row[key] for row in rows]) for key in old}
        sound = self.find_sound(new)
        self.put({key: choose_rows(sound, value, old[key]) for key, value in new.items()}, mix)
        for stream, places, usable in zip(mix.active.tolist(), entered, sound.tolist(), strict=True):
            for place, number in places.items() if usable else ():
                self.state["images"][stream, place] = images[number]
        taken = torch.tensor(updates, device=images.device) * sound
        held = (self.take(mix, "label")["label"] != _NOBODY).sum(1)
        report = {"held": held, "updates": taken, "stepped": taken > 0, "drift": self.drift(mix)}
        return Prediction(logits, self.summarise(report, mix))

    def _follow_stream(
        self, images: Tensor, news: list[tuple[int, MemoryEntry]], row: dict[str, Tensor], stored: Tensor
    ) -> tuple[dict[str, Tensor], dict[int, int], int]:
        """A stream's row [1, ...] after its images; which of them are now in which place; how many steps there were."""
        known = zip(*(row[key][0].tolist() for key in ("label", "uncertainty", "age")), strict=True)
        held = [MemoryEntry(*values) for values in known if values[0] != _NOBODY]
        places: dict[int, int] = {}
        seen, updates = int(row["seen"]), 0
        for number, new in news:
            place = find_timely_place(held, new, self.rules)
            if place is not None:
                held[place : place + 1] = [new]
                places[place] = number
            held = [entry._replace(age=entry.age + 1) for entry in held]
            seen += 1
            if seen % self.every == 0 and held:
                kept = torch.stack([images[places[k]] if k in places else stored[k] for k in range(len(held))])
                row |= self._learn(kept, [weigh_age(entry.age, self.memory) for entry in held], row, seen // self.every)
                updates += 1
        padded = [*held, *[MemoryEntry(_NOBODY, 0.0, 0)] * (self.memory - len(held))]
        memory = {key: row[key].new_tensor([[getattr(e, key) for e in padded]]) for key in MemoryEntry._fields}
        return row | memory | {"seen": torch.full_like(row["seen"], seen)}, places, updates

    def _learn(self, kept: Tensor, weights: list[float], row: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        """Student, moments and teacher [1, P] after one step on the images of the memory."""
        alone = Mix(torch.zeros_like(row["steps"]), torch.zeros(len(kept), dtype=torch.int64, device=kept.device))
        with torch.no_grad():
            target = self.classifier.logits(self.image_cosines(kept, row["norms"], alone.index)).softmax(1)
        weight = target.new_tensor(weights)

        def loss(features: Tensor, _: int) -> Tensor:
            logs = self.classifier.logits(self.classifier.cosines(features)).log_softmax(1)
            return -(weight * (target * logs).sum(1)).mean()

        gradient, *_ = self.differentiate(self._change(kept, number), alone, row["student"], loss)
        student, moments = self.optim.step(row["student"], gradient, row)
        return {"student": student, **moments, "norms": (1 - self.nu) * row["norms"] + self.nu * student}

    def _change(self, images: Tensor, number: int) -> Tensor:
        """The images of the memory as the student sees them at the update of this number."""
        if self.augment is not None:
            return self.augment(images, number)  # given by the user
        scale = self.classifier.pixels
        if scale is None or len(self.shape) != 3 or self.shape[0] != 3:
            if not self._told:
                LOGGER.warning("rotta does not augment: the classifier's images are not pictures of a known scale.")
            self._told = True
            return images
        return scale.from_pixels(255 * jitter(scale.to_shares(images), seed_generator(self.seed, number)))
