"""``lmr cost-ray``: what Ray adds to a bench."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """\
Run a plan by turns with two worker processes of this machine and on a Ray cluster of two nodes with one core each,
which is started here for the time of the command. Images per second are counted while all workers are busy; the time
until then is given apart. The rows of both must be the same. Run nothing else
meanwhile. Needs pip install 'lmr[ray]'."""

EXAMPLES = """\
examples:
  lmr cost-ray --images 256 --turns 1                       a short form
  lmr cost-ray photo --root ~/data --images 500 --seeds 1   a part of the plan photo"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr cost-ray``."""
    add = parser.add_argument
    add("plan", nargs="?", default="photo-quick", metavar="PLAN", help="as for lmr bench (default: %(default)s)")
    add("--turns", type=int, default=3, metavar="N", help="benches of each kind (default: %(default)s)")
    add("--images", type=int, metavar="N", help="use the first N images of each stream (default: all)")
    add("--methods", nargs="+", metavar="SPEC", help="in place of the plan's methods")
    add("--seeds", nargs="+", type=int, metavar="N", help="in place of the plan's seeds")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")


def run(options: argparse.Namespace) -> None:
    """Measure and print the table."""
    from lab.ray_cost import measure_overhead
    from lmr.bench.plans.plan import choose_plans

    given = {key: getattr(options, key) for key in ("images", "methods", "seeds")}
    plans = choose_plans([options.plan], {key: value for key, value in given.items() if value is not None})

    def say(words: str) -> None:
        print(f"lmr: {words}", file=sys.stderr)

    print(measure_overhead(plans, options.turns, options.root, say).describe())
