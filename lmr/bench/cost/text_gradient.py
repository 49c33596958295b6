"""``lmr cost-text``: what two exact savings are worth to methods that encode all prompts at every batch.

A causal text tower of the size of ViT-B/16's (random weights: cost does not depend on them) gives the gradient of
BATCLIP's objective to its norms: with prompts of the full context in one graph (plain), with prompts cut to the longest
(cut), with the full context in chunks (chunked), and with both. Seconds are medians of rounds in which the contenders
take turns in one process; memory is how far the peak of a process of its own rises above the loaded model.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Never

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from lmr.bench.columns import align
from lmr.bench.cost.memory import estimate_prompt, measure_peak
from lmr.core.errors import LmrError
from lmr.core.functional.losses import bimodal_loss
from lmr.core.norms import NormBank
from lmr.core.text import TextSide, differentiate
from lmr.models.clip.block import fold_activations
from lmr.models.clip.text_tower import TextConfig, TextTower

CONTENDERS = {"plain": (False, False), "cut": (True, False), "chunked": (False, True), "both": (True, True)}


@dataclass(frozen=True)
class Sizes:
    """What is measured: the defaults are ViT-B/16's text tower and ImageNet's classes."""

    classes: int = 1000
    batch_size: int = 64
    chunk: int = 128
    context: int = 77
    longest: int = 16
    width: int = 512
    depth: int = 12
    heads: int = 8
    features: int = 512
    limit_gb: float = 16.0
    threads: int = 1

    def __post_init__(self) -> None:
        if min(dataclasses.astuple(self)) <= 0 or self.classes < 2:
            raise LmrError("Expected positive sizes and at least two classes.")
        if not 2 <= self.longest <= self.context:
            raise LmrError(f"Expected a longest prompt of 2 to {self.context} tokens, got {self.longest}.")
        if self.width % self.heads:
            raise LmrError(f"Expected a width that {self.heads} heads divide, got {self.width}.")

    def count_classes(self, contender: str) -> int:
        """How many classes a contender can take without passing the memory limit with its one graph."""
        cut, chunked = CONTENDERS[contender]
        if chunked:
            return self.classes
        per_class = estimate_prompt(self.longest if cut else self.context, self.depth, self.width)
        return max(2, min(self.classes, int(self.limit_gb * 1e9 / per_class)))


SMALL = Sizes(classes=100, batch_size=16, chunk=10, width=64, depth=2, heads=2, features=32)


class Bench:
    """One text tower, its prompts and image features to compare them with."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        torch.set_num_threads(sizes.threads)
        torch.manual_seed(0)
        config = TextConfig(
            context=sizes.context,
            vocabulary=1000,
            width=sizes.width,
            depth=sizes.depth,
            heads=sizes.heads,
            features=sizes.features,
            hidden=4 * sizes.width,
        )
        self.tower = TextTower(config).eval().requires_grad_(False)
        fold_activations(self.tower)
        self.bank = NormBank(self.tower)
        self.rows = self.bank.start.unsqueeze(0).clone().requires_grad_()
        self.images = torch.randn(sizes.batch_size, sizes.features)
        self.tokens = torch.randint(3, config.vocabulary, (sizes.classes, sizes.longest))
        self.end = torch.randint(sizes.longest // 2, sizes.longest, (sizes.classes,))
        self.end[0] = sizes.longest - 1
        self.tokens *= torch.arange(sizes.longest) <= self.end.unsqueeze(1)

    def differentiate(self, contender: str, classes: int) -> Tensor:
        """The gradient of BATCLIP's objective for the first ``classes`` prompts, as the contender computes it."""
        cut, chunked = CONTENDERS[contender]
        tokens = self.tokens if cut else F.pad(self.tokens, (0, self.sizes.context - self.sizes.longest))
        text = TextSide(self.tower, lambda tower, part: tower(tokens[part], self.end[part]), classes)
        with self.bank.serve(self.rows):
            if chunked:
                return differentiate(self._compare, lambda: self.images, self.rows, text, self.sizes.chunk)[2]
            return torch.autograd.grad(self._judge(text.prototypes(slice(0, classes))), self.rows)[0]

    def _compare(self, images: Tensor, prototypes: Tensor) -> tuple[Tensor, None]:
        return self._judge(prototypes), None

    def _judge(self, prototypes: Tensor) -> Tensor:
        logits = 100 * F.normalize(self.images, dim=-1) @ prototypes.T
        return bimodal_loss(self.images, prototypes, logits)

    def warm_up(self) -> None:
        """Two short prompts: libraries load and threads start."""
        for contender in ("cut", "both"):
            self.differentiate(contender, 2)


def measure_memory(sizes: Sizes, contender: str) -> int:
    """Bytes by which one gradient raises the peak of this process above the loaded model; for a fresh process."""
    bench = Bench(sizes)
    bench.warm_up()
    return measure_peak(lambda: bench.differentiate(contender, sizes.count_classes(contender)))


def measure_memory_apart(sizes: Sizes, contender: str) -> int:
    """The same, in a process of its own."""
    given = [f"--{key.replace('_', '-')}={value}" for key, value in dataclasses.asdict(sizes).items()]
    command = [sys.executable, "-m", "lmr", "cost-text", f"--measure={contender}", *given]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure_seconds(sizes: Sizes, rounds: int, bar: tqdm[Never]) -> tuple[dict[str, float], dict[str, float | None]]:
    """Median seconds per gradient, and how far it is from the first contender's that took all classes."""
    bench = Bench(sizes)
    bench.warm_up()
    seconds: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    apart: dict[str, float | None] = {}
    for turn in range(rounds):
        exact: Tensor | None = None
        for contender in CONTENDERS:
            bar.set_description(f"round {turn + 1}: {contender}".ljust(20))
            classes = sizes.count_classes(contender)
            started = time.perf_counter()
            gradient = bench.differentiate(contender, classes)
            seconds[contender].append(time.perf_counter() - started)
            if classes < sizes.classes:
                apart[contender] = None
            else:
                exact = gradient if exact is None else exact
                apart[contender] = float((gradient - exact).abs().max() / exact.abs().max())
            bar.update()
    return {contender: statistics.median(times) for contender, times in seconds.items()}, apart


def run_text_cost(sizes: Sizes, rounds: int) -> str:
    """Measure everything and give the table. Memory comes first: a child's peak starts at its parent's size."""
    if rounds < 1:
        raise LmrError(f"Expected at least one round, got {rounds}.")
    with tqdm(total=len(CONTENDERS) * (1 + rounds), unit="gradient") as bar:
        memory = {}
        for contender in CONTENDERS:
            bar.set_description(f"memory: {contender}".ljust(20))
            memory[contender] = measure_memory_apart(sizes, contender)
            bar.update()
        seconds, apart = measure_seconds(sizes, rounds, bar)
    return format_table(sizes, seconds, apart, memory)


def format_table(
    sizes: Sizes, seconds: dict[str, float], apart: dict[str, float | None], memory: dict[str, int]
) -> str:
    """Aligned text, and a sentence for every contender that could not take all classes."""
    lines = [["", "tokens", "at once", "classes", "seconds", "ms/class", "peak MB", "differs"]]
    notes = []
    for contender, (cut, chunked) in CONTENDERS.items():
        classes, difference = sizes.count_classes(contender), apart[contender]
        tokens = sizes.longest if cut else sizes.context
        numbers = [str(tokens), str(min(sizes.chunk, classes) if chunked else classes), str(classes)]
        numbers += [f"{seconds[contender]:.3f}", f"{1000 * seconds[contender] / classes:.2f}"]
        numbers += [f"{memory[contender] / 1e6:.0f}", "-" if difference is None else f"{difference:.0e}"]
        lines.append([contender, *numbers])
        if classes < sizes.classes:
            notes.append(
                f"{contender} took {classes} of {sizes.classes} classes, as all of them would need more than "
                f"{sizes.limit_gb:g} GB: {sizes.classes / classes:.2f} times the seconds and memory shown."
            )
    head = [
        f"Text tower {sizes.width} wide, {sizes.depth} deep; batch of {sizes.batch_size}; threads: {sizes.threads}",
        "",
    ]
    tail = [
        "",
        "at once: prompts in one graph; differs: largest difference of the gradient, relative to its largest number",
    ]
    return "\n".join([*head, align(lines), *tail, *notes])
