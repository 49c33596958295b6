"""Corrupt one image or many, with the same result in any batch, any order, thread and process."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from PIL.Image import Image, fromarray

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.spec import suggest
from lmr.data.corruptions.constants import CONSTANTS, CORRUPTIONS, EXTRA, find_group
from lmr.data.corruptions.noise import ImageBatch

_CHUNK = 100_000  # values at a time: their float64 copies fit the processor's cache, whatever the batch


@overload
def corrupt(
    images: Image, name: str, severity: int, *, seed: int = 0, index: int = 0, constants: str = "imagenet"
) -> Image: ...


@overload
def corrupt(
    images: npt.NDArray[np.uint8],
    name: str,
    severity: int,
    *,
    seed: int = 0,
    index: int = 0,
    constants: str = "imagenet",
) -> npt.NDArray[np.uint8]: ...


def corrupt(
    images: Image | npt.NDArray[np.uint8],
    name: str,
    severity: int,
    *,
    seed: int = 0,
    index: int = 0,
    constants: str = "imagenet",
) -> Image | npt.NDArray[np.uint8]:
    """Corrupt an image of PIL, an array uint8 [H, W, 3], or a batch [N, H, W, 3], and return the same kind.

    ``name`` is one of the 15 corruptions of CIFAR-C and ImageNet-C or of the 4 extra ones, ``severity`` 1 (mild) to 5
    (strong). ``constants`` are "imagenet", chosen for 224 pixels a side, or "cifar", chosen for 32. The result depends
    on the arguments alone. The random numbers of an image come from (``seed``, ``name``, index of the image in its
    dataset): it gets the same draws at every severity. ``index`` is that of the first image of a batch; the others
    follow. Most corruptions need ``pip install 'lmr[bench]'``.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> photo = Image.new("RGB", (224, 224), "orange")
        >>> lmr.corrupt(photo, "gaussian_noise", 3).size
        (224, 224)
        >>> lmr.corrupt(photo, "smog", 3)
        Traceback (most recent call last):
        lmr.core.errors.LmrError: There is no corruption 'smog'. ...
    """
    if isinstance(images, Image):
        array = corrupt(np.asarray(images.convert("RGB")), name, severity, seed=seed, index=index, constants=constants)
        return fromarray(array)
    batch = images if np.ndim(images) == 4 else np.asarray(images)[None]
    corrupted = corrupt_batch(
        batch, name, severity, seed=seed, indices=range(index, index + len(batch)), constants=constants
    )
    return corrupted if batch is images else corrupted[0]


def corrupt_batch(
    images: ImageBatch,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    indices: Sequence[int] | npt.NDArray[np.integer] | None = None,
    constants: str = "imagenet",
) -> ImageBatch:
    """Corrupt uint8 images [N, H, W, 3], each exactly as ``corrupt`` does with its index among the N ``indices``.

    ``indices`` are 0 to N - 1 by default.
    """
    _check_known("corruption", name, CORRUPTIONS + EXTRA)
    _check_known("set of constants", constants, tuple(CONSTANTS))
    _check_images(images)
    places = list(range(len(images))) if indices is None else list(map(int, indices))
    if len(places) != len(images):
        raise LmrError(f"Expected one index for each of the {len(images)} images, got {len(places)}.")
    if severity not in (1, 2, 3, 4, 5):
        raise LmrError(f"The severity must be a whole number from 1 (mild) to 5 (strong), got {severity!r}.")
    function, levels = find_function(name), CONSTANTS[constants][name][severity - 1]
    corrupted = np.empty(images.shape, np.uint8)
    size = max(1, _CHUNK // (images[:1].size or 1))
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        generators = [make_generator(name, seed, place) for place in places[part]]
        corrupted[part] = truncate(function(np.ascontiguousarray(images[part]), generators, *levels))
    return corrupted


def find_function(name: str) -> Callable[..., npt.NDArray[Any]]:
    """Return the function of a corruption; the libraries behind it load when it is first needed. Raises LmrError."""
    group = find_group(name)
    if group != "noise":
        for package in ("cv2", "scipy"):
            require(package, "bench", f"The corruption {name!r}")
    function: Callable[..., npt.NDArray[Any]] = getattr(importlib.import_module(f"lmr.data.corruptions.{group}"), name)
    return function


def make_generator(name: str, seed: int, index: int) -> np.random.Generator:
    """Return the random generator of one image; a checksum of the name is part of its seed."""
    return np.random.default_rng([zlib.crc32(name.encode()), index, int(seed)])


def truncate(x: npt.NDArray[Any]) -> ImageBatch:
    """Convert fractions of the full range to uint8 as the authors do: clip to [0, 1], times 255, truncate.

    uint8 values stay unchanged.
    """
    levels: ImageBatch = (x if x.dtype == np.uint8 else np.clip(x, 0, 1) * 255).astype(np.uint8, copy=False)
    return levels


def _check_images(images: ImageBatch) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
        raise LmrError(
            f"Expected a numpy array of uint8 values from 0 to 255, got {kind}; corrupt the images "
            "before they are scaled, normalised or converted to tensors."
        )
    if images.ndim != 4 or images.shape[-1] != 3 or 0 in images.shape[1:]:
        raise LmrError(
            f"Expected colour images of one size [H, W, 3] or [N, H, W, 3], got a batch of the shape "
            f"{list(images.shape)}. Put the channels last, and convert grey to three equal channels."
        )


def _check_known(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise LmrError(f"There is no {kind} {name!r}.{suggest(name, known)} Choose one of: {', '.join(known)}.")
