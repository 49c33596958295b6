"""Sizes of the CLIP models people use, under the names open_clip gave them."""

from __future__ import annotations

from dataclasses import replace

from lmr.core.errors import LmrError
from lmr.core.spec import suggest
from lmr.models.towers.image import VisionConfig
from lmr.models.towers.text import TextConfig

Sizes = tuple[VisionConfig, TextConfig]  # of the image tower and of the text tower
QUICK = "-quickgelu"  # open_clip's ending for the same sizes with QuickGELU in both towers

# name: (resolution, patch, width, depth, head width, hidden), (text width, heads, depth), features of both.
# Source: the files src/open_clip/model_configs/ViT-*.json of github.com/mlfoundations/open_clip; where these give a
# ratio, hidden is int(width * ratio). OpenAI's own models have the sizes of B-32, B-16, L-14 and L-14-336.
_TABLE: dict[str, tuple[tuple[int, int, int, int, int, int], tuple[int, int, int], int]] = {
    "ViT-S-32": ((224, 32, 384, 12, 64, 1536), (384, 6, 12), 384),
    "ViT-S-16": ((224, 16, 384, 12, 64, 1536), (384, 6, 12), 384),
    "ViT-M-32": ((224, 32, 512, 12, 64, 2048), (512, 8, 12), 512),
    "ViT-M-16": ((224, 16, 512, 12, 64, 2048), (512, 8, 12), 512),
    "ViT-B-32": ((224, 32, 768, 12, 64, 3072), (512, 8, 12), 512),
    "ViT-B-32-256": ((256, 32, 768, 12, 64, 3072), (512, 8, 12), 512),
    "ViT-B-32-plus-256": ((256, 32, 896, 12, 64, 3584), (640, 10, 12), 640),
    "ViT-B-16": ((224, 16, 768, 12, 64, 3072), (512, 8, 12), 512),
    "ViT-B-16-plus": ((224, 16, 896, 12, 64, 3584), (640, 10, 12), 640),
    "ViT-B-16-plus-240": ((240, 16, 896, 12, 64, 3584), (640, 10, 12), 640),
    "ViT-L-16": ((224, 16, 1024, 24, 64, 4096), (768, 12, 12), 768),
    "ViT-L-16-320": ((320, 16, 1024, 24, 64, 4096), (768, 12, 12), 768),
    "ViT-L-14": ((224, 14, 1024, 24, 64, 4096), (768, 12, 12), 768),
    "ViT-L-14-280": ((280, 14, 1024, 24, 64, 4096), (768, 12, 12), 768),
    "ViT-L-14-336": ((336, 14, 1024, 24, 64, 4096), (768, 12, 12), 768),
    "ViT-H-16": ((224, 16, 1280, 32, 80, 5120), (1024, 16, 24), 1024),
    "ViT-H-14": ((224, 14, 1280, 32, 80, 5120), (1024, 16, 24), 1024),
    "ViT-H-14-378": ((378, 14, 1280, 32, 80, 5120), (1024, 16, 24), 1024),
    "ViT-g-14": ((224, 14, 1408, 40, 88, 6144), (1024, 16, 24), 1024),
    "ViT-bigG-14": ((224, 14, 1664, 48, 104, 8192), (1280, 20, 32), 1280),
    "ViT-e-14": ((224, 14, 1792, 56, 112, 15360), (1280, 20, 36), 1280),
}


def _build(name: str) -> Sizes:
    (resolution, patch, width, depth, head, hidden), (text_width, text_heads, text_depth), features = _TABLE[name]
    vision = VisionConfig(resolution, patch, width, depth, width // head, features, hidden, "gelu")
    words = TextConfig(77, 49408, text_width, text_depth, text_heads, features, 4 * text_width, "gelu")
    return vision, words


ARCHITECTURES: dict[str, Sizes] = {name: _build(name) for name in _TABLE}


def find_architecture(name: str) -> Sizes:
    """Return the sizes of an architecture by open_clip's name: GELU, or QuickGELU with the ending ``-quickgelu``."""
    plain = name.removesuffix(QUICK) if isinstance(name, str) else name
    if plain not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise LmrError(
            f"There is no architecture {name!r}.{suggest(name, ARCHITECTURES)} There are: {known}; each also with the "
            f"suffix {QUICK!r}."
        )
    return ARCHITECTURES[plain] if plain == name else use_quick_gelu(ARCHITECTURES[plain])


def use_quick_gelu(sizes: Sizes) -> Sizes:
    """Return the same sizes with QuickGELU in both towers."""
    return replace(sizes[0], activation="quick_gelu"), replace(sizes[1], activation="quick_gelu")


def name_architecture(vision: VisionConfig, text: TextConfig) -> str | None:
    """Return the name of these sizes in the table, or None; the inverse of ``find_architecture``."""
    names = (name + ending for ending in ("", QUICK) for name in ARCHITECTURES)
    return next((name for name in names if find_architecture(name) == (vision, text)), None)
