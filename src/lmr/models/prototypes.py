"""Prototypes: one unit feature per class from its prompts, computed in chunks and cached on disk under a digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.core.log import LOGGER
from lmr.core.placement import digest_tensors
from lmr.core.progress import show_progress
from lmr.core.state import read_state, write_state

VERSION = "1"  # of how prompts become prototypes; a change of the computation or of the cleaning of texts changes it
CHUNK = 256

Cache = bool | str | os.PathLike[str]


def average_prompts(encode: Callable[[Sequence[str]], Tensor], prompts: Sequence[Sequence[str]]) -> Tensor:
    """Return unit features [C, D]: the prompts of a class are encoded, normalised, averaged and normalised again.

    Texts of similar length are encoded together, as the cost of a chunk is that of its longest text. On a terminal a
    progress bar appears when this takes long.
    """
    texts = [(text, number) for number, own in enumerate(prompts) for text in own]
    texts.sort(key=lambda pair: len(pair[0]))
    total = torch.empty(0)
    with show_progress("Encoding prompts", len(texts), "prompts", delay=2) as bar:
        for first in range(0, len(texts), CHUNK):
            chunk = texts[first : first + CHUNK]
            features = encode([text for text, _ in chunk])
            if first == 0:
                total = features.new_zeros(len(prompts), features.shape[1])
            total.index_add_(0, torch.tensor([number for _, number in chunk], device=features.device), features)
            bar.advance(len(chunk))
    count = torch.tensor([len(own) for own in prompts], device=total.device)
    return F.normalize(total / count.unsqueeze(1), dim=-1)


def find_cache(cache: Cache) -> Path | None:
    """Return the folder of cached prototypes: the given one, or one in ``$LMR_CACHE`` or ``~/.cache/lmr``."""
    if cache is False:
        return None
    if isinstance(cache, str | os.PathLike):
        return Path(cache)
    try:
        return Path(os.environ.get("LMR_CACHE") or Path.home() / ".cache" / "lmr") / "prototypes"
    except RuntimeError:  # there is no home folder
        return None


def name_prototypes(tower_digest: str, prompts: Sequence[Sequence[str]]) -> str:
    """Return a digest that identifies the prototypes of these prompts under this text tower."""
    content = json.dumps([VERSION, tower_digest, [list(own) for own in prompts]])
    return hashlib.sha256(content.encode()).hexdigest()


def find_prototypes(path: Path, classes: int, compute: Callable[[], Tensor]) -> Tensor:
    """Return the prototypes [classes, D] in a file of the cache; without a valid one, compute and keep them.

    Where they cannot be kept, they are computed again next time.
    """
    with contextlib.suppress(LmrError, KeyError):
        kept = read_state(path)[0]["prototypes"]
        if len(kept) == classes:
            return kept
    prototypes = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_state(path, {"prototypes": prototypes}, {})
    except (OSError, LmrError) as error:
        LOGGER.info("Prototypes cannot be cached and are computed again next time: %s", error)
    return prototypes


def digest_tower(tower: nn.Module) -> str:
    """Return the digest of a text tower's weights and settings, computed each time, as weights can change unnoticed."""
    # Heads and activation are not in the weights.
    settings = f"{type(tower).__name__} {getattr(tower, 'config', None)!r}"
    return hashlib.sha256(f"{settings} {digest_tensors(tower.state_dict())}".encode()).hexdigest()
