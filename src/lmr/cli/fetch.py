"""``lmr fetch``: get datasets, or check one."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Download datasets, verify their checksums and unpack them; an interrupted download resumes. Where a licence or a login
is needed, the steps to take by hand are printed. You need not fetch corrupted sets: lmr makes them
from clean images while it reads them. --make writes them to disk."""

EXAMPLES = """\
examples:
  lmr fetch                                    list the datasets
  lmr fetch cifar10-c
  lmr fetch cifar10 cifar100                   one after the other
  lmr fetch imagenet --check ~/imagenet/val    is this folder complete and correct?
  lmr fetch cifar100-c --make --workers 2      from the clean test set, in the official layout"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr fetch``."""
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="datasets; without a name, all are listed")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add("--check", metavar="DIR", help="fetch nothing; check that DIR holds the complete and correct dataset")
    add("--make", action="store_true", help="fetch nothing; make a corrupted dataset from the clean one, on disk")
    add("--workers", type=int, default=1, metavar="N", help="threads that make images (default: %(default)s)")
    add("--keep", action="store_true", help="keep the archives after they are unpacked")


def run(options: argparse.Namespace) -> str | None:
    """List, check, make or fetch datasets; return a complaint about one that is not complete."""
    from lmr.core.errors import LmrError
    from lmr.data.dataset import find_root
    from lmr.data.fetch.check import report_check
    from lmr.data.fetch.fetch import fetch_set, find_source
    from lmr.data.fetch.make import make_set
    from lmr.data.fetch.sources import SOURCES

    if options.check and options.make:
        raise LmrError("--check only reads and --make writes; give one of them.")
    if not options.names:
        if options.check or options.make:
            raise LmrError(
                f"Give the name of a dataset: lmr fetch NAME {'--check DIR' if options.check else '--make'}."
            )
        for name, source in SOURCES.items():
            print(f"{name:<18}{source.about}")
        return None
    sources = {name: find_source(name) for name in options.names}  # all names are known before anything is fetched
    if options.check:
        if len(sources) > 1:
            raise LmrError(f"A folder is checked for one dataset at a time; got {', '.join(sources)}.")
        return report_check(options.names[0], Path(options.check).expanduser())
    root = find_root(options.root)
    complaints: list[str] = []
    for name, source in sources.items():
        if options.make:
            folder = make_set(name, root, workers=options.workers)
            print(f"The dataset {name!r} is in {folder}; a note there says how it was made.")
        elif source.archives:
            fetch_set(name, root, keep=options.keep, report=print)
        else:
            print(source.by_hand.format(root=root))
            print(f"\nCheck of what is in {root} now:")
            complaints += [complaint for complaint in [report_check(name, root)] if complaint]
    return " ".join(complaints) or None
