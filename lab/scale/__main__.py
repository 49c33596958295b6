"""Plan the capacity of a service: ``python -m lab.scale``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path

from lab.command import build_parser, run_command
from lab.scale.capacity import work_out
from lab.scale.options import ScaleOptions
from lab.scale.report import compare, describe_capacity, draw_loads, measure_loads, to_values
from lab.scale.simulation import SimulationPlan, rescale, simulate
from lmr.core.errors import LmrError
from lmr.core.progress import show_progress

DESCRIPTION = """\
Calculate how many machines a number of streams needs, and which resource breaks first. Operations, states and the bytes
of a commit are counted or measured, for any model by the name of its architecture; no weights are needed. The values of
a machine are assumptions: give those of yours.

The calculation is deterministic. --simulate checks it: the scheduler of the service, on a simulated clock, serves the
requests of up to 100,000 streams that a consistent hash sends to replicas, one on each accelerator. Step, commit and
reading take the times of the calculation."""

EXAMPLES = """\
examples:
  python -m lab.scale --streams 1e6 --fps 0.2 --model ViT-B-16 --gpu-tflops 400
  python -m lab.scale --streams 1e6 --fps 0.2 --model ViT-B-16 --gpu-tflops 400 --durability interval --simulate
  python -m lab.scale --streams 500 --fps 1 --model photo --gpu-tflops 0.1 --gpus-per-machine 1 --classes 10 --simulate
  python -m lab.scale --streams 1e5 --fps 1 --model ViT-L-14 --gpu-tflops 400 --method tent --json
  python -m lab.scale --streams 1e6 --fps 0.2 --model ViT-B-16 --gpu-tflops 400 --figure latency.png"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = build_parser("scale", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--streams", type=_read_count, required=True, metavar="N", help="streams, such as cameras; 1e6 is a million")
    add("--fps", type=float, required=True, metavar="X", help="images per second of each stream")
    add("--model", required=True, metavar="NAME", help="an architecture such as ViT-B-16, or photo or pocket, which "
        "come with lmr")  # fmt: skip
    add("--gpu-tflops", type=float, required=True, metavar="X", help="TFLOP/s that an accelerator reaches at most, in "
        "the precision that is used")  # fmt: skip
    add("--classes", type=_read_count, metavar="N", help="classes (default: %(default)s)")
    add("--method", metavar="SPEC", help='such as lmr or "lmr(share=0.25)" (default: %(default)s)')
    add("--watch", choices=("on", "off"), help="count the memory of a watch of every stream "
        "(default: %(default)s; the table shows it)")  # fmt: skip
    add("--json", action="store_true", help="print every number as JSON")
    add = parser.add_argument_group("the service").add_argument
    add("--images-per-request", type=_read_count, metavar="N", help="images of a request, which make one "
        "step and one commit (default: %(default)s)")  # fmt: skip
    add("--durability", choices=("answer", "interval"), help="as in 'lmr serve': commit before "
        "every answer, or in intervals (default: %(default)s)")  # fmt: skip
    add("--interval", type=float, metavar="S", help="seconds between commits with --durability interval "
        "(default: %(default)g)")  # fmt: skip
    add("--max-batch", type=_read_count, metavar="N", help="images in a batch at most (default: "
        "%(default)s)")  # fmt: skip
    add("--max-step-ms", type=float, metavar="MS", help="the longest step (default: %(default)g)")
    add("--max-wait-ms", type=float, metavar="MS", help="time that an idle replica waits for more requests "
        "(default: %(default)g)")  # fmt: skip
    add("--virtual-nodes", type=_read_count, metavar="N", help="places of a replica on the hash ring; "
        "more make replicas more equal (default: %(default)s, as Ray Serve has)")  # fmt: skip
    add = parser.add_argument_group("assumptions about machines and traffic").add_argument
    add("--utilisation", type=float, metavar="X", help="share of --gpu-tflops that a step reaches "
        "(default: %(default)g)")  # fmt: skip
    add("--learning", type=float, metavar="X", help="share of the images that pass the method's gate and "
        "need the backward (default: %(default)g)")  # fmt: skip
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
        "calculated for them (default: %(default)s)")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="the same seed gives the same numbers (default: %(default)s)")
    add("--arrivals", choices=("regular", "poisson"), default="regular", help="each stream sends at equal distances, "
        "or at random (default: %(default)s)")  # fmt: skip
    add("--rows", type=_read_count, metavar="N", help="states that a replica keeps in memory, to see the cost of fewer "
        "(default: what --memory-gb holds)")  # fmt: skip
    add("--starved-s", type=float, default=1.0, metavar="S", help="a stream that waits longer for a batch is counted "
        "as starved (default: %(default)g)")  # fmt: skip
    add("--figure", metavar="FILE.png", help="simulate one replica at ten loads and draw its latency")
    parser.set_defaults(**{item.name: item.default for item in fields(ScaleOptions) if item.default is not MISSING})
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Calculate, simulate if requested, and print; return the exit code."""
    return run_command(make_parser(), run, argv)


def _read_count(text: str) -> int:
    """Return a whole number, also from 1e6."""
    try:
        value = float(text)
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number such as 1000 or 1e6, got {text}")


def run(options: argparse.Namespace) -> None:
    """Calculate, simulate if requested, and print."""
    chosen = ScaleOptions(**{item.name: getattr(options, item.name) for item in fields(ScaleOptions)})
    plan = SimulationPlan(
        streams=options.simulate_streams,
        seconds=options.seconds,
        seed=options.seed,
        arrivals=options.arrivals,
        starved_seconds=options.starved_s,
        rows=options.rows,
    )
    print(run_scale(chosen, plan, simulated=options.simulate, figure=options.figure, as_json=options.json))


def run_scale(
    options: ScaleOptions,
    plan: SimulationPlan,
    *,
    simulated: bool = False,
    figure: str | None = None,
    as_json: bool = False,
) -> str:
    """Return the text of the calculation and, if requested, of the simulation; ``figure`` is a file to write."""
    if figure is not None and Path(figure).suffix not in (".png", ".svg"):
        raise LmrError(f"Expected a figure that ends in .png or .svg, got {figure!r}.")
    capacity = work_out(options)
    parts, result = [describe_capacity(capacity)], None
    if simulated:
        small = rescale(capacity, plan.streams)
        total = round(small.options.requests_per_second * plan.seconds)
        with show_progress("simulated", total, "requests") as bar:
            result = simulate(small, plan, bar)
        parts.append(compare(small, plan, result))
    if figure is not None:
        drawing = draw_loads(measure_loads(capacity, plan), f"{options.model}, durability {options.durability}")
        target = Path(figure)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(drawing.png if target.suffix == ".png" else drawing.svg.encode())
        parts.append(f"Figure: {figure}")
    if as_json:
        return json.dumps(to_values(capacity, plan if simulated else None, result), indent=1)
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
