"""Corrupt one picture or many: the same values in any batch, any order and any number of processes."""

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
from lmr.data.corruptions.checks import check_choice, check_indices, check_pictures, check_workers
from lmr.data.corruptions.constants import CONSTANTS
from lmr.data.corruptions.kinds import Pictures

_CHUNK = 100_000  # values at a time: their float64 copies stay near the processor's cache, whatever the batch
_PIECES = 4  # per worker, so that none waits long for the last


def corrupt(
    image: npt.NDArray[np.uint8],
    name: str,
    severity: int,
    *,
    seed: int = 0,
    index: int = 0,
    constants: str = "imagenet",
) -> npt.NDArray[np.uint8]:
    """Corrupt one uint8 picture [H, W, 3] -> a new array of the same shape and type.

    `name` is one of CORRUPTIONS or EXTRA, `severity` 1 (mild) to 5 (strong), `index` the picture's place in its data
    set. `constants` are "imagenet", chosen for 224 pixels a side, or "cifar", chosen for 32. The result is a function
    of the arguments alone. Its random numbers come from (seed, name, index): a picture meets the same draw at every
    severity.
    """
    picture = check_pictures(image, 3)
    batch = corrupt_batch(picture[None], name, severity, seed=seed, indices=[index], constants=constants)
    return np.asarray(batch[0])


def corrupt_batch(
    images: Pictures,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    indices: Sequence[int] | npt.NDArray[np.integer] | None = None,
    constants: str = "imagenet",
    workers: int = 1,
) -> Pictures:
    """Corrupt uint8 pictures [N, H, W, 3], each exactly as `corrupt` would with its own of the N `indices`.

    `indices` are the places in the batch unless given. With `workers` > 1 that many processes share the work; they
    start once, in a few seconds, and are kept for the next call. As always with processes in Python, a script that asks
    for them does its work below `if __name__ == "__main__":`.
    """
    check_choice(name, severity, seed, constants)
    check_pictures(images, 4)
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
            "A process that corrupted pictures was ended from outside, most likely for want of memory: "
            "give fewer workers, or fewer pictures at a time."
        ) from error


def _corrupt_piece(
    images: Pictures, places: Sequence[int], *, name: str, severity: int, seed: int, constants: str
) -> Pictures:
    """Checked input, in this process, a chunk at a time."""
    from lmr.data.corruptions.families import FUNCTIONS  # the libraries behind them load when first needed

    levels = CONSTANTS[constants][name][severity - 1]
    corrupted = np.empty(images.shape, np.uint8)
    size = max(1, _CHUNK // (images[:1].size or 1))
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        generators = [make_generator(name, seed, place) for place in places[part]]
        corrupted[part] = truncate(FUNCTIONS[name](np.ascontiguousarray(images[part]), generators, *levels))
    return corrupted


def make_generator(name: str, seed: int, index: int) -> np.random.Generator:
    """The random numbers of one picture; a checksum stands for the name in the entropy."""
    return np.random.default_rng([zlib.crc32(name.encode()), index, int(seed)])


def truncate(x: npt.NDArray[Any]) -> Pictures:
    """Fractions of the full range to uint8 as the authors do: clip to [0, 1], times 255, cut off. uint8 is finished."""
    levels: Pictures = (x if x.dtype == np.uint8 else np.clip(x, 0, 1) * 255).astype(np.uint8, copy=False)
    return levels


@functools.lru_cache(maxsize=1)
def _open_pool(workers: int, owner: int) -> ProcessPoolExecutor:
    """Fresh processes rather than forks, which would inherit torch's threads; `owner` keeps a fork from sharing it."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_use_one_thread)


def _use_one_thread() -> None:
    """The processes are the parallelism; threads on top of them would fight over the cores."""
    import cv2

    cv2.setNumThreads(1)
