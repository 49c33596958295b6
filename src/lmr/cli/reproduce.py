"""``lmr reproduce``: run a table of the paper and compare."""

from __future__ import annotations

import argparse
import sys

from lmr.bench.plans.choices import FOLDER
from lmr.cli.shared_options import collect_options
from lmr.core.extras import require
from lmr.report.published import list_table_names

DESCRIPTION = """\
Run a table of the paper with its exact settings, report it, and compare every row with the published numbers, within a
stated tolerance. Needs the table's dataset (lmr fetch) and model. --quick is a shorter form of a table for machines
without a GPU: it estimates the time first, and shows the published numbers beside its own without a verdict."""

EXAMPLES = """\
examples:
  lmr reproduce cifar10-c --root ~/data
  lmr reproduce cifar10-c --quick --dry-run     how long six methods on five corruptions would take here
  lmr reproduce cifar10-c --quick               run them: OpenAI's ViT-B/32, 1,000 images, no dataset needed
  lmr reproduce imagenet-c-cupl --prompts CuPL_image_prompts.json

exit codes: 0 every row is reproduced (with --quick: every run is finished), 1 a row is not (a run failed), 2 it cannot
be run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr reproduce``."""
    add = parser.add_argument
    add("table", metavar="TABLE", help=f"one of: {', '.join(list_table_names())}")
    add("--out", default=FOLDER, metavar="RUNS", help="where rows and samples are written (default: %(default)s)")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add("--workers", type=int, metavar="N", help="processes that share the cores (default: as in lmr bench)")
    add("--quick", action="store_true", help="for cifar10-c: a short form without a verdict, at most an hour on four "
        "cores, estimated from its arithmetic")  # fmt: skip
    add("--dry-run", action="store_true", help="estimate the time on this machine from a few measured "
        "passes, and run nothing")  # fmt: skip
    add("--prompts", nargs="+", metavar="FILE", help="for imagenet-c-cupl: the file of CuPL's prompts")


def run(options: argparse.Namespace) -> str | None:
    """Run, report and judge the table; return what is wrong, or None."""
    require("pandas", "bench", "A report")
    from lmr.apps.reproduce import Reproduction, reproduce, reproduce_quickly
    from lmr.report.formats import print_text
    from lmr.report.verdicts import list_missed

    job = Reproduction(folder=options.out, **collect_options(options, "out", "dry_run"))
    if options.dry_run:
        print_text(job.estimate(lambda message: print(f"lmr: {message}", file=sys.stderr)))
        return None
    if options.quick:
        failures = reproduce_quickly(job).failures
        return f"{len(failures)} runs failed." if failures else None
    missed = list_missed(reproduce(job))
    return f"Not reproduced: {', '.join(missed)}." if missed else None
