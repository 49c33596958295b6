"""``lmr fetch``, ``bench``, ``report`` and ``reproduce``: data, runs, tables, and the numbers of the paper again."""

from __future__ import annotations

import argparse

from lmr.apps.reproduce import add_reproduce_options, run_reproduce
from lmr.bench.options import add_bench_options, run_bench_command
from lmr.cli.options import Subparsers, add_command
from lmr.core.errors import LmrError
from lmr.data.fetch.fetching import add_fetch_options, run_fetch
from lmr.report.report import add_report_options, run_report

_FETCH = """\
Download a dataset with checksum and resume, or say what to do by hand where a licence or a login stands before it.
Corrupted sets need not be fetched: from clean pictures they are made on the fly, or to disk with --make."""

_FETCH_EXAMPLES = """\
examples:
  lmr fetch                                    what there is
  lmr fetch cifar10-c
  lmr fetch imagenet --check ~/imagenet/val    is this folder what it should be?
  lmr fetch cifar100-c --make --workers 2      from the clean test set, in the official layout"""

_BENCH = """\
Run methods on streams of pictures and keep every number with the protocol that made it. A plan says what: methods,
datasets, corruptions, severities, models, prompts, batch sizes, seeds. A run that was killed goes on where it was, a
finished one is skipped, a failed one stops no other."""

_BENCH_EXAMPLES = """\
examples:
  lmr bench --list                                   the plans that come with lmr
  lmr bench pocket                                   nine methods, 15 corruptions, no download
  lmr bench 'pocket*'                                the ablations too: all that the figures need
  lmr bench cifar10-c --root ~/data --workers 2      a table of the paper
  lmr bench pocket --methods lmr --seeds 1 2 3       a plan with other values
  lmr bench --methods lmr "tent(lr=1e-3)" --datasets folder:photos --backbones ViT-B-16"""

_REPORT = """\
Make tables (terminal, Markdown, LaTeX, csv), the paper's figures (PNG, SVG) and one page without network of what lmr
bench has run, with the published value beside each number where there is one, and where the protocol differs."""

_REPORT_EXAMPLES = """\
examples:
  lmr report
  lmr report my-runs more-runs --out report"""

_REPRODUCE = """\
Run a table of the paper with its exact settings, report it, and judge every row against the published numbers within
a stated tolerance. Needs the table's data (lmr fetch) and model."""

_REPRODUCE_EXAMPLES = """\
examples:
  lmr reproduce cifar10-c --root ~/data
  lmr reproduce imagenet-c-cupl --prompts CuPL_image_prompts.json"""


def add_bench(subparsers: Subparsers) -> None:
    """The four commands and their options."""
    commands = (
        ("fetch", "get a dataset, or see whether one is whole", _FETCH, _FETCH_EXAMPLES),
        ("bench", "run methods on benchmarks, resumably", _BENCH, _BENCH_EXAMPLES),
        ("report", "tables, figures and a page of what was run", _REPORT, _REPORT_EXAMPLES),
        ("reproduce", "run a table of the paper and compare", _REPRODUCE, _REPRODUCE_EXAMPLES),
    )
    options = (add_fetch_options, add_bench_options, add_report_options, add_reproduce_options)
    runs = (_run_fetch, run_bench_command, run_report, run_reproduce)
    for command, add_options, run in zip(commands, options, runs, strict=True):
        parser = add_command(subparsers, *command)
        add_options(parser)
        parser.set_defaults(run=run)


def _run_fetch(options: argparse.Namespace) -> str | None:
    try:
        return run_fetch(options)
    except ValueError as error:
        raise LmrError(str(error)) from error
