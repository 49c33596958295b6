"""``lmr watch-trials``: what a watch notices, how soon, and what it costs."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """\
Try the watch of lmr.watch on streams that make a method collapse (a rate ten times too high, one class for a long time,
noise instead of images, a sudden change of corruption) and on healthy ones (steady, long runs of one class, a change).
Each stream is answered by the frozen model, by the method alone, by the watched method and by the method that is
reset every N steps. The table gives accuracies in %, the steps from the onset of the trouble until it was noticed and
until something was done, the steps after which the stream is never again a point below zero-shot (plain, watched and
reset), and the numbers of alarms and rollbacks, which must be 0 where the stream is healthy; a line below the table
sums those up. Give the same command again to resume it."""

EXAMPLES = """\
examples:
  lmr watch-trials --steps 200                              a short form, on drawings
  lmr watch-trials --steps 10000                            the long one: false alarms in 10,000 healthy steps
  lmr watch-trials --data photo-c --model photo --seed 2    confirm thresholds on photographs
  lmr watch-trials --watch "watch(drift=0.1)"               other thresholds
  lmr watch-trials --watch report --traces signals          the signals of every step where nothing intervenes"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr watch-trials``."""
    add = parser.add_argument
    add("trials", nargs="*", metavar="NAME", help="trials to run (default: all)")
    add("--data", default="pocket-c", metavar="NAME", help="a corrupted dataset (default: %(default)s)")
    add("--model", default="pocket", metavar="MODEL", help="the model (default: %(default)s)")
    add("--steps", type=int, default=400, metavar="N", help="steps of each stream (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="images per step (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="seed of the streams (default: %(default)s)")
    add("--reset-every", type=int, default=100, metavar="N", help="steps of the simplest guard (default: %(default)s)")
    add("--watch", default="on", metavar="SPEC", help='the watch, as in "watch(every=8)" (default: %(default)s)')
    add("--out", default="watch-trials.jsonl", metavar="FILE", help="the results so far (default: %(default)s)")
    add("--traces", metavar="DIR", help="where the signals of every step go, a CSV file for each trial")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")


def run(options: argparse.Namespace) -> str | None:
    """Run the trials and print the table."""
    from lab.watch_trials.trial_run import TrialSettings, run_trials
    from lab.watch_trials.trial_table import format_results
    from lmr.watch.watch_settings import read_watch

    settings = read_watch(options.watch)
    if settings is None or min(options.steps, options.batch_size) < 1:
        return "Give a watch other than off, and at least one step and one image per step."
    shared = TrialSettings(
        options.data, options.model, options.steps, options.batch_size, options.seed, options.reset_every, settings
    )

    def say(words: str) -> None:
        print(f"lmr: {words}", file=sys.stderr)

    results = run_trials(shared, options.out, options.trials, options.root, say, options.traces)
    print(format_results(results))
    return None
