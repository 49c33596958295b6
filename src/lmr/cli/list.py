"""``lmr list``: methods and models, and the arguments of a method."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
List the methods, with their publications, and the models. With the name of a method, explain its arguments, with
their defaults and types, and show its presets."""

EXAMPLES = """\
examples:
  lmr list
  lmr list lmr                the arguments of one method explained, and its presets
  lmr list ./mine.py:mine     a method of your own, from a file"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr list``."""
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="a method to describe: NAME, or FILE.py:NAME")


def run(options: argparse.Namespace) -> None:
    """Print the list, or the descriptions of some methods."""
    from lmr.apps.listing import describe_everything, describe_name

    print("\n\n".join(map(describe_name, options.methods)) or describe_everything())
