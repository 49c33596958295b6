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
from lmr.methods.steady import BLOCK, CLEAR, FAR, LOOK, MEMORY, NEAR, PATIENCE, STEP, VARIANCES

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
        self.counted = [0.0] * self.classes  # labels of quiet images
        self.labels = [0.0] * self.classes  # labels of a domain that is not judged yet
        self.last: list[float] | None = None
        self.recent, self.key, self.quiet = ([0.0] * len(VARIANCES) for _ in range(3))
        self.looked = self.clarity = 0.0
        self.usual: float | None = None  # clarity on quiet images
        self.log: list[tuple[int, str]] = []
        self.passed = False  # the gate, by the last image that was learnt from
        self.slack = math.inf  # how near a decision came to its border
        self.clear_block()
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
        self.age = 0.0
        self.clear_sums()

    def clear_sums(self) -> None:
        self.gradient = [torch.zeros_like(t) for t in self.parameters]
        self.weight = self.fresh = 0.0
        self.gained = [0.0] * self.classes
        self.answers = [0.0] * self.classes

    def clear_block(self) -> None:
        self.block_new = self.block_clarity = 0.0
        self.block_signs = [0.0] * len(VARIANCES)

    @property
    def looking(self) -> bool:
        return self.looked < LOOK

    def step(self, images: Tensor) -> Tensor:
        return torch.tensor([self.see(image) for image in images], dtype=torch.float64)

    def see(self, image: Tensor) -> list[float]:
        """Answer one image, and learn from it."""
        signs, novelty = describe(image), 1.0
        if self.last is not None:
            parts = [(a - b) ** 2 / (2 * v) for a, b, v in zip(signs, self.last, VARIANCES, strict=True)]
            novelty = min(average(parts), 2.0)
        self.last = signs
        logits = self.learn(image, novelty) if self.adapting else self.score(image[None], self.own)[0].tolist()
        label = max(range(self.classes), key=lambda c: logits[c])
        if self.looking:
            self.labels[label] += novelty
        elif not self.adapting:
            self.counted[label] += novelty
        self.predicted[label] += 1
        self.block_new += novelty
        self.block_clarity += novelty * math.sqrt(vary([logits]))
        self.block_signs = [a + novelty * b for a, b in zip(self.block_signs, signs, strict=True)]
        self.images += 1
        if self.images % BLOCK == 0:
            self.end_block()
        return logits

    def learn(self, image: Tensor, novelty: float) -> list[float]:
        """Add what one image of a drifted stream says to the sums of the next step; return its answer."""
        row = self.learn_margin(image, novelty) if self.selects() else self.score(image[None], self.norms)[0].tolist()
        answer = [value + offset for value, offset in zip(row, self.bias, strict=True)]
        self.fresh += novelty
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
        self.gained[sample.label] += weight
        return row

    def end_block(self) -> None:
        """Eight images of the stream are over: perhaps take a step, and judge the domain."""
        if self.adapting:
            self.take_step()
        new = self.block_new
        clarity = self.block_clarity / new if new else 0.0
        signs = [value / new if new else 0.0 for value in self.block_signs]
        self.clear_block()
        if self.looking:
            self.look(new, clarity, signs)
            return
        self.recent = mix(self.recent, signs, new / LOOK)
        if not self.adapting:
            self.counted = [(1 - new / MEMORY) * count for count in self.counted]
            assert self.usual is not None
            self.usual += new / MEMORY * (clarity - self.usual)
        distance = self.measure(self.key)
        self.slack = min(self.slack, abs(distance - FAR))
        if distance > FAR:
            self.restart()

    def look(self, new: float, clarity: float, signs: list[float]) -> None:
        self.looked += new
        part = new / self.looked if new else 0.0
        self.key = mix(self.key, signs, part)
        self.recent = self.key
        self.clarity += part * (clarity - self.clarity)
        self.slack = min(self.slack, abs(self.looked - LOOK))
        if not self.looking and not self.given:
            self.conclude()

    def take_step(self) -> None:
        enough = max(float(STEP), self.age / PATIENCE)
        self.slack = min(self.slack, abs(self.fresh - enough))
        if self.fresh < enough:
            return
        if self.weight > 0:
            self.update([g / (self.weight + self.eps) for g in self.gradient])
        if not self.given:
            pseudo = 8 / self.classes
            self.shares = [(count + pseudo) / (sum(self.counted) + 8) for count in self.counted]
        self.drive([value / self.fresh for value in self.answers], self.mu)
        self.mass = [a + b for a, b in zip(self.mass, self.gained, strict=True)]
        self.clear_sums()

    def measure(self, key: Sequence[float]) -> float:
        """The distance of recent images from a key: that of the statistic which is farthest."""
        return max((a - b) ** 2 / v for a, b, v in zip(self.recent, key, VARIANCES, strict=True))

    def restart(self) -> None:
        """The domain has changed."""
        back = self.adapting and self.usual is not None and self.measure(self.quiet) < NEAR
        self.begin_domain()
        self.adapting = self.given
        self.labels = [0.0] * self.classes
        self.clarity = 0.0
        if back:
            self.key = self.quiet
        else:
            self.looked, self.key = 0.0, [0.0] * len(VARIANCES)
        self.log.append((self.images, "back" if back else "changed"))

    def conclude(self) -> None:
        """The frozen model has seen enough of a new domain: is it quiet?"""
        usual = self.usual or 0.0
        self.slack = min(self.slack, abs(self.clarity - CLEAR * usual))
        if self.clarity >= CLEAR * usual:
            clearer = CLEAR * self.clarity > usual
            self.counted = [a + (0.0 if clearer else b) for a, b in zip(self.labels, self.counted, strict=True)]
            self.quiet, self.usual = self.key, self.clarity
            self.log.append((self.images, "clearer" if clearer else "quiet"))
        else:
            self.adapting = True
            self.log.append((self.images, "drifted"))
        self.labels = [0.0] * self.classes
