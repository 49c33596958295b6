"""``lmr demo``: the effect of adaptation on streams of photographs."""

from __future__ import annotations

import argparse
import tomllib
from importlib import resources
from pathlib import Path

DESCRIPTION = """\
Show what test-time adaptation does. The small model that comes with lmr answers streams of corrupted photographs, first
without adaptation, then with each method. Prints tables with 95 % intervals, and writes figures of the running
accuracy and every number with its protocol. It takes two to five minutes on two cores.

The photographs come with lmr too: 2,000 images of the test set of CIFAR-10. 'lmr bench photo' runs more corruptions."""

EXAMPLES = """\
examples:
  lmr demo
  lmr demo --images 500 --out short-demo"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr demo``; the default of --images is that of its plan."""
    text = resources.files("lmr.bench").joinpath("plans", "demo.toml").read_text("utf-8")
    plan = tomllib.loads(text)  # as text: the reader of plans is slow to import
    add = parser.add_argument
    add("--images", type=int, default=plan["images"], metavar="N", help="images per stream, 2000 at most (default: "
        "%(default)s)")  # fmt: skip
    add("--out", default="lmr-demo", metavar="FOLDER", help="where the files are written (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    """Run the demonstration."""
    from lmr.apps.demo import run_demo

    run_demo(Path(options.out), options.images)
