"""``lmr fetch``: get datasets."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
Download datasets, verify their checksums and unpack them; an interrupted download resumes. Where a licence or a login
is needed, the steps to take by hand are printed. You need not fetch corrupted sets: lmr makes them
from clean images while it reads them."""

EXAMPLES = """\
examples:
  lmr fetch                                    list the datasets
  lmr fetch cifar10-c
  lmr fetch cifar10 cifar100                   one after the other"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr fetch``."""
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="datasets; without a name, all are listed")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")


def run(options: argparse.Namespace) -> None:
    """List or fetch datasets, or print how to get one by hand."""
    from lmr.data.dataset import find_root
    from lmr.data.fetch.fetch import fetch_set, find_source
    from lmr.data.fetch.sources import SOURCES

    if not options.names:
        for name, source in SOURCES.items():
            print(f"{name:<18}{source.about}")
    sources = {name: find_source(name) for name in options.names}  # all names are known before anything is fetched
    root = find_root(options.root)
    for name, source in sources.items():
        if source.archives:
            fetch_set(name, root, print)
        else:
            print(source.by_hand.format(root=root))
