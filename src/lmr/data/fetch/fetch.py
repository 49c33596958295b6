"""``lmr fetch NAME``: download the archives of a dataset, verify their checksums and unpack them."""

from __future__ import annotations

import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lmr.core.errors import LmrError
from lmr.core.files import replace_durably
from lmr.core.progress import show_progress
from lmr.core.spec import suggest
from lmr.data.catalogue import EMBEDDED_SETS
from lmr.data.domains import DOMAIN_SETS, LAYOUT
from lmr.data.fetch.sources import SOURCES, Archive, SetSource
from lmr.data.names import read_list
from lmr.data.provenance import compute_checksum, read_archive_note, write_archive_note

_CHUNK = 1 << 20  # bytes
_TIMEOUT = 60.0  # seconds without a byte


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


def fetch_set(name: str, root: Path, report: Callable[[str], object] = lambda line: None) -> None:
    """Fetch and unpack the archives of a set that were not unpacked before. Raises LmrError.

    Only archives that match their published checksum are unpacked, and only those downloaded here are deleted.
    """
    source = find_source(name)
    folder = root / source.folder
    folder.mkdir(parents=True, exist_ok=True)
    left = [archive for archive in source.archives if not _is_unpacked(archive, source, root)]
    if existing := next((folder / own for archive in left for own in archive.brings if (folder / own).exists()), None):
        raise LmrError(f"{str(existing)!r} exists; check it with --check, or move it away to fetch {name!r}.")
    for archive in left:
        path = root / archive.file
        ours = not path.is_file()
        if ours:
            download_file(archive.urls, path, archive.checksum)
        elif not _matches(path, archive.checksum):
            raise LmrError(f"{str(path)!r} does not match the published checksum {archive.checksum}; move it away.")
        unpack_archive(path, folder, frozenset(read_list("imagenet_c_5000")) if source.listed else None)
        write_archive_note(root, archive.file, archive.checksum, source.listed)
        if ours:
            path.unlink()
    report(f"The dataset {name!r} is in {folder}.")


def _is_unpacked(archive: Archive, source: SetSource, root: Path) -> bool:
    """Return True if this archive, or the needed part of it, was unpacked here and its folders still exist."""
    note = read_archive_note(root, archive.file)
    known = note.get("checksum") == archive.checksum and (source.listed or not note.get("listed"))
    return known and all((root / source.folder / name).exists() for name in archive.brings)


def download_file(urls: Sequence[str], target: Path, checksum: str) -> None:
    """Fetch a file from the first address that provides it. ``checksum`` is "md5:…" or "sha256:…". Raises LmrError.

    What a cut connection leaves in ``NAME.part`` is the beginning of the next try.
    """
    part, reasons = target.with_name(f"{target.name}.part"), []
    for url in urls:
        try:
            _receive(url, part)
        except urllib.error.HTTPError as error:
            error.close()
            reason = str(error)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
        else:
            if _matches(part, checksum):
                replace_durably(part, target)
                return
            part.unlink()
            reason = f"its file does not have the {checksum} and was discarded"
        reasons.append(f"{urlsplit(url).netloc}: {reason}")
    kept = " Run the same command again to resume." if part.exists() else ""
    raise LmrError(f"Could not fetch {target.name} ({'; '.join(reasons)}).{kept}")


def _receive(url: str, part: Path) -> None:
    """Append the rest of a file to what is there of it. Raises OSError if the connection is cut."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "lmr", "Range": f"bytes={have}-"})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # there are no further bytes; the checksum decides
            error.close()
            return
        raise
    with response:
        have = have if response.status == 206 else 0  # otherwise the server sends the whole file again
        length = int(response.headers.get("Content-Length") or 0)
        with (
            open(part, "ab" if have else "wb") as file,
            show_progress(part.stem, have + length or None, "bytes", done=have) as bar,
        ):
            while chunk := response.read1(_CHUNK):
                file.write(chunk)
                bar.advance(len(chunk))
            if length and file.tell() < have + length:
                raise OSError("the connection was cut")


def _matches(path: Path, checksum: str) -> bool:
    algorithm, _, expected = checksum.partition(":")
    return compute_checksum(path, algorithm) == expected


def unpack_archive(archive: Path, folder: Path, listed: Collection[str] | None = None) -> None:
    """Unpack the files of a .tar, .tar.gz or .zip, or only the ``listed`` ones as "class/file". Raises LmrError.

    They are written to a temporary folder and moved when all are written: a kill leaves nothing that looks complete.
    """

    def wanted(name: str) -> bool:
        return listed is None or "/".join(name.split("/")[-2:]) in listed

    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as aside:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as zipped:
                    zipped.extractall(aside, [name for name in zipped.namelist() if wanted(name)])
            else:
                with tarfile.open(archive) as tar:
                    for member in tar:
                        if member.isfile() and wanted(member.name):
                            tar.extract(member, aside, filter="data")
                        tar.members = []  # type: ignore[attr-defined]  # it would grow to millions of entries
            for name in os.listdir(aside):
                os.replace(Path(aside, name), folder / name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise LmrError(f"Cannot unpack {str(archive)!r} into {str(folder)!r}: {error}.") from error
