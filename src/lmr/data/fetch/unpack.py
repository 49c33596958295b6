"""Unpack archives, completely or not at all."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.files import replace_durably, replace_folder, sync_folder


def unpack_archive(
    archive: Path,
    folder: Path,
    *,
    replace: Collection[str] = (),
    wanted: Callable[[str], bool] | None = None,
    show: bool = False,
) -> list[str]:
    """Unpack a .tar, .tar.gz or .zip into a folder -> the names it added there.

    The files are written to a temporary folder and moved when all are written, so that a kill leaves nothing that looks
    complete. What has the same name is replaced if ``replace`` names it; otherwise nothing is changed. ``wanted``
    chooses files by their names in the archive. Links, and names outside the folder, are refused. Raises LmrError.
    """
    aside = folder / f".unpacking-{archive.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        extract = _extract_zip if archive.suffix == ".zip" else _extract_tar
        extract(archive, aside, wanted or (lambda name: True), show)
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


def _extract_tar(archive: Path, aside: Path, wanted: Callable[[str], bool], show: bool) -> None:
    with tarfile.open(archive) as file, _count_files(archive, show) as bar:
        for member in file:
            _refuse_outside(archive, member.name)
            if member.isfile() and wanted(member.name):
                file.extract(member, aside, filter="data")
                bar.update()
            elif not member.isfile() and not member.isdir():
                raise LmrError(f"The archive {str(archive)!r} contains {member.name!r}, which is not a regular file.")
            file.members = []  # type: ignore[attr-defined]  # the list would grow to millions of entries otherwise


def _extract_zip(archive: Path, aside: Path, wanted: Callable[[str], bool], show: bool) -> None:
    with zipfile.ZipFile(archive) as file, _count_files(archive, show) as bar:
        for member in file.infolist():
            _refuse_outside(archive, member.filename)
            if not member.is_dir() and wanted(member.filename):
                file.extract(member, aside)
                bar.update()


def _refuse_outside(archive: Path, name: str) -> None:
    if name.startswith(("/", "\\")) or ".." in Path(name).parts:
        raise LmrError(f"The archive {str(archive)!r} contains {name!r}, which is outside its folder.")


def _count_files(archive: Path, show: bool) -> Any:
    from tqdm import tqdm

    return tqdm(unit=" files", unit_scale=True, desc=f"unpacking {archive.name}", disable=not show)


def _replace(new: Path, old: Path) -> None:
    """Move a folder or file; what has the same name is replaced."""
    if old.is_dir() and not old.is_symlink():
        replace_folder(new, old)
    elif new.is_dir():
        os.replace(new, old)
    else:
        replace_durably(new, old)
