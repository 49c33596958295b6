"""``python -m lab.cost``: the time and memory of a step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.command import build_parser, run_command

DESCRIPTION = """\
Measure what a step of each method costs on this machine: milliseconds per image, peak memory above the loaded model
(each in a separate process), the parameters that it adapts, and the time in plain forward passes. For comparison,
straightforward loops on transformers, with autograd and torch.optim, are measured too.

The cost does not depend on the values of the weights, so --random needs no download. Run nothing else meanwhile."""

EXAMPLES = """\
examples:
  python -m lab.cost --random small --batch-size 4 --classes 20             see what the table looks like
  python -m lab.cost --random ViT-B-16 --batch-size 64 --methods lmr tent
  python -m lab.cost photo --batch-size 64 --methods all
  python -m lab.cost --random ViT-B-16 --streams 16 --methods lmr
  python -m lab.cost --random ViT-B-16 --batch-size 8 --engines             the forward beside onnxruntime and others
  python -m lab.cost --random ViT-B-16 --against ../other/checkout          LMR, TENT and MINT of two checkouts"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and return the exit code."""
    return run_command(make_parser(), run, argv)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``python -m lab.cost``."""
    parser = build_parser("cost", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="the model, as lmr.load takes it; or give --random")
    add("--random", metavar="NAME", help="random weights in the sizes of ViT-B-16, ViT-B-32, ViT-L-14, or small")
    add("--methods", nargs="+", metavar="SPEC", help='such as lmr, "tent(lr=1e-3)", ./mine.py:mine, all or paper')
    add("--batch-size", type=int, default=16, metavar="N", help="images per step (default: %(default)s)")
    add("--streams", type=int, default=1, metavar="N", help="streams that share a batch (default: %(default)s)")
    add("--classes", type=int, default=1000, metavar="N", help="classes (default: %(default)s)")
    add("--rounds", type=int, default=3, metavar="N", help="measured steps of each entry (default: %(default)s)")
    add("--threads", type=int, metavar="N", help="threads of torch (default: all cores)")
    add("--no-memory", dest="memory", action="store_false", help="leave out peak memory and its processes")
    add("--no-plain", dest="plain", action="store_false", help="leave out the loops on transformers")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="type of the image tower (default: "
        "%(default)s)")  # fmt: skip
    add("--engines", action="store_true", help="compare the forward with torch.compile, onnxruntime and openvino (pip "
        "install openvino), with int8 too, and their answers")  # fmt: skip
    add("--against", type=Path, metavar="FOLDER", help="compare with another checkout of this repository: the "
        "model is then ViT-B-16 or photo")  # fmt: skip
    add("--cpu-time", action="store_true", help="measure processor time: for a busy machine, with --threads 1")
    return parser


def run(options: argparse.Namespace) -> None:
    """Measure and print the table."""
    from lab.cost.against import compare
    from lab.cost.engines import compare_engines
    from lab.cost.measure import METHODS, CostRequest, measure_cost
    from lab.cost.model import ModelSource
    from lmr.bench.machine import count_cores

    source, threads = ModelSource(options.model, options.random, options.dtype), options.threads or count_cores()
    if options.against is not None:
        kind, model = "cpu" if options.cpu_time else "wall", str(options.model or options.random)
        print(compare(options.against, model, options.batch_size, options.rounds, threads, kind))
        return
    names = ("batch_size", "streams", "classes", "rounds", "memory", "plain", "cpu_time")
    shared = {name: getattr(options, name) for name in names}
    request = CostRequest(source, tuple(options.methods or METHODS), threads=threads, **shared)
    print(compare_engines(request) if options.engines else measure_cost(request))


if __name__ == "__main__":
    sys.exit(main())
