"""Sizes of the CLIP models people use, under the names open_clip gave them."""

from __future__ import annotations

from lmr.backbones.text import TextConfig
from lmr.backbones.vit import VisionConfig
from lmr.core.errors import LmrError
from lmr.core.spec import suggest

_LARGE_TEXT = TextConfig(width=768, heads=12, features=768, hidden=3072)

ARCHITECTURES: dict[str, tuple[VisionConfig, TextConfig]] = {
    "ViT-B-32": (VisionConfig(patch=32), TextConfig()),
    "ViT-B-16": (VisionConfig(), TextConfig()),
    "ViT-L-14": (VisionConfig(patch=14, width=1024, depth=24, heads=16, features=768, hidden=4096), _LARGE_TEXT),
}


def find_architecture(name: str) -> tuple[VisionConfig, TextConfig]:
    """The sizes of an architecture by its name."""
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise LmrError(f"There is no architecture {name!r}.{suggest(name, ARCHITECTURES)} There are: {known}.")
    return ARCHITECTURES[name]
