"""``lmr fetch NAME``: download the archives of a dataset, verify them and unpack them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.files import hold_lock
from lmr.core.spec import suggest
from lmr.data.catalogue import EMBEDDED_SETS
from lmr.data.domains import DOMAIN_SETS, LAYOUT
from lmr.data.fetch.archives import download_file, unpack_archive
from lmr.data.fetch.sources import SOURCES, Archive, SetSource
from lmr.data.names import read_list
from lmr.data.provenance import ArchiveNote, compute_checksum, read_archive_note, read_made_note, write_archive_note

Report = Callable[[str], None]


def find_source(name: str) -> SetSource:
    """Return the source of a set. Raises LmrError."""
    if name in SOURCES:
        return SOURCES[name]
    if name in EMBEDDED_SETS:
        raise LmrError(f"The images of {name!r} come with lmr; there is nothing to fetch.")
    if name in DOMAIN_SETS:
        raise LmrError(f"lmr does not fetch {name!r}; place it under --root as {DOMAIN_SETS[name][0]}/{LAYOUT}.")
    raise LmrError(
        f"There is no dataset {name!r} to fetch.{suggest(name, SOURCES)} Choose one of: {', '.join(SOURCES)}."
    )


def fetch_set(name: str, root: Path, *, keep: bool = False, report: Report = lambda line: None) -> None:
    """Fetch and unpack the archives of a set that were not unpacked before. Raises LmrError.

    Only archives that match their published checksum are unpacked, and only archives that were downloaded here are
    deleted afterwards (unless ``keep``).
    """
    source = find_source(name)
    for archive in source.archives:
        _check_place(archive, source, root)
    for archive in source.archives:
        lock = root / ".fetched" / f"{archive.file}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        busy = f"Another process is fetching {archive.file} into {str(root)!r}; wait for it, or stop it."
        with hold_lock(lock, busy):
            _fetch_archive(archive, source, root, keep=keep, report=report)
    report(f"The dataset {name!r} is in {root / source.folder}.")


def _fetch_archive(archive: Archive, source: SetSource, root: Path, *, keep: bool, report: Report) -> None:
    if _is_unpacked(archive, source, root):
        report(f"{archive.file} has been fetched and unpacked before.")
        return
    path = root / archive.file
    note = _read_note(archive, root)
    ours = not path.is_file() or (note is not None and note.downloaded is True)  # a file decides what is deleted
    if path.is_file():
        report(f"{archive.file} is in {root} already; verifying its checksum.")
        _verify(archive, path)
    else:
        _check_space(archive, root)
        download_file(archive.urls, path, archive.checksum, size=archive.size)
    # From this note on, lmr may replace the folders that the archive contains.
    write_archive_note(root, archive.file, ArchiveNote(archive.checksum, source.listed, None, ours))
    listed = frozenset(read_list("imagenet_c_5000"))
    wanted = (lambda member: "/".join(member.split("/")[-2:]) in listed) if source.listed else None
    names = unpack_archive(path, root / source.folder, replace=archive.brings, wanted=wanted)
    done = ArchiveNote(archive.checksum, source.listed, tuple(names), downloaded=ours and keep)
    write_archive_note(root, archive.file, done)
    if ours and not keep:
        path.unlink()
    elif not ours:
        report(f"{archive.file} is kept, as lmr did not fetch it.")


def _verify(archive: Archive, path: Path) -> None:
    """Check the checksum of an archive that was found in the root, which may be any file of that name."""
    algorithm, _, expected = archive.checksum.partition(":")
    if (found := compute_checksum(path, algorithm)) != expected:
        raise LmrError(
            f"The archive {str(path)!r} does not match the published checksum ({algorithm} {found} instead of "
            f"{expected}). Nothing was unpacked or deleted; move it away and run the command again to fetch it."
        )


def _check_space(archive: Archive, root: Path) -> None:
    """Check that the disk can hold the archive and its files at the same time."""
    if archive.size is None:
        return
    root.mkdir(parents=True, exist_ok=True)
    part = root / f"{archive.file}.part"
    needed = 2 * archive.size - (part.stat().st_size if part.is_file() else 0)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise LmrError(
            f"Fetching and unpacking {archive.file} takes {needed / 1e9:.1f} GB, but {str(root)!r} has "
            f"{free / 1e9:.1f} GB free; free some space, or give another --root."
        )


def _check_place(archive: Archive, source: SetSource, root: Path) -> None:
    """Refuse to replace what was not fetched here: it may be the user's only copy, or contain more."""
    folder = root / source.folder
    places = [folder / name for name in archive.brings]
    if made := next((place for place in (folder, *places) if read_made_note(place)), None):
        raise LmrError(f"The folder {str(made)!r} holds images that lmr made; move it away first.")
    existing = next((place for place in places if place.exists()), None)
    if existing is not None and _read_note(archive, root) is None:
        raise LmrError(
            f"The folder {str(existing)!r} exists and was not fetched by lmr. Check it with --check, or move it away "
            "first."
        )


def _read_note(archive: Archive, root: Path) -> ArchiveNote | None:
    note = read_archive_note(root, archive.file)
    return note if note and note.checksum == archive.checksum else None


def _is_unpacked(archive: Archive, source: SetSource, root: Path) -> bool:
    """Return True if this archive, or the needed part of it, was unpacked here and its folders still exist."""
    note = _read_note(archive, root)
    if note is None or not note.names or (note.listed and not source.listed):
        return False
    return all((root / source.folder / name).exists() for name in note.names)
