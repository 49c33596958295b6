"""``lmr reproduce``: run a table of the paper and compare."""

from __future__ import annotations

import argparse

from lmr.bench.plans.choices import FOLDER
from lmr.report.paper.paper_file import list_table_names

DESCRIPTION = """\
Run a table of the paper with its exact settings, report it, and compare every row with the published numbers within a
stated tolerance. Needs the table's dataset (lmr fetch) and model."""

EXAMPLES = """\
examples:
  lmr reproduce cifar10-c --root ~/data
  lmr reproduce imagenet-c-cupl --prompts CuPL_image_prompts.json

exit codes: 0 every row is reproduced, 1 a row is not, 2 it cannot be run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr reproduce``."""
    add = parser.add_argument
    add("table", metavar="TABLE", help=f"one of: {', '.join(list_table_names())}")
    add("--out", default=FOLDER, metavar="RUNS", help="where rows and samples are written (default: %(default)s)")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add("--workers", type=int, metavar="N", help="processes that share the cores (default: as in lmr bench)")
    add("--prompts", nargs="+", metavar="FILE", help="for imagenet-c-cupl: the file of CuPL's prompts")


def run(options: argparse.Namespace) -> str | None:
    """Run, report and judge the table; what is returned is a complaint."""
    from lmr.apps.reproduce import reproduce
    from lmr.report.paper.verdicts import list_missed

    judgements = reproduce(
        options.table, options.out, workers=options.workers, root=options.root, prompts=options.prompts
    )
    missed = list_missed(judgements)
    return f"Not reproduced: {', '.join(missed)}." if missed else None
