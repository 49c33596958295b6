"""``lmr scale``: how many machines a number of streams needs."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields

from lab.scale.scale_options import ScaleOptions

DESCRIPTION = """\
Work out how many machines a number of streams needs, and what breaks first. Operations, states and the bytes of a
commit are counted or measured here, for any model by the name of its architecture; no weights are needed. What a
machine has and reaches is an assumption: give the values of yours.

The calculation has no chance in it. --simulate checks it: the scheduler of the service, on a simulated clock, serves
the requests of up to 100,000 streams that a consistent hash sends to replicas, one on each accelerator. Step, commit
and reading take the times of the calculation."""

EXAMPLES = """\
examples:
  lmr scale --streams 1e6 --fps 0.2 --model ViT-B-16 --gpu-tflops 400
  lmr scale --streams 1e6 --fps 0.2 --model ViT-B-16 --gpu-tflops 400 --durability interval --interval 60 --simulate
  lmr scale --streams 500 --fps 1 --model photo --gpu-tflops 0.1 --gpus-per-machine 1 --classes 10 --simulate
  lmr scale --streams 1e5 --fps 1 --model ViT-L-14 --gpu-tflops 400 --method tent --json
  lmr scale --streams 1e6 --fps 0.2 --model ViT-B-16 --gpu-tflops 400 --figure latency.png"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr scale``."""
    add = parser.add_argument
    add("--streams", type=_read_count, required=True, metavar="N", help="streams, such as cameras; 1e6 is a million")
    add("--fps", type=float, required=True, metavar="X", help="images per second of each stream")
    add("--model", required=True, metavar="NAME", help="an architecture such as ViT-B-16, or photo or pocket, which "
        "come with lmr")  # fmt: skip
    add("--gpu-tflops", type=float, required=True, metavar="X", help="TFLOP/s that an accelerator reaches at most, in "
        "the precision that is used")  # fmt: skip
    add("--classes", type=_read_count, metavar="N", help="classes (default: %(default)s)")
    add("--method", metavar="SPEC", help='such as lmr or "lmr(blocks=6)" (default: %(default)s)')
    add("--watch", choices=("on", "off"), help="whether memory holds what a watch keeps of every stream "
        "(default: %(default)s; the table says how much it is)")  # fmt: skip
    add("--json", action="store_true", help="print every number as JSON")
    add = parser.add_argument_group("what the service does").add_argument
    add("--images-per-request", type=_read_count, metavar="N", help="images of a request, which make one "
        "step and one commit (default: %(default)s)")  # fmt: skip
    add("--durability", choices=("answer", "interval"), help="as in 'lmr serve': commit before "
        "every answer, or in intervals (default: %(default)s)")  # fmt: skip
    add("--interval", type=float, metavar="S", help="seconds between commits with --durability interval "
        "(default: %(default)g)")  # fmt: skip
    add("--max-batch", type=_read_count, metavar="N", help="images in a batch at most (default: "
        "%(default)s)")  # fmt: skip
    add("--max-step-ms", type=float, metavar="MS", help="the longest step (default: %(default)g)")
    add("--max-wait-ms", type=float, metavar="MS", help="how long an idle replica waits for more requests "
        "(default: %(default)g)")  # fmt: skip
    add("--virtual-nodes", type=_read_count, metavar="N", help="places of a replica on the hash ring; "
        "more make replicas more equal (default: %(default)s, as Ray Serve has)")  # fmt: skip
    add = parser.add_argument_group("assumptions about machines and traffic").add_argument
    add("--utilisation", type=float, metavar="X", help="share of --gpu-tflops that a step reaches "
        "(default: %(default)g)")  # fmt: skip
    add("--learning", type=float, metavar="X", help="share of the images that pass the method's gate and "
        "take the backward (default: %(default)g, the most)")  # fmt: skip
    add("--overhead-ms", type=float, metavar="MS", help="fixed time of a step (default: %(default)g)")
    add("--load", type=float, metavar="X", help="share of each resource that is planned to be used; the "
        "rest is for chance and for unequal replicas (default: %(default)g)")  # fmt: skip
    add("--gpus-per-machine", type=_read_count, metavar="N", help="accelerators, each with a replica "
        "(default: %(default)s)")  # fmt: skip
    add("--disk-mb-s", type=float, metavar="X", help="MB that the disk of a machine writes in a second "
        "(default: %(default)g)")  # fmt: skip
    add("--commit-ms", type=float, metavar="MS", help="fixed time of a commit (default: %(default)g)")
    add("--network-gbit", type=float, metavar="X", help="Gbit/s of a machine in each direction (default: "
        "%(default)g)")  # fmt: skip
    add("--memory-gb", type=float, metavar="X", help="memory of an accelerator that is left for the "
        "states of streams (default: %(default)g)")  # fmt: skip
    add("--image-kb", type=float, metavar="X", help="kB of an image file (default: %(default)g)")
    add("--answer-kb", type=float, metavar="X", help="kB of an answer (default: %(default)g)")
    add = parser.add_argument_group("the simulation").add_argument
    add("--simulate", action="store_true", help="simulate the plan, and compare")
    add("--seconds", type=float, default=60.0, metavar="S", help="simulated time (default: %(default)g)")
    add("--simulate-streams", type=_read_count, default=100_000, metavar="N", help="streams at most; the plan is "
        "worked out for as many (default: %(default)s)")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="the same seed gives the same numbers (default: %(default)s)")
    add("--arrivals", choices=("regular", "poisson"), default="regular", help="each stream sends at equal distances, "
        "or at random (default: %(default)s)")  # fmt: skip
    add("--rows", type=_read_count, metavar="N", help="states that a replica keeps in memory, to see what fewer cost "
        "(default: what --memory-gb holds)")  # fmt: skip
    add("--starved-s", type=float, default=1.0, metavar="S", help="a stream that waits longer for a batch is counted "
        "as starved (default: %(default)g)")  # fmt: skip
    add("--figure", metavar="FILE.png", help="simulate one replica at ten loads and draw its latency")
    parser.set_defaults(**{item.name: item.default for item in fields(ScaleOptions) if item.default is not MISSING})


def _read_count(word: str) -> int:
    """A whole number, also as 1e6."""
    try:
        value = float(word)
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number such as 1000 or 1e6, got {word}")


def run(options: argparse.Namespace) -> str | None:
    """Work it out, simulate it if asked, and print."""
    from lab.scale.scale_run import run_scale

    given = vars(options).copy()
    del given["run"]
    print(run_scale(**given))
    return None
