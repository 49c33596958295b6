"""``lmr fetch``: get datasets, or check one."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Download datasets, verify their checksums and unpack them; an interrupted download resumes. Where a licence or a login
is needed, the steps to take by hand are printed. You need not fetch corrupted sets: lmr makes them
from clean images while it reads them."""

EXAMPLES = """\
examples:
  lmr fetch                                    list the datasets
  lmr fetch cifar10-c
  lmr fetch cifar10 cifar100                   one after the other
  lmr fetch imagenet --check ~/imagenet/val    is this folder complete and correct?"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr fetch``."""
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="datasets; without a name, all are listed")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add("--check", metavar="DIR", help="fetch nothing; check that DIR holds the complete and correct dataset")


def run(options: argparse.Namespace) -> str | None:
    """List, check or fetch datasets; return a complaint about one that is not complete."""
    from lmr.core.errors import LmrError
    from lmr.data.dataset import find_root
    from lmr.data.fetch.check import report_check
    from lmr.data.fetch.fetch import fetch_set, find_source
    from lmr.data.fetch.sources import SOURCES

    if options.check and len(options.names) != 1:
        raise LmrError("A folder is checked for one dataset: lmr fetch NAME --check DIR.")
    if not options.names:
        for name, source in SOURCES.items():
            print(f"{name:<18}{source.about}")
        return None
    sources = {name: find_source(name) for name in options.names}  # all names are known before anything is fetched
    if options.check:
        return report_check(options.names[0], Path(options.check).expanduser())
    root = find_root(options.root)
    complaints: list[str] = []
    for name, source in sources.items():
        if source.archives:
            fetch_set(name, root, print)
        else:
            print(source.by_hand.format(root=root))
            print(f"\nCheck of what is in {root} now:")
            complaints += [complaint for complaint in [report_check(name, root)] if complaint]
    return " ".join(complaints) or None
