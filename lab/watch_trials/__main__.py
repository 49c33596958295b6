"""``python -m lab.watch_trials``: measure what a watch notices, how soon, and what it costs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lab.command import build_parser, run_command

DESCRIPTION = """\
Try the watch of lmr.watch on streams that make a method collapse (a rate ten times too high, one class for a long time,
noise instead of images, a sudden change of corruption), on one where the answers of the published LMR spread (80 % of
the images are of one class), and on healthy ones (steady, long runs of one class, a change).
Each stream is answered by the frozen model, by the method alone, by the watched method and by the method that is
reset every N steps. The table gives accuracies in %, the steps from the onset of the trouble until it was noticed and
until something was done, the steps after which the stream is never again a point below zero-shot (plain, watched and
reset), and the numbers of alarms, with their names, and of rollbacks, which must be 0 where the stream is healthy; a
line below the table sums those up. Give the same command again to resume it."""

EXAMPLES = """\
examples:
  python -m lab.watch_trials --steps 200                              a short form, on drawings
  python -m lab.watch_trials --steps 10000                            the long one: false alarms in 10,000 healthy steps
  python -m lab.watch_trials --data photo-c --model photo --seed 2    confirm thresholds on photographs
  python -m lab.watch_trials majority --data photo-c --model photo --domain clean --dominant 5 --batch-size 8
                                                                      80 % dogs: the answers of LMR spread
  python -m lab.watch_trials --watch "watch(drift=0.1)"               other thresholds
  python -m lab.watch_trials --watch report --traces signals          the signals of every step, without acting"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials and print the table; return the exit code."""
    parser = build_parser("watch_trials", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("trials", nargs="*", metavar="NAME", help="trials to run (default: all)")
    add("--data", dest="dataset", default="pocket-c", metavar="NAME", help="a corrupted dataset (default: %(default)s)")
    add("--model", default="pocket", metavar="MODEL", help="the model (default: %(default)s)")
    add("--steps", type=int, default=400, metavar="N", help="steps of each stream (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="images per step (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="seed of the streams (default: %(default)s)")
    add("--domain", default="fog", metavar="NAME", help="the corruption, or clean (default: %(default)s)")
    add("--dominant", type=int, metavar="CLASS", help="number of the class that dominates (default: from the seed)")
    add("--reset-every", type=int, default=100, metavar="N", help="steps of the simplest guard (default: %(default)s)")
    add("--watch", default="on", metavar="SPEC", help='the watch, as in "watch(every=8)" (default: %(default)s)')
    add("--out", default="watch-trials.jsonl", metavar="FILE", help="the results so far (default: %(default)s)")
    add("--traces", metavar="DIR", help="where the signals of every step go, a CSV file for each trial")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> str | None:
    """Run the trials and print the table."""
    from lab.watch_trials.trials import TrialSettings, format_results, run_trials
    from lmr.cli.shared_options import read_dataclass
    from lmr.watch.settings import read_watch

    settings = read_watch(options.watch)
    if settings is None or min(options.steps, options.batch_size) < 1:
        return "Give a watch other than off, and at least one step and one image per step."
    options.watch = settings
    shared, log = read_dataclass(TrialSettings, options), lambda message: print(message, file=sys.stderr)
    results = run_trials(shared, options.out, options.trials, options.root, log, options.traces)
    print(format_results(results))
    return None


if __name__ == "__main__":
    sys.exit(main())
