"""Plan the capacity of a service: ``python -m lab.scale``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.command import build_parser, run_command
from lab.scale.capacity import work_out
from lab.scale.options import ScaleOptions
from lab.scale.report import compare, describe_capacity, draw_loads, measure_loads, to_values
from lab.scale.simulation import SimulationPlan, rescale, simulate
from lmr.cli.shared_options import add_fields, read_dataclass
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
    add_fields(parser, ScaleOptions, streams="N", fps="X", model="NAME", gpu_tflops="X", classes="N", method="SPEC")
    add_fields(parser, ScaleOptions, watch=None)
    parser.add_argument("--json", action="store_true", help="print every number as JSON")
    group = parser.add_argument_group("the service")
    add_fields(group, ScaleOptions, images_per_request="N", durability=None, interval="S", max_batch="N")
    add_fields(group, ScaleOptions, max_step_ms="MS", max_wait_ms="MS", virtual_nodes="N")
    group = parser.add_argument_group("assumptions about machines and traffic")
    add_fields(group, ScaleOptions, utilisation="X", learning="X", overhead_ms="MS", load="X", gpus_per_machine="N")
    add_fields(group, ScaleOptions, disk_mb_s="X", commit_ms="MS", network_gbit="X", memory_gb="X", image_kb="X")
    add_fields(group, ScaleOptions, answer_kb="X")
    group = parser.add_argument_group("the simulation")
    add = group.add_argument
    add("--simulate", action="store_true", help="simulate the plan, and compare")
    add_fields(group, SimulationPlan, seconds="S")
    add("--simulate-streams", type=int, default=SimulationPlan.streams, metavar="N", help="streams at most; the plan "
        "is calculated for them (default: %(default)s)")  # fmt: skip
    add_fields(group, SimulationPlan, seed="N", arrivals=None, rows="N")
    add("--starved-s", type=float, default=SimulationPlan.starved_seconds, metavar="S", help="a stream that waits "
        "longer for a batch is counted as starved (default: %(default)g)")  # fmt: skip
    add("--figure", metavar="FILE.png", help="simulate one replica at ten loads and draw its latency")
    for action in parser._actions:
        action.type = _read_count if action.type is int else action.type
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
    chosen = read_dataclass(ScaleOptions, options)
    plan = SimulationPlan(
        options.simulate_streams, options.seconds, options.seed, options.arrivals, options.starved_s, options.rows
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
