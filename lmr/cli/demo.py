"""``lmr demo``: see what adaptation does."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Show what test-time adaptation does. The small model that comes with lmr answers streams of corrupted images, first
without adaptation, then with each method. Prints a table and writes a figure of the running accuracy, a contact sheet
of the images, and every number with its protocol."""

EXAMPLES = """\
examples:
  lmr demo
  lmr demo --images 10000 --severity 3 --out long-demo"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr demo``."""
    add = parser.add_argument
    add("--images", type=int, default=1280, metavar="N", help="images per stream (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="images per adaptation step (default: %(default)s)")
    add("--severity", type=int, default=5, metavar="1..5", help="severity of the corruptions (default: %(default)s)")
    add("--out", default="lmr-demo", metavar="FOLDER", help="where the files are written (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    """Run the demonstration."""
    from lmr.apps.demo import run_demo

    run_demo(Path(options.out), options.images, options.batch_size, options.severity)
