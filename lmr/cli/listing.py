"""``lmr list``: which methods and models there are."""

from __future__ import annotations

import argparse

DESCRIPTION = "Show every method with its arguments, defaults and presets, and every model."
EXAMPLES = "example:\n  lmr list"


def add_options(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    from lmr.apps.listing import describe_everything

    print(describe_everything())
