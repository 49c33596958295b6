"""Models: the only code that knows model formats."""

from __future__ import annotations

from collections.abc import Callable

from lmr.backbones.backbone import Backbone
from lmr.core.errors import LmrError
from lmr.core.spec import suggest
from lmr.core.zeroshot import leave_inference_mode

__all__ = ["Backbone", "list_models", "load"]


def _load_pocket() -> Backbone:
    from lmr.backbones.pocket import load_pocket

    return load_pocket()


_MODELS: dict[str, tuple[Callable[[], Backbone], str]] = {
    "pocket": (_load_pocket, "the embedded model: 32x32 pictures of coloured shapes, no download"),
}


def list_models() -> dict[str, str]:
    """The names ``load`` knows, each with a line about it."""
    return {name: line for name, (_, line) in _MODELS.items()}


def load(name: str) -> Backbone:
    """Load a vision-language model by name."""
    if name not in _MODELS:
        raise LmrError(f"There is no model {name!r}.{suggest(name, _MODELS)} There are: {', '.join(_MODELS)}.")
    with leave_inference_mode():
        return _MODELS[name][0]()
