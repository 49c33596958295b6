"""``lmr fetch NAME --make``: corrupted sets made from clean images and kept on disk, in the official layout.

Every image is bit for bit the one computed on the fly. A kill leaves complete files and one partial file; the same call
resumes from there.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmr.core.errors import LmrError
from lmr.core.files import replace_durably, write_atomically
from lmr.core.progress import show_progress
from lmr.data.cifar import SIDE, list_folders, open_cifar
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.dataset import CLEAN, SEVERITIES, CorruptedOnTheFly, Labels, describe_missing, find_first
from lmr.data.imagenet import FOLDERS, corrupt_validation, encode_jpeg, open_crops
from lmr.data.names import read_imagenet
from lmr.data.provenance import write_made_note
from lmr.images.ahead import ReadAhead

MADE = ("cifar10-c", "cifar100-c", "imagenet-c", "imagenet-c-5000")
_CHUNK = 256  # images at a time

Read = Callable[[str, int, Sequence[int]], Sequence[Any]]  # (corruption, severity, indices) -> what is stored


def make_set(
    name: str,
    root: Path,
    *,
    domains: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    workers: int = 1,
) -> Path:
    """Corrupt the clean images under the root in ``workers`` threads and store them there -> their folder.

    The .npy files of CIFAR contain all five severities, whatever ``severities`` is. Raises LmrError.
    """
    if workers < 1:
        raise LmrError(f"Expected at least one worker, got {workers}.")
    if name not in MADE:
        raise LmrError(f"The dataset {name!r} cannot be made from clean images; these can: {', '.join(MADE)}.")
    if name.startswith("cifar"):
        classes = 100 if name == "cifar100-c" else 10
        corrupted = CorruptedOnTheFly(name, open_cifar(classes, root), "cifar")
        folder = root / list_folders(classes)[0]
        write_made_note(folder, corrupted.digest, corrupted.protocol["corruptions"])
        write_arrays(folder, corrupted.read, corrupted.labels(domains[0]), domains, workers)
        return folder
    clean = find_first(root, FOLDERS["imagenet"])
    if clean is None:
        raise describe_missing("imagenet", root, FOLDERS["imagenet"])
    corrupted, crops = corrupt_validation(name, clean, stored=False), open_crops(name, clean)
    folder = root / FOLDERS["imagenet-c"][0]
    write_made_note(folder, corrupted.digest, corrupted.protocol["corruptions"])
    wnids, labels = tuple(read_imagenet()), crops.labels(CLEAN)
    names = [f"{wnids[label]}/{os.path.basename(file)}" for label, file in zip(labels, crops.files, strict=True)]

    def read(domain: str, severity: int, places: Sequence[int]) -> list[bytes]:
        return [encode_jpeg(image) for image in corrupted.read(domain, severity, places)]

    write_files(folder, read, names, domains, severities, workers)
    return folder


def write_arrays(folder: Path, read: Read, labels: Labels, domains: Sequence[str], workers: int) -> None:
    """Write one .npy file [5 N, 32, 32, 3] for each corruption, severity after severity, and labels.npy [5 N]."""
    count = len(labels)
    content = io.BytesIO()
    np.save(content, np.tile(labels, 5).astype(np.uint8))
    write_atomically(folder / "labels.npy", content.getvalue())
    todo = [domain for domain in domains if not (folder / f"{domain}.npy").is_file()]
    with show_progress("corrupting", len(todo) * 5 * count) as bar:
        for domain in todo:
            part = folder / f"{domain}.npy.part"
            rows = np.lib.format.open_memmap(part, "w+", np.uint8, (5 * count, SIDE, SIDE, 3))
            for severity in range(1, 6):
                for places, images in _make(read, domain, severity, range(count), workers):
                    start = (severity - 1) * count + places[0]
                    rows[start : start + len(places)] = np.stack(images)
                    bar.advance(len(places))
            rows.flush()
            del rows
            replace_durably(part, folder / f"{domain}.npy")


def write_files(
    folder: Path, read: Read, files: Sequence[str], domains: Sequence[str], severities: Sequence[int], workers: int
) -> None:
    """Write one file for each image, corruption/severity/class/file; ``read`` returns their bytes."""
    with show_progress("corrupting", len(domains) * len(severities) * len(files)) as bar:
        for domain in domains:
            for severity in severities:
                place = folder / domain / str(severity)
                todo = [k for k, file in enumerate(files) if not (place / file).is_file()]
                bar.advance(len(files) - len(todo))
                for part, contents in _make(read, domain, severity, todo, workers):
                    for k, content in zip(part, contents, strict=True):
                        (place / files[k]).parent.mkdir(parents=True, exist_ok=True)
                        _write(place / files[k], content)
                        bar.advance()


def _make(
    read: Read, domain: str, severity: int, places: Sequence[int], workers: int
) -> Iterator[tuple[Sequence[int], Sequence[Any]]]:
    """Yield chunks of places, in order, with what is stored of their images, made ahead by threads."""
    chunks = [places[first : first + _CHUNK] for first in range(0, len(places), _CHUNK)]
    with ReadAhead(chunks, lambda chunk: read(domain, severity, chunk), ahead=2 * workers, workers=workers) as made:
        yield from zip(chunks, made, strict=True)


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)  # always the same name, so that the next call replaces the rest of a killed one
    replace_durably(part, path)
