"""Checks of the arguments of the corruptions, before anything is computed."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from lmr.core.errors import LmrError
from lmr.data.corruptions.array_types import ImageBatch
from lmr.data.corruptions.constants import CONSTANTS, CORRUPTIONS, EXTRA


def check_choice(name: str, severity: int, seed: int, constants: str) -> None:
    """The corruption must exist, at one of five severities, with one of two sets of constants."""
    _check_word("corruption", name, CORRUPTIONS + EXTRA)
    _check_word("set of constants", constants, tuple(CONSTANTS))
    if not _is_whole(severity) or not 1 <= severity <= 5:
        raise LmrError(f"The severity must be a whole number from 1 (mild) to 5 (strong), got {severity!r}.")
    _check_count("seed", seed, 0)


def check_images(images: object, dimensions: int) -> ImageBatch:
    """One image [H, W, 3] or a batch [N, H, W, 3] of uint8."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
        raise LmrError(
            f"Expected a numpy array of uint8 values from 0 to 255, got {kind}; corrupt the images "
            "before they are scaled, normalised or converted to tensors."
        )
    if images.ndim != dimensions or images.shape[-1] != 3 or 0 in images.shape[-3:]:
        wanted, other = ("[H, W, 3]", "corrupt_batch") if dimensions == 3 else ("[N, H, W, 3]", "corrupt")
        number = "a colour image" if dimensions == 3 else "colour images of one size"
        raise LmrError(
            f"Expected {number} {wanted}, got the shape {list(images.shape)}; put the channels last, convert grey "
            f"to three equal channels, and use {other} for {'a batch' if dimensions == 3 else 'a single image'}."
        )
    return images


def check_indices(indices: Sequence[int] | npt.NDArray[np.integer] | None, count: int) -> list[int]:
    """One index in the dataset per image; by default their indices in the batch."""
    listed = list(range(count)) if indices is None else list(indices)
    if len(listed) != count:
        raise LmrError(f"Expected one index for each of the {count} images, got {len(listed)}.")
    for index in listed:
        _check_count("index of an image", index, 0)
    return [int(index) for index in listed]


def check_workers(workers: int) -> None:
    """At least this process."""
    _check_count("number of workers", workers, 1)


def _check_word(kind: str, word: object, known: Collection[str]) -> None:
    if word in known:
        return
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise LmrError(f"There is no {kind} {word!r}.{hint} Choose one of: {', '.join(known)}.")


def _check_count(label: str, value: object, least: int) -> None:
    if not _is_whole(value) or value < least:  # type: ignore[operator]
        raise LmrError(f"The {label} must be a whole number of at least {least}, got {value!r}.")


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
