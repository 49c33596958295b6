"""``lmr reproduce``: run a table or a figure of the paper and compare."""

from __future__ import annotations

import argparse

from lmr.bench.plans.fields import FOLDER, RunSettings
from lmr.cli.shared_options import add_fields, collect_options
from lmr.core.extras import require
from lmr.report.published import list_figure_names, list_table_names

DESCRIPTION = """\
Run a table of the paper with its exact settings, report it, and compare every row with the published numbers, within a
stated tolerance; or run what a figure needs, and draw it. Needs the dataset (lmr fetch) and the model. Before the runs
begin, the command says what the verdict can be, and it stops if the frozen model is no better than chance. --quick is a
shorter form of a table for machines without a GPU: it shows the published numbers beside its own without a verdict."""

EXAMPLES = """\
examples:
  lmr reproduce cifar10-c --root ~/data
  lmr reproduce cifar10-c --root ~/data --device cuda --model ~/models/clip-vit-base-patch16
  lmr reproduce figure-1a --device cuda         run what a figure needs, and draw it
  lmr reproduce cifar10-c --quick               run them: OpenAI's ViT-B/32, 1,000 images, no dataset needed
  lmr reproduce imagenet-c-cupl --prompts CuPL/imagenet_prompts/CuPL_image_prompts.json

exit codes: 0 every row is reproduced (with --quick: every run is finished), 1 a row is not (a run failed), 2 it cannot
be run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr reproduce``."""
    add = parser.add_argument
    names = ", ".join([*list_table_names(), *list_figure_names()])
    add("table", metavar="NAME", help=f"a table or a figure: {names}")
    add("--out", default=FOLDER, metavar="RUNS", help="where rows and samples are written (default: %(default)s)")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add("--model", metavar="MODEL", help="the paper's model from elsewhere: a hub name, or a folder called "
        "like that of the hub, such as ~/models/clip-vit-base-patch16 (default: from the hub)")  # fmt: skip
    add_fields(parser, RunSettings, device="NAME", dtype=None)
    add("--workers", type=int, metavar="N", help="processes that share the cores (default: as in lmr bench)")
    add("--quick", action="store_true", help="for cifar10-c: a short form without a verdict, at most an hour on four "
        "cores")  # fmt: skip
    add("--prompts", nargs="+", metavar="FILE", help="for imagenet-c-cupl: the file of CuPL's prompts")


def run(options: argparse.Namespace) -> str | None:
    """Run, report and judge the table; return what is wrong, or None."""
    require("pandas", "bench", "A report")
    from lmr.apps.reproduce import Reproduction, reproduce, reproduce_figure, reproduce_quickly
    from lmr.report.verdicts import list_missed

    job = Reproduction(folder=options.out, **collect_options(options, "out"))
    if options.quick or job.figure:
        failures = (reproduce_figure if job.figure else reproduce_quickly)(job).failures
        return f"{len(failures)} runs failed." if failures else None
    missed = list_missed(reproduce(job))
    return f"Not reproduced: {', '.join(missed)}." if missed else None
