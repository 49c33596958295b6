"""Download one file over HTTP from the first of several servers that has it; cut connections and killed runs resume.

What was received is in ``NAME.part``. Only a complete file with the right checksum gets its own name.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from lmr.core.errors import LmrError
from lmr.core.files import acquire_lock, replace_durably

_CHUNK = 1 << 20  # bytes
_TRIES = 4  # in a row without a new byte, before the next server is tried
_TIMEOUT = 60.0  # seconds without a byte


class Unavailable(Exception):
    """A server does not provide the file; the message is the reason in a few words."""


class Damaged(Unavailable):
    """A server sent a file with the wrong checksum."""


def download_file(
    urls: Sequence[str], target: Path, checksum: str, *, size: int | None = None, show: bool = False, pause: float = 2.0
) -> None:
    """Fetch a file from the first server that provides it completely. Raises LmrError if none does.

    ``checksum`` is "md5:…" or "sha256:…". ``pause`` is the time between tries in seconds; it doubles each time.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    with open(part, "ab", buffering=0) as file:
        if not acquire_lock(file):
            raise LmrError(f"Another process is fetching {str(part)!r} right now; wait for it, or stop it.")
        for url in urls:
            resumed = os.fstat(file.fileno()).st_size > 0
            try:
                try:
                    _receive(url, file, size, show, pause)
                    _compare(part, checksum)
                except Damaged:
                    if not resumed:
                        raise
                    _receive(url, file, size, show, pause)  # the part from the earlier run may be wrong
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


def compute_checksum(path: Path, algorithm: str) -> str:
    """The checksum of a file, in hexadecimal digits. Raises LmrError."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise LmrError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error


def _compare(part: Path, checksum: str) -> None:
    """Discard a wrong file: no further bytes could make it right."""
    algorithm, _, expected = checksum.partition(":")
    found = compute_checksum(part, algorithm)
    if found != expected:
        os.truncate(part, 0)
        raise Damaged(f"its file has the {algorithm} {found} instead of {expected} and was discarded")


def _receive(url: str, file: IO[bytes], size: int | None, show: bool, pause: float) -> None:
    """Append to the file until it is complete, with a new request after every cut."""
    idle = 0
    while True:
        before = os.fstat(file.fileno()).st_size
        try:
            if (size is not None and before == size) or _receive_once(url, file, before, size, show):
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


def _receive_once(url: str, file: IO[bytes], have: int, size: int | None, show: bool) -> bool:
    """Send one request, for the rest of the file if a part exists -> whether everything was received.

    ``size`` is used where the server does not state the length of the file. Bytes are written as soon as they are
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
        with _show_progress(url, have, total, show) as bar:
            while chunk := response.read1(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                bar.update(len(chunk))
    return total is None or have == total


def _read_total(response: Any, have: int) -> int | None:
    """Bytes of the whole file; None if the server does not state them."""
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if not match or int(match[1]) != have:
            raise Unavailable("it sends a different part of the file than requested")
        return None if match[2] == "*" else int(match[2])
    length = str(response.headers.get("Content-Length", ""))
    return int(length) if re.fullmatch("[0-9]+", length) else None  # anything else counts as unknown


def _show_progress(url: str, have: int, total: int | None, show: bool) -> Any:
    from tqdm import tqdm

    name = Path(urlsplit(url).path.removesuffix("/content")).name
    return tqdm(total=total, initial=have, unit="B", unit_scale=True, unit_divisor=1000, desc=name, disable=not show)
