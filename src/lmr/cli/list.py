"""``lmr list``: which methods and models there are."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
List the methods (what each does and where it was published) and the models. With the name of a method, show its
arguments with their types and defaults, and its presets."""

EXAMPLES = """\
examples:
  lmr list
  lmr list lmr                the arguments and presets of one method
  lmr list ./mine.py:mine     a method of your own, from a file"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr list``."""
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="a method to describe: NAME, or FILE.py:NAME")


def run(options: argparse.Namespace) -> None:
    """Print the list, or what there is to know about some methods."""
    from lmr.apps.listing import describe_everything, describe_name

    print("\n\n".join(map(describe_name, options.methods)) or describe_everything())
