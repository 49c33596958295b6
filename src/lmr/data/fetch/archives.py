"""Download and unpack archives: cut connections and killed runs resume, and files appear completely or not at all.

A download is in ``NAME.part`` until it is complete; only a file with the right checksum gets its own name.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from lmr.core.errors import LmrError
from lmr.core.files import replace_durably, replace_folder, sync_folder
from lmr.core.progress import show_progress
from lmr.data.provenance import compute_checksum

_CHUNK = 1 << 20  # bytes
_TRIES = 4  # in a row without a new byte, before the next server is tried
_TIMEOUT = 60.0  # seconds without a byte


class Unavailable(Exception):
    """A server does not provide the file; the message is the reason, without a subject."""


class Damaged(Unavailable):
    """A server sent a file with the wrong checksum."""


def download_file(
    urls: Sequence[str], target: Path, checksum: str, *, size: int | None = None, pause: float = 2.0
) -> None:
    """Fetch a file from the first server that provides it completely. Raises LmrError if none does.

    ``checksum`` is "md5:…" or "sha256:…". ``pause`` is the time between tries in seconds; it doubles each time. Only
    one process at a time may fetch to the same target.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    with open(part, "ab", buffering=0) as file:
        for url in urls:
            resumed = os.fstat(file.fileno()).st_size > 0
            try:
                try:
                    _receive(url, file, size, pause)
                    _compare(part, checksum)
                except Damaged:
                    if not resumed:
                        raise
                    _receive(url, file, size, pause)  # the part from the earlier run may be wrong
                    _compare(part, checksum)
            except Unavailable as reason:
                reasons.append(f"{urlsplit(url).netloc}: {reason}")
                continue
            replace_durably(part, target)
            return
        kept = os.fstat(file.fileno()).st_size
        if not kept:
            part.unlink()
    resume = f" The {kept:,} bytes received so far are kept; run the same command again to resume." if kept else ""
    raise LmrError(f"Could not fetch {target.name} ({'; '.join(reasons)}).{resume}")


def _compare(part: Path, checksum: str) -> None:
    """Discard a file with the wrong checksum: no further bytes could make it right."""
    algorithm, _, expected = checksum.partition(":")
    found = compute_checksum(part, algorithm)
    if found != expected:
        os.truncate(part, 0)
        raise Damaged(f"its file has the {algorithm} {found} instead of {expected} and was discarded")


def _receive(url: str, file: IO[bytes], size: int | None, pause: float) -> None:
    """Append to the file until it is complete, with a new request after every cut."""
    idle = 0
    while True:
        before = os.fstat(file.fileno()).st_size
        try:
            if (size is not None and before == size) or _receive_once(url, file, before, size):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"it answers {error.code} {error.reason}"
            if error.code == 416 and before:  # there are no further bytes; the checksum decides
                return
            if error.code < 500 and error.code not in (408, 429):
                raise Unavailable(reason) from error
        except (OSError, ValueError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        idle = 0 if os.fstat(file.fileno()).st_size > before else idle + 1
        if idle == _TRIES:
            raise Unavailable(reason)
        time.sleep(pause * 2 ** max(0, idle - 1))


def _receive_once(url: str, file: IO[bytes], have: int, size: int | None) -> bool:
    """Send one request, for the rest of the file if a part exists; return True if everything was received.

    ``size`` is used if the server does not state the length of the file. Bytes are written as soon as they are
    received, so that a stalled connection loses none of them.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "lmr", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        stated = _read_total(response, have)
        total = size if stated is None else stated
        if response.status != 206:  # the whole file again: the server does not support ranges
            file.truncate(0)
            have = 0
        name = Path(urlsplit(url).path.removesuffix("/content")).name
        with show_progress(name, total, "bytes", done=have) as bar:
            while chunk := response.read1(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                bar.advance(len(chunk))
    return total is None or have == total


def _read_total(response: Any, have: int) -> int | None:
    """Return the size of the whole file in bytes; None if the server does not state it."""
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if not match or int(match[1]) != have:
            raise Unavailable("it sends a different part of the file than requested")
        return None if match[2] == "*" else int(match[2])
    length = str(response.headers.get("Content-Length", ""))
    return int(length) if re.fullmatch("[0-9]+", length) else None  # anything else counts as unknown


def unpack_archive(
    archive: Path, folder: Path, *, replace: Collection[str] = (), wanted: Callable[[str], bool] | None = None
) -> list[str]:
    """Unpack a .tar, .tar.gz or .zip into a folder and return the names it added there.

    The files are written to a temporary folder and moved when all are written, so that a kill leaves nothing that looks
    complete. Files and folders in ``replace`` may exist and are replaced; any other existing one is an error, and then
    nothing is changed. ``wanted`` selects files by their names in the archive. Links, and names outside the folder, are
    refused. Raises LmrError.
    """
    aside = folder / f".unpacking-{archive.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        extract = _extract_zip if archive.suffix == ".zip" else _extract_tar
        extract(archive, aside, wanted or (lambda name: True))
        names = sorted(os.listdir(aside))
        if not names:
            raise LmrError(f"The archive {str(archive)!r} contains none of the expected files.")
        if taken := [name for name in names if (folder / name).exists() and name not in replace]:
            raise LmrError(f"{str(folder / taken[0])!r} exists, and {archive.name} contains another one; move it.")
        for name in names:
            _replace(aside / name, folder / name)
        sync_folder(folder)
        return names
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise LmrError(f"Cannot unpack {str(archive)!r} into {str(folder)!r}: {error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _extract_tar(archive: Path, aside: Path, wanted: Callable[[str], bool]) -> None:
    with tarfile.open(archive) as file, show_progress(f"unpacking {archive.name}", unit="files") as bar:
        for member in file:
            _refuse_outside(archive, member.name)
            if member.isfile() and wanted(member.name):
                file.extract(member, aside, filter="data")
                bar.advance()
            elif not member.isfile() and not member.isdir():
                raise LmrError(f"The archive {str(archive)!r} contains {member.name!r}, which is not a regular file.")
            file.members = []  # type: ignore[attr-defined]  # the list would grow to millions of entries otherwise


def _extract_zip(archive: Path, aside: Path, wanted: Callable[[str], bool]) -> None:
    with zipfile.ZipFile(archive) as file, show_progress(f"unpacking {archive.name}", unit="files") as bar:
        for member in file.infolist():
            _refuse_outside(archive, member.filename)
            if not member.is_dir() and wanted(member.filename):
                file.extract(member, aside)
                bar.advance()


def _refuse_outside(archive: Path, name: str) -> None:
    if name.startswith(("/", "\\")) or ".." in Path(name).parts:
        raise LmrError(f"The archive {str(archive)!r} contains {name!r}, which is outside its folder.")


def _replace(new: Path, old: Path) -> None:
    """Move a folder or file over an existing one of the same name."""
    if old.is_dir() and not old.is_symlink():
        replace_folder(new, old)
    elif new.is_dir():
        os.replace(new, old)
    else:
        replace_durably(new, old)
