"""``lmr fetch``: get a set, or say how to get it by hand, and see whether what is there is right."""

from __future__ import annotations

import difflib
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.data.fetch.download import compute_checksum, download_file
from lmr.data.fetch.fetched import read_fetched, write_fetched
from lmr.data.fetch.made import read_note
from lmr.data.fetch.sources import SOURCES, Archive, Source
from lmr.data.fetch.unpack import unpack_archive
from lmr.data.fetch.verification import check_set
from lmr.data.names import read_list

Say = Callable[[str], None]


def find_source(name: str) -> Source:
    """The source of a set. Raises LmrError, a sentence."""
    if name in SOURCES:
        return SOURCES[name]
    if name in ("pocket", "pocket-c"):
        raise LmrError("The pocket world is drawn by code and comes with lmr; there is nothing to fetch.")
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise LmrError(f"There is no set {name!r} to fetch.{hint} Choose one of: {', '.join(SOURCES)}.")


def fetch_set(name: str, root: Path, *, keep: bool = False, show: bool = False, say: Say = lambda line: None) -> None:
    """Fetch the archives of a set that are not there yet, and unpack them. Raises LmrError, a sentence."""
    source = find_source(name)
    for archive in source.archives:
        _check_place(archive, source, root)
    for archive in source.archives:
        if _is_unpacked(archive, source, root):
            say(f"{archive.file} has been fetched and unpacked before.")
            continue
        path = root / archive.file
        ours = not path.is_file() or _is_downloaded(archive, root)
        if path.is_file():
            say(f"{archive.file} is in {root} already; verifying its checksum.")
            _verify(archive, path)
        else:
            _check_space(archive, root)
            download_file(archive.urls, path, archive.checksum, size=archive.size, show=show)
        _write_note(archive, source, root, None, ours)
        wanted = partial(_is_listed, frozenset(read_list("imagenet_c_5000"))) if source.listed else None
        names = unpack_archive(path, root / source.folder, replace=archive.brings, wanted=wanted, show=show)
        _write_note(archive, source, root, names, ours and keep)
        if ours and not keep:
            path.unlink()
        elif not ours:
            say(f"{archive.file} is kept, as lmr did not fetch it.")
    say(f"The set {name!r} is in {root / source.folder}.")


def _is_listed(listed: frozenset[str], member: str) -> bool:
    return "/".join(member.split("/")[-2:]) in listed


def _verify(archive: Archive, path: Path) -> None:
    """An archive that was found, not fetched just now, may be any file of that name."""
    algorithm, _, expected = archive.checksum.partition(":")
    if (found := compute_checksum(path, algorithm)) != expected:
        raise LmrError(
            f"The archive {str(path)!r} does not match the published checksum ({algorithm} {found} instead of "
            f"{expected}). Nothing was unpacked or deleted; move it away and run the command again to fetch it."
        )


def _check_space(archive: Archive, root: Path) -> None:
    """Archive and files lie side by side for a while: the disk must hold both."""
    if archive.size is None:
        return
    root.mkdir(parents=True, exist_ok=True)
    part = root / f"{archive.file}.part"
    needed = 2 * archive.size - (part.stat().st_size if part.is_file() else 0)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise LmrError(
            f"Fetching and unpacking {archive.file} takes {needed / 1e9:.1f} GB, but {str(root)!r} has "
            f"{free / 1e9:.1f} GB free; make room, or give another --root."
        )


def _check_place(archive: Archive, source: Source, root: Path) -> None:
    """Nothing that was not fetched here is ever replaced: it may be somebody's only copy, or hold more."""
    folder = root / source.folder
    places = [folder / name for name in archive.brings]
    if made := next((place for place in (folder, *places) if read_note(place)), None):
        raise LmrError(f"The folder {str(made)!r} holds pictures that lmr made; move it away first.")
    there = next((place for place in places if place.exists()), None)
    if there is not None and _read_note(archive, root) is None:
        raise LmrError(
            f"The folder {str(there)!r} is there already and was not fetched by lmr. See whether it is whole with "
            f"--check, or move it away first."
        )


def _write_note(archive: Archive, source: Source, root: Path, names: list[str] | None, downloaded: bool) -> None:
    """What a verified archive brought, None while it is being unpacked: from then on its folders are ours to replace.

    ``downloaded`` says that the archive in the root was fetched by lmr, which may hence delete it.
    """
    note = {"checksum": archive.checksum, "listed": source.listed, "names": names, "downloaded": downloaded}
    write_fetched(root, archive.file, note)


def _is_downloaded(archive: Archive, root: Path) -> bool:
    note = _read_note(archive, root)
    return note is not None and note.get("downloaded") is True


def _read_note(archive: Archive, root: Path) -> dict[str, Any] | None:
    note = read_fetched(root, archive.file)
    return note if note and note.get("checksum") == archive.checksum else None


def _is_unpacked(archive: Archive, source: Source, root: Path) -> bool:
    """Whether this very archive was unpacked here, all of it or as much as is wanted, and its folders still stand."""
    note = _read_note(archive, root)
    if note is None or not note.get("names") or (note.get("listed") and not source.listed):
        return False
    return all((root / source.folder / name).exists() for name in note["names"])


def report_check(name: str, folder: Path) -> str | None:
    """Check a set and print what is wrong with it -> None, or the complaint in one line."""
    problems = check_set(name, folder, say=print, show=sys.stderr.isatty())
    if not problems:
        print(f"The set {name!r} is whole and right.")
        return None
    for problem in problems[:20]:
        print(f"  - {problem}")
    more = f" (the first 20 of {len(problems)} are shown)" if len(problems) > 20 else ""
    return f"The set {name!r} in {str(folder)!r} is not as it should be{more}."
