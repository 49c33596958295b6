"""Corrupt one image or many, with the same result in any batch, any order and any number of processes."""

from __future__ import annotations

import functools
import multiprocessing
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import numpy.typing as npt

from lmr.core.errors import LmrError
from lmr.data.corruptions.argument_checks import check_choice, check_images, check_indices, check_workers
from lmr.data.corruptions.array_types import ImageBatch
from lmr.data.corruptions.constants import CONSTANTS

_CHUNK = 100_000  # values at a time: their float64 copies fit the processor's cache, whatever the batch
_PIECES = 4  # per worker, so that no worker waits long for the last one


def corrupt(
    image: npt.NDArray[np.uint8],
    name: str,
    severity: int,
    *,
    seed: int = 0,
    index: int = 0,
    constants: str = "imagenet",
) -> npt.NDArray[np.uint8]:
    """Corrupt one uint8 image [H, W, 3] -> a new array of the same shape and type.

    `name` is one of CORRUPTIONS or EXTRA, `severity` 1 (mild) to 5 (strong), `index` the image's index in its
    dataset. `constants` are "imagenet", chosen for 224 pixels a side, or "cifar", chosen for 32. The result depends on
    the arguments alone. Its random numbers come from (seed, name, index): an image gets the same draws at every
    severity.
    """
    batch = corrupt_batch(check_images(image, 3)[None], name, severity, seed=seed, indices=[index], constants=constants)
    return np.asarray(batch[0])


def corrupt_batch(
    images: ImageBatch,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    indices: Sequence[int] | npt.NDArray[np.integer] | None = None,
    constants: str = "imagenet",
    workers: int = 1,
) -> ImageBatch:
    """Corrupt uint8 images [N, H, W, 3], each exactly as `corrupt` does with its own of the N `indices`.

    `indices` are 0 to N - 1 by default. With `workers` > 1 that many processes share the work; they start once, in a
    few seconds, and are kept for the next call. As always with processes in Python, a script that uses them must do its
    work below `if __name__ == "__main__":`.
    """
    check_choice(name, severity, seed, constants)
    check_images(images, 4)
    places = check_indices(indices, len(images))
    check_workers(workers)
    do = functools.partial(_corrupt_piece, name=name, severity=severity, seed=seed, constants=constants)
    if workers == 1 or len(images) <= 1:
        return do(images, places)
    size = -(-len(images) // (workers * _PIECES))
    cuts = range(0, len(images), size)
    try:
        pieces = _open_pool(workers, os.getpid()).map(
            do, (images[k : k + size] for k in cuts), (places[k : k + size] for k in cuts)
        )
        return np.concatenate(list(pieces))
    except BrokenProcessPool as error:
        _open_pool.cache_clear()
        raise LmrError(
            "A process that corrupted images was killed, most likely because memory ran out; "
            "give fewer workers, or fewer images at a time."
        ) from error


def _corrupt_piece(
    images: ImageBatch, places: Sequence[int], *, name: str, severity: int, seed: int, constants: str
) -> ImageBatch:
    """Checked input, in this process, a chunk at a time."""
    from lmr.data.corruptions.function_table import FUNCTIONS  # the libraries behind them load when first needed

    levels = CONSTANTS[constants][name][severity - 1]
    corrupted = np.empty(images.shape, np.uint8)
    size = max(1, _CHUNK // (images[:1].size or 1))
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        generators = [make_generator(name, seed, place) for place in places[part]]
        corrupted[part] = truncate(FUNCTIONS[name](np.ascontiguousarray(images[part]), generators, *levels))
    return corrupted


def make_generator(name: str, seed: int, index: int) -> np.random.Generator:
    """The random generator of one image; a checksum of the name is part of its seed."""
    return np.random.default_rng([zlib.crc32(name.encode()), index, int(seed)])


def truncate(x: npt.NDArray[Any]) -> ImageBatch:
    """Fractions of the full range to uint8 as the authors do: clip to [0, 1], times 255, truncate. uint8 stays."""
    levels: ImageBatch = (x if x.dtype == np.uint8 else np.clip(x, 0, 1) * 255).astype(np.uint8, copy=False)
    return levels


@functools.lru_cache(maxsize=1)
def _open_pool(workers: int, owner: int) -> ProcessPoolExecutor:
    """New processes rather than forks, which would inherit torch's threads; `owner` keeps a fork from sharing them."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_use_one_thread)


def _use_one_thread() -> None:
    """The processes already use all cores; more threads would compete for them."""
    import cv2

    cv2.setNumThreads(1)
