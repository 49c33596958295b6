"""``lmr fetch``: get a set, or say how to get it by hand, and see whether what is there is right."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lmr.data.checks import check_set
from lmr.data.dataset import find_root
from lmr.data.download import download_file
from lmr.data.made import read_note
from lmr.data.making import make_set
from lmr.data.names import read_list
from lmr.data.sources import SOURCES, Archive, Source
from lmr.data.unpack import unpack_archive

Say = Callable[[str], None]


def add_fetch_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr fetch``."""
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(SOURCES)}; without it, what each of them is")
    add("--root", metavar="DIR", help="where sets are kept (default: $LMR_DATA, else ~/.cache/lmr/data)")
    add("--check", metavar="DIR", help="fetch nothing: see whether DIR holds the set, whole and right")
    add("--make", action="store_true", help="fetch nothing: make a corrupted set from the clean one, on disk")
    add("--workers", type=int, default=1, metavar="N", help="processes that make pictures (default: %(default)s)")
    add("--keep", action="store_true", help="keep the archives after they are unpacked")


def run_fetch(options: argparse.Namespace) -> str | None:
    """Do what the options say -> None, or what is wrong with the set. Raises ValueError, a sentence."""
    if options.name is None:
        for name, source in SOURCES.items():
            print(f"{name:<18}{source.about}")
        return None
    source = find_source(options.name)
    if options.check:
        return _report(options.name, Path(options.check).expanduser())
    root = find_root(options.root)
    if options.make:
        folder = make_set(options.name, root, workers=options.workers, show=sys.stderr.isatty())
        print(f"The set {options.name!r} is in {folder}; a note there says that it was made, and how.")
        return None
    if not source.archives:
        print(source.by_hand.format(root=root))
        print(f"\nWhat is in {root} now:")
        return _report(options.name, root)
    fetch_set(options.name, root, keep=options.keep, show=sys.stderr.isatty(), say=print)
    return None


def find_source(name: str) -> Source:
    """The source of a set. Raises ValueError, a sentence."""
    if name in SOURCES:
        return SOURCES[name]
    if name in ("pocket", "pocket-c"):
        raise ValueError("The pocket world is drawn by code and comes with lmr; there is nothing to fetch.")
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"There is no set {name!r} to fetch.{hint} Choose one of: {', '.join(SOURCES)}.")


def fetch_set(name: str, root: Path, *, keep: bool = False, show: bool = False, say: Say = lambda line: None) -> None:
    """Fetch the archives of a set that are not there yet, and unpack them. Raises ValueError, a sentence."""
    source = find_source(name)
    for place in {root / source.folder, *(root / archive.file.partition(".")[0] for archive in source.archives)}:
        if read_note(place):
            raise ValueError(f"The folder {str(place)!r} holds pictures that were made here; move it away first.")
    for archive in source.archives:
        if _is_unpacked(archive, source, root):
            say(f"{archive.file} has been fetched and unpacked before.")
            continue
        path = root / archive.file
        if not path.is_file():
            _check_space(archive, root)
            download_file(archive.urls, path, archive.checksum, size=archive.size, show=show)
        wanted = partial(_is_listed, frozenset(read_list("imagenet_c_5000"))) if source.listed else None
        names = unpack_archive(path, root / source.folder, wanted=wanted, show=show)
        _remember(archive, source, root, names)
        if not keep:
            path.unlink()
    say(f"The set {name!r} is in {root / source.folder}.")


def _is_listed(listed: frozenset[str], member: str) -> bool:
    return "/".join(member.split("/")[-2:]) in listed


def _check_space(archive: Archive, root: Path) -> None:
    """Archive and files lie side by side for a while: the disk must hold both."""
    if archive.size is None:
        return
    root.mkdir(parents=True, exist_ok=True)
    part = root / f"{archive.file}.part"
    needed = 2 * archive.size - (part.stat().st_size if part.is_file() else 0)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise ValueError(
            f"Fetching and unpacking {archive.file} takes {needed / 1e9:.1f} GB, but {str(root)!r} has "
            f"{free / 1e9:.1f} GB free; make room, or give another --root."
        )


def _find_note(archive: Archive, source: Source, root: Path) -> Path:
    return root / ".fetched" / f"{archive.file}{'-listed' if source.listed else ''}.json"


def _remember(archive: Archive, source: Source, root: Path, names: list[str]) -> None:
    note = _find_note(archive, source, root)
    note.parent.mkdir(exist_ok=True)
    new = note.with_suffix(".new")
    new.write_text(json.dumps({"checksum": archive.checksum, "names": names}))
    os.replace(new, note)


def _is_unpacked(archive: Archive, source: Source, root: Path) -> bool:
    """Whether this very archive was unpacked here, and what it brought still stands."""
    try:
        note = json.loads(_find_note(archive, source, root).read_text())
        same = note["checksum"] == archive.checksum
        return same and all((root / source.folder / name).exists() for name in note["names"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _report(name: str, folder: Path) -> str | None:
    problems = check_set(name, folder, say=print, show=sys.stderr.isatty())
    if not problems:
        print(f"The set {name!r} is whole and right.")
        return None
    for problem in problems[:20]:
        print(f"  - {problem}")
    more = f" (the first 20 of {len(problems)} are shown)" if len(problems) > 20 else ""
    return f"The set {name!r} in {str(folder)!r} is not as it should be{more}."
