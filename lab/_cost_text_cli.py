"""``lmr cost-text``: what the two savings on the text side are worth."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
Measure the gradient of a loss on all class prompts to the norms of a text tower of ViT-B/16's size, with random
weights: with prompts of the full context in one graph (plain), with prompts cut to the longest (cut), with the full
context in chunks (chunked), and with both. Seconds are medians of alternating rounds in one process. Memory is how far
the peak of a separate process rises above the loaded model."""

EXAMPLES = """\
examples:
  lmr cost-text --small                                             seconds, to see the table
  lmr cost-text --classes 128 --chunk 32 --rounds 3 --threads 2"""

SIZES = {
    "classes": (int, "classes, each with one prompt (default: 1000; small: 100)"),
    "batch_size": (int, "images per batch (default: 64; small: 16)"),
    "chunk": (int, "prompts per chunk (default: 128; small: 10)"),
    "context": (int, "tokens of a full prompt (default: 77)"),
    "longest": (int, "tokens of the longest prompt (default: 16)"),
    "width": (int, "width of the tower (default: 512; small: 64)"),
    "depth": (int, "blocks of the tower (default: 12; small: 2)"),
    "heads": (int, "attention heads (default: 8; small: 2)"),
    "features": (int, "features of a prompt (default: 512; small: 32)"),
    "limit_gb": (float, "memory that one graph may take, in GB; fewer classes are measured above it (default: 16)"),
    "threads": (int, "threads of torch (default: 1)"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr cost-text``."""
    add = parser.add_argument
    add("--small", action="store_true", help="a small tower and few classes: seconds, not minutes")
    add("--rounds", type=int, default=5, metavar="N", help="gradients per variant (default: %(default)s)")
    for name, (kind, text) in SIZES.items():
        add(f"--{name.replace('_', '-')}", type=kind, metavar="N" if kind is int else "X", help=text)


def run(options: argparse.Namespace) -> None:
    """Measure and print the table."""
    from dataclasses import replace

    from lab.text_cost import SMALL, TextSizes, measure_text_gradient

    given = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    sizes = replace(SMALL if options.small else TextSizes(), **given)
    print(measure_text_gradient(sizes, options.rounds))
