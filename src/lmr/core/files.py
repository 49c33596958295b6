"""Atomic writing and file locks, for the whole package: files survive a kill, a full disk and a second process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lmr.core.errors import LmrError, MissingFile

AnyPath = str | os.PathLike[str]
MOST_TEXT = 100_000_000  # bytes of a file of names, prompts or the like
_WRITER_SECONDS, _POLL_SECONDS = 10.0, 0.05  # to wait for the program that writes to a pipe


def read_text(path: AnyPath, what: str = "the file") -> str:
    """Return the text of a file, or of a pipe as in ``--labels <(ls names)``. ``what`` names it in errors.

    Raises MissingFile, and LmrError also if it does not end, as /dev/zero, or if nothing comes from the pipe for long.
    """
    failed = f"Cannot read {what} {os.fspath(path)!r}"
    try:
        return _read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        kind = MissingFile if isinstance(error, FileNotFoundError) else LmrError
        raise kind(f"{failed}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise LmrError(f"{failed}: it is not text in UTF-8; save it as such.") from error


def read_json(path: AnyPath, what: str) -> Any:
    """Return the value in a JSON file. Raises LmrError as ``read_text``."""
    text = read_text(path, what)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = explain_text_error(error)
        raise LmrError(f"Cannot read {what} {os.fspath(path)!r}: it is not JSON ({reason}).") from error


def explain_text_error(error: ValueError | RecursionError) -> str:
    """Return why a text in JSON or TOML cannot be read; Python explains its own limits to programmers alone."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "it has a number of too many digits" if type(error) is ValueError else str(error)


def _read_bytes(path: AnyPath) -> bytes:
    """Return the content of a file or a pipe. Raises OSError."""
    content, end = bytearray(), time.monotonic() + _WRITER_SECONDS
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # otherwise a pipe waits for its writer
    try:
        while len(content) <= MOST_TEXT:
            try:
                part = os.read(descriptor, 2**20)
            except BlockingIOError:  # a program has opened the pipe, and has written nothing more
                select.select([descriptor], [], [], _POLL_SECONDS)
            else:
                if not part and (content or not stat.S_ISFIFO(os.fstat(descriptor).st_mode)):
                    return bytes(content)
                if part:
                    content += part
                    end = time.monotonic() + _WRITER_SECONDS
                    continue
                time.sleep(_POLL_SECONDS)
            if time.monotonic() >= end:
                raise OSError(errno.ETIMEDOUT, f"nothing came from this pipe for {_WRITER_SECONDS:g} seconds")
        raise OSError(errno.EFBIG, f"it has more than {MOST_TEXT:,} bytes")
    finally:
        os.close(descriptor)


def write_atomically(path: AnyPath, content: bytes) -> None:
    """Write ``content`` to ``path`` so that a kill or a power cut leaves the old file or the new one, never a mixture.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed over ``path``; the
    folder is flushed too, as the new name is an entry in it.
    """
    target = Path(os.path.realpath(path))  # a link stays
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            os.chmod(temporary, _choose_mode(target))
            file.write(content)
        replace_durably(temporary, target)
        temporary = None
    except OSError as error:
        reason = error.strerror or error
        raise LmrError(f"Cannot write {os.fspath(path)!r}: {reason}. The previous content is unchanged.") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def replace_durably(finished: AnyPath, target: AnyPath) -> None:
    """Flush the finished file to the disk, rename it to ``target`` and flush the folder. Raises OSError."""
    _flush(finished)
    os.replace(finished, target)
    sync_folder(Path(target).parent)


@contextlib.contextmanager
def make_folder(path: AnyPath) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end of the context it is renamed to ``path``, which must not exist.

    Raises OSError. The files are written to a folder beside ``path`` with a name of its own and flushed to the disk
    before it is renamed. So ``path`` never holds some of the files; a kill can leave the folder ``.NAME.*.part``.
    """
    target = Path(os.path.realpath(path))  # a link stays
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        yield aside
        for file in aside.rglob("*"):
            if file.is_file():
                _flush(file)
        aside.chmod(0o777 & ~_read_mask())
        os.rename(aside, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _flush(file: AnyPath) -> None:
    with open(file, "rb") as content:
        os.fsync(content.fileno())


def sync_folder(folder: AnyPath) -> None:
    """Flush the names in a folder to the disk; does nothing on systems that cannot do this."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows does not open folders
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_folder(folder: Path, names: tuple[str, ...] = ()) -> None:
    """Create the folder and check that these files can be written to it, before minutes are spent on their content."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot create the folder {str(folder)!r}: {error.strerror}.") from error
    write_atomically(folder / ".probe", b"")
    (folder / ".probe").unlink()
    for name in names:
        if (folder / name).is_dir():
            raise LmrError(f"{str(folder / name)!r} is a folder, but a file is written there; give another --out.")


@contextlib.contextmanager
def hold_lock(path: AnyPath, message: str, wait: float = 0.0, failed: str = "") -> Iterator[None]:
    """Hold the lock file ``path`` within this context; LmrError with ``message`` if another process holds it.

    Waits for ``wait`` seconds. The file is created if needed and stays, empty: removing a lock file would let two
    processes hold different ones. ``failed`` begins the error if the file cannot be opened. Disks without locks are
    trusted.
    """
    # Any thread may leave the context: a store is closed by another one than opened it.
    lock = FileLock(path, timeout=wait, fallback_to_soft=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LmrError(message) from error
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            failed = failed or f"Cannot open the lock file {os.fspath(path)!r}"
            raise LmrError(f"{failed}: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.release()


def _choose_mode(target: Path) -> int:
    """Return the permissions of the file that is replaced, or those of any new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    return 0o666 & ~_read_mask()


def _read_mask() -> int:
    """Return the permissions that new files do not get; reading them means setting them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
