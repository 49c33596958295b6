"""Steady once more, slowly: one stream in float64, image by image, in plain Python; nothing of the library but numbers.

Written from the docstring of the method. Margins, Adam and the bias are those of the reference of LMR. The constants
are read from the method, so that the rules stay comparable when a constant changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

import lmr_reference as book
from lmr.methods.steady import ALARM, ALLOWED, BLOCK, FAR, LOOK, MEMORY, PATIENCE, STEP, VARIANCES

Plane = list[list[float]]


def average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def vary(plane: Plane) -> float:
    values = [value for row in plane for value in row]
    mean = average(values)
    return average([(value - mean) ** 2 for value in values])


def roughen(plane: Plane) -> float:
    """The mean square difference of neighbours in a row, plus that of neighbours in a column."""
    rows = [(row[x + 1] - row[x]) ** 2 for row in plane for x in range(len(row) - 1)]
    columns = [(plane[y + 1][x] - plane[y][x]) ** 2 for y in range(len(plane) - 1) for x in range(len(plane[0]))]
    return average(rows) + average(columns)


def bend(plane: Plane) -> float:
    """The mean square of four times a pixel less its neighbours above, below, left and right."""
    return average(
        [
            (4 * plane[y][x] - plane[y - 1][x] - plane[y + 1][x] - plane[y][x - 1] - plane[y][x + 1]) ** 2
            for y in range(1, len(plane) - 1)
            for x in range(1, len(plane[0]) - 1)
        ]
    )


def halve(plane: Plane) -> Plane:
    """Means of 2 x 2 pixels; of what there is at odd ends."""
    height, width = len(plane), len(plane[0])
    return [
        [
            average([plane[i][j] for i in range(y, min(y + 2, height)) for j in range(x, min(x + 2, width))])
            for x in range(0, width, 2)
        ]
        for y in range(0, height, 2)
    ]


def describe(image: Tensor) -> list[float]:
    """The nine pixel statistics of one image [channels, H, W]."""
    channels = image.double().tolist()
    places = [(y, x) for y in range(image.shape[1]) for x in range(image.shape[2])]

    def combine(*weights: float) -> Plane:
        plane = [[0.0] * image.shape[2] for _ in range(image.shape[1])]
        for y, x in places:
            plane[y][x] = sum(w * channel[y][x] for w, channel in zip(weights, channels, strict=True))
        return plane

    grey = combine(*[1 / len(channels)] * len(channels))
    colour = len(channels) == 3
    first = combine(1.0, -1.0, 0.0) if colour else combine(*[0.0] * len(channels))
    second = combine(0.5, 0.5, -1.0) if colour else first
    contrast, coarse, fine = vary(grey), roughen(halve(grey)), roughen(grey)

    def compare(value: float, other: float) -> float:
        return math.log(value + 1e-5) - math.log(other + 1e-5)

    return [
        *(average([plane[y][x] for y, x in places]) for plane in (grey, first, second)),
        math.log(contrast + 1e-5),
        compare(coarse, contrast),
        compare(fine, coarse),
        compare(bend(grey), fine),
        compare(vary(first) + vary(second), contrast),
        compare(roughen(first), vary(first)),
    ]


def mix(old: Sequence[float], new: Sequence[float], part: float) -> list[float]:
    return [(1 - part) * a + part * b for a, b in zip(old, new, strict=True)]


@dataclass
class SteadyReference(book.Reference):
    """One stream of steady from its first image on. ``log`` tells what was decided after which image."""

    prior: Any = "history"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.own = self.norms  # of the tower, before any step
        self.given = self.prior != "history"
        self.adapting = self.given
        self.looking = False  # is the stream drifted still?
        self.certain = [0.0] * self.classes  # labels of quiet images
        self.doubtful = [0.0] * self.classes  # those seen since there was last no evidence of a fall
        self.clear: list[tuple[float, int, float]] = []  # weight, label and clarity of each quiet image
        self.fall = self.rise = 0.0
        self.onset = self.until = 0  # images up to the last one without evidence; those up to where a second pass knows
        self.last: list[float] | None = None
        self.log: list[tuple[int, str]] = []
        self.passed = False  # the gate, by the last image that was learnt from
        self.slack = math.inf  # how near a decision came to its border
        self.block: list[tuple[float, float, int, list[float]]] = []
        self.begin_domain()

    def read_shares(self) -> list[float]:
        return [] if self.prior == "history" else super().read_shares()

    def begin_domain(self) -> None:
        self.norms, self.steps, self.time = self.own, 0, 0.0
        self.first = [torch.zeros_like(t) for t in self.parameters]
        self.second = [torch.zeros_like(t) for t in self.parameters]
        self.mass = [1 / self.classes] * self.classes
        self.bias = [0.0] * self.classes
        self.running = None
        self.age = self.domain_images = 0.0
        self.recent, self.domain_pixels = ([0.0] * len(VARIANCES) for _ in range(2))
        self.clear_sums()

    def clear_sums(self) -> None:
        self.gradient = [torch.zeros_like(t) for t in self.parameters]
        self.weight = self.pending = 0.0
        self.class_weights = [0.0] * self.classes
        self.answers = [0.0] * self.classes

    def list_block(self) -> list[list[float]]:
        """The images since the last decision, in as many rows as a block has."""
        rows = [[novelty, clarity, float(label), *pixels] for novelty, clarity, label, pixels in self.block]
        return rows + [[0.0] * (3 + len(VARIANCES))] * (BLOCK - len(rows))

    def rewind(self) -> None:
        """Begin a second pass over the images, if the first one ended drifted."""
        if self.adapting and self.onset:
            self.images, self.until, self.adapting, self.last, self.block = 0, self.onset, False, None, []

    def step(self, images: Tensor) -> Tensor:
        return torch.tensor([self.see(image) for image in images], dtype=torch.float64)

    def see(self, image: Tensor) -> list[float]:
        """Answer one image, and learn from it."""
        pixels, novelty = describe(image), 1.0
        if self.last is not None:
            parts = [(a - b) ** 2 / (2 * v) for a, b, v in zip(pixels, self.last, VARIANCES, strict=True)]
            novelty = min(average(parts), 2.0)
        self.last = pixels
        logits = self.learn(image, novelty) if self.adapting else self.score(image[None], self.own)[0].tolist()
        label = max(range(self.classes), key=lambda c: logits[c])
        if not self.adapting and not self.looking:
            self.doubtful[label] += novelty
        self.predicted[label] += 1
        clarity = 0.0 if self.adapting else max(logits) - average(logits)  # of the frozen model's answers alone
        self.block.append((novelty, clarity, 0 if self.adapting else label, pixels))
        self.images += 1
        if self.images % BLOCK == 0:
            self.end_block()
        return logits

    def learn(self, image: Tensor, novelty: float) -> list[float]:
        """Add what one image of a drifted stream says to the sums of the next step; return its answer."""
        row = self.learn_margin(image, novelty) if self.selects() else self.score(image[None], self.norms)[0].tolist()
        answer = [value + offset for value, offset in zip(row, self.bias, strict=True)]
        self.pending += novelty
        self.age += novelty
        self.answers = [a + novelty * p for a, p in zip(self.answers, book.softmax(answer), strict=True)]
        return answer

    def selects(self) -> bool:
        """Whether this image enters the gradient: of the first n images of a stream, the share of n, rounded up."""
        self.passed = False
        share = Fraction(str(self.share))
        counts = [math.ceil(share * n) for n in (self.images, self.images + 1)]
        return counts[0] < counts[1]

    def learn_margin(self, image: Tensor, novelty: float) -> list[float]:
        """Add the gradient, weight and mass of one image to the sums of the next step; return its logits."""
        leaves = [(w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in self.norms]
        logits = self.score(image[None], leaves)
        row = logits[0].tolist()
        sample = self.examine(row)
        self.slack = min(self.slack, sample.slack)
        self.passed = sample.weight > 0
        share = self.mass[sample.label] / (sum(self.mass) + self.eps)
        target = self.gamma0 - self.beta * math.log(self.classes) - self.beta * math.log(share + self.eps)
        weight = sample.weight * novelty
        if sample.margin is not None:
            slopes = self.differentiate([row], [sample], [target]) * (sample.weight + self.eps) * novelty
            pulled = torch.autograd.grad(logits, [t for norm in leaves for t in norm], slopes)
            self.gradient = [a + b for a, b in zip(self.gradient, pulled, strict=True)]
        self.weight += weight
        self.class_weights[sample.label] += weight
        return row

    def end_block(self) -> None:
        """Eight images of the stream are over: perhaps take a step, and judge the domain."""
        block, self.block = self.block, []
        new = math.fsum(novelty for novelty, *_ in block)
        if self.adapting:
            self.take_step()
            self.follow_pixels(block, new)
            return
        self.test_clarity(block, new)
        if self.looking:
            if self.fall > ALARM:
                self.wake("drifted still")
            elif self.fall == 0:
                self.looking = False
                self.begin_domain()
                self.log.append((self.images, "quiet"))
            return
        fade = max(0.0, 1 - new / MEMORY)
        if self.rise > ALARM:  # the images before were bad
            self.rise = fade = 0.0
            self.log.append((self.images, "clearer"))
        self.clear += [(novelty, label, clarity) for novelty, clarity, label, _ in block]
        self.clear = [(weight * fade, label, clarity) for weight, label, clarity in self.clear]
        self.certain, self.doubtful = ([fade * n for n in counts] for counts in (self.certain, self.doubtful))
        told = 0 < self.until == self.images
        if self.fall == 0:
            self.onset = self.images
        if self.fall == 0 and not told:
            self.certain = [a + b for a, b in zip(self.certain, self.doubtful, strict=True)]
            self.doubtful = [0.0] * self.classes
        if self.fall > ALARM or told:
            self.rise, self.doubtful = 0.0, [0.0] * self.classes
            self.wake("drifted")

    def wake(self, word: str) -> None:
        self.adapting, self.looking, self.fall = True, False, 0.0
        self.log.append((self.images, word))

    def test_clarity(self, block: Sequence[tuple[float, float, int, list[float]]], new: float) -> None:
        """Sum up how much less clear new images are than quiet ones of their label, in deviations of quiet ones."""
        weight = math.fsum(w for w, *_ in self.clear)
        self.slack = min(self.slack, abs(weight - LOOK))
        if weight < LOOK:
            self.fall = self.rise = 0.0
            return
        mean = math.fsum(w * clarity for w, _, clarity in self.clear) / weight
        deviation = math.sqrt(math.fsum(w * (clarity - mean) ** 2 for w, _, clarity in self.clear) / weight)
        lower = 0.0
        for novelty, clarity, label, _ in block:
            own = [(w, value) for w, name, value in self.clear if name == label] + [(LOOK, mean)]
            usual = math.fsum(w * value for w, value in own) / math.fsum(w for w, _ in own)
            lower += novelty * (usual - clarity) / deviation
        fall, rise = self.fall + lower - ALLOWED * new, self.rise - lower - ALLOWED * new
        self.fall, self.rise = max(0.0, fall), 0.0 if self.looking else max(0.0, rise)
        borders = [fall - ALARM, rise - ALARM, *([fall] if self.looking else [])]
        self.slack = min(self.slack, *map(abs, borders))

    def follow_pixels(self, block: Sequence[tuple[float, float, int, list[float]]], new: float) -> None:
        """Ask the frozen model again, if the pixels of a drifted stream have changed or it has drifted for long."""
        pixels = [math.fsum(w * row[k] for w, *_, row in block) / (new or 1.0) for k in range(len(VARIANCES))]
        if self.domain_images < LOOK:
            self.domain_images += new
            self.slack = min(self.slack, abs(self.domain_images - LOOK))
            self.domain_pixels = mix(self.domain_pixels, pixels, new / self.domain_images if new else 0.0)
            self.recent, distance = self.domain_pixels, 0.0
        elif 0 < self.until < self.images <= self.until + LOOK:
            self.recent, distance = self.domain_pixels, 0.0
        else:
            self.recent = mix(self.recent, pixels, min(1.0, new / LOOK))
            distance = max((a - b) ** 2 / v for a, b, v in zip(self.recent, self.domain_pixels, VARIANCES, strict=True))
            self.slack = min(self.slack, abs(distance - FAR))
        again = not self.given and int(self.age / MEMORY) > int((self.age - new) / MEMORY)
        if distance > FAR:
            self.begin_domain()
        if distance > FAR or again:
            self.adapting, self.looking, self.fall = self.given, not self.given, 0.0 if self.given else ALARM / 2
            self.log.append((self.images, "changed" if distance > FAR else "asked"))

    def take_step(self) -> None:
        enough = max(float(STEP), self.age / PATIENCE)
        self.slack = min(self.slack, abs(self.pending - enough))
        if self.pending < enough:
            return
        if self.weight > 0:
            self.update([g / (self.weight + self.eps) for g in self.gradient])
        if not self.given:
            pseudo = 8 / self.classes
            self.shares = [(count + pseudo) / (sum(self.certain) + 8) for count in self.certain]
        self.drive([value / self.pending for value in self.answers], self.mu)
        self.mass = [a + b for a, b in zip(self.mass, self.class_weights, strict=True)]
        self.clear_sums()
