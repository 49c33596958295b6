"""``python -m lab.text_cost``: time and memory saved by two exact savings of methods that encode all prompts."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.command import build_parser, run_command
from lab.cost.steps import estimate_prompt
from lmr.bench.machine import call_fresh, measure_peak
from lmr.bench.table import format_table
from lmr.cli.shared_options import add_fields
from lmr.core.errors import LmrError
from lmr.core.functional.losses import bimodal_loss
from lmr.core.norms import NormBank
from lmr.core.progress import ProgressBar, show_progress
from lmr.core.text import TextSide, differentiate_towers
from lmr.models.towers.block import fold_activations
from lmr.models.towers.text import TextConfig, TextTower

DESCRIPTION = """\
Measure the gradient of a loss on all class prompts to the norms of a text tower of ViT-B/16's size, with random
weights: with prompts of the full context in one graph (plain), with prompts cut to the longest (cut), with the full
context in chunks (chunked), and with both. Seconds are medians of alternating rounds in one process. Memory is how far
the peak of a separate process rises above the loaded model."""

EXAMPLES = """\
examples:
  python -m lab.text_cost --small                                             seconds, to see the table
  python -m lab.text_cost --classes 128 --chunk 32 --rounds 3 --threads 2"""


class Variant(NamedTuple):
    """The two savings, each on or off."""

    cut: bool  # prompts cut to the longest of the set, not padded to the full context
    chunked: bool  # encoded in chunks, not in one graph


VARIANTS = {
    "plain": Variant(cut=False, chunked=False),
    "cut": Variant(cut=True, chunked=False),
    "chunked": Variant(cut=False, chunked=True),
    "both": Variant(cut=True, chunked=True),
}


@dataclass(frozen=True)
class TextSizes:
    """The sizes that are measured; the defaults are ViT-B/16's text tower and ImageNet's classes."""

    classes: int = 1000  # classes, each with one prompt (default: 1000; small: 100)
    batch_size: int = 64  # images per batch (default: 64; small: 16)
    chunk: int = 128  # prompts per chunk (default: 128; small: 10)
    context: int = 77  # tokens of a full prompt (default: 77)
    longest: int = 16  # tokens of the longest prompt (default: 16)
    width: int = 512  # width of the tower (default: 512; small: 64)
    depth: int = 12  # blocks of the tower (default: 12; small: 2)
    heads: int = 8  # attention heads (default: 8; small: 2)
    features: int = 512  # features of a prompt (default: 512; small: 32)
    limit_gb: float = 16.0
    """memory that one graph may take, in GB; fewer classes are measured above it (default: 16)"""
    threads: int = 1  # threads of torch (default: 1)

    def __post_init__(self) -> None:
        if min(dataclasses.astuple(self)) <= 0 or self.classes < 2:
            raise LmrError("Expected positive sizes and at least two classes.")
        if not 2 <= self.longest <= self.context:
            raise LmrError(f"Expected a longest prompt of 2 to {self.context} tokens, got {self.longest}.")
        if self.width % self.heads:
            raise LmrError(f"Expected a width that {self.heads} heads divide, got {self.width}.")

    def count_classes(self, variant: str) -> int:
        """Return the number of classes that a variant can encode in one graph within the memory limit."""
        cut, chunked = VARIANTS[variant]
        if chunked:
            return self.classes
        per_class = estimate_prompt(self.longest if cut else self.context, self.depth, self.width)
        return max(2, min(self.classes, int(self.limit_gb * 1e9 / per_class)))


SMALL = TextSizes(classes=100, batch_size=16, chunk=10, width=64, depth=2, heads=2, features=32)


class TextGradient:
    """One text tower, its prompts and image features to compare them with."""

    def __init__(self, sizes: TextSizes) -> None:
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

    def differentiate(self, variant: str, classes: int) -> Tensor:
        """Return the gradient of BATCLIP's objective for the first ``classes`` prompts, computed by the variant."""
        cut, chunked = VARIANTS[variant]
        tokens = self.tokens if cut else F.pad(self.tokens, (0, self.sizes.context - self.sizes.longest))
        text = TextSide(self.tower, lambda tower, part: tower(tokens[part], self.end[part]), classes)
        with self.bank.serve(self.rows):
            if chunked:
                return differentiate_towers(self._compare, lambda: self.images, self.rows, text, self.sizes.chunk)[2]
            return torch.autograd.grad(self._judge(text.prototypes(slice(0, classes))), self.rows)[0]

    def _compare(self, images: Tensor, prototypes: Tensor) -> tuple[Tensor, None]:
        return self._judge(prototypes), None

    def _judge(self, prototypes: Tensor) -> Tensor:
        logits = 100 * F.normalize(self.images, dim=-1) @ prototypes.T
        return bimodal_loss(self.images, prototypes, logits)

    def warm_up(self) -> None:
        """Encode two short prompts, so that libraries load and threads start."""
        for variant in ("cut", "both"):
            self.differentiate(variant, 2)


def measure_memory(sizes: TextSizes, variant: str) -> int | None:
    """Return the bytes by which one gradient raises the peak of a fresh process; None if the system killed it."""
    what = f"the memory of the {variant} gradient"
    return call_fresh(measure_memory_here, what, sizes, variant)


def measure_memory_here(sizes: TextSizes, variant: str) -> int:
    """Measure the same in this process, which should be fresh."""
    gradient = TextGradient(sizes)
    gradient.warm_up()
    return measure_peak(lambda: gradient.differentiate(variant, sizes.count_classes(variant)))


def measure_seconds(
    sizes: TextSizes, rounds: int, bar: ProgressBar
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Return the median seconds per gradient, and its relative difference from the first variant with all classes."""
    text = TextGradient(sizes)
    text.warm_up()
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    apart: dict[str, float | None] = {}
    for turn in range(rounds):
        exact: Tensor | None = None
        for variant in VARIANTS:
            bar.describe(f"round {turn + 1}: {variant}")
            classes = sizes.count_classes(variant)
            started = time.perf_counter()
            gradient = text.differentiate(variant, classes)
            seconds[variant].append(time.perf_counter() - started)
            if classes < sizes.classes:
                apart[variant] = None
            else:
                exact = gradient if exact is None else exact
                apart[variant] = float((gradient - exact).abs().max() / exact.abs().max())
            bar.advance()
    return {variant: statistics.median(times) for variant, times in seconds.items()}, apart


def measure_text_gradient(sizes: TextSizes, rounds: int) -> str:
    """Measure everything and return the table as text. Memory comes first, while this process is still small."""
    if rounds < 1:
        raise LmrError(f"Expected at least one round, got {rounds}.")
    with show_progress("", len(VARIANTS) * (1 + rounds), "gradients") as bar:
        memory = {}
        for variant in VARIANTS:
            bar.describe(f"memory: {variant}")
            memory[variant] = measure_memory(sizes, variant)
            bar.advance()
        seconds, apart = measure_seconds(sizes, rounds, bar)
    return format_costs(sizes, seconds, apart, memory)


def format_costs(
    sizes: TextSizes, seconds: dict[str, float], apart: dict[str, float | None], memory: dict[str, int | None]
) -> str:
    """Return the table as aligned text, with a note for every variant that could not take all classes."""
    lines = [["", "tokens", "at once", "classes", "seconds", "ms/class", "peak MB", "differs"]]
    notes = []
    for variant, (cut, chunked) in VARIANTS.items():
        classes, difference = sizes.count_classes(variant), apart[variant]
        tokens = sizes.longest if cut else sizes.context
        numbers = [str(tokens), str(min(sizes.chunk, classes) if chunked else classes), str(classes)]
        numbers += [f"{seconds[variant]:.3f}", f"{1000 * seconds[variant] / classes:.2f}"]
        peak = memory[variant]
        numbers += ["-" if peak is None else f"{peak / 1e6:.0f}", "-" if difference is None else f"{difference:.0e}"]
        lines.append([variant, *numbers])
        if classes < sizes.classes:
            notes.append(
                f"{variant} took {classes} of {sizes.classes} classes, because all of them would need more than "
                f"{sizes.limit_gb:g} GB: about {sizes.classes / classes:.2f} times the seconds and memory shown."
            )
    head = [
        f"Text tower {sizes.width} wide, {sizes.depth} deep; batch of {sizes.batch_size}; threads: {sizes.threads}",
        "",
    ]
    tail = [
        "",
        "at once: prompts in one graph; differs: largest difference of the gradient, relative to its largest element",
    ]
    return "\n".join([*head, format_table(lines), *tail, *notes])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; return the exit code."""
    parser = build_parser("text_cost", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--small", action="store_true", help="a small tower and few classes: seconds, not minutes")
    add("--rounds", type=int, default=5, metavar="N", help="gradients per variant (default: %(default)s)")
    names = [item.name for item in dataclasses.fields(TextSizes)]
    add_fields(parser, TextSizes, **{name: "X" if name == "limit_gb" else "N" for name in names})
    parser.set_defaults(**dict.fromkeys(names))  # those that are not given follow from --small
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Measure with the sizes that were given and print the table."""
    given = {key: value for key, value in vars(options).items() if hasattr(SMALL, key) and value is not None}
    sizes = dataclasses.replace(SMALL if options.small else TextSizes(), **given)
    print(measure_text_gradient(sizes, options.rounds))


if __name__ == "__main__":
    sys.exit(main())
