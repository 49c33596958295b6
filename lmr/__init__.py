"""Local Margin Restoration: keep a zero-shot image classifier accurate while the images it sees drift.

The public names are imported when they are first used, so that ``import lmr`` takes no time and needs no torch.
"""

from __future__ import annotations

import importlib

from lmr.version import __version__

TYPE_CHECKING = False  # for type checkers as in typing, whose import takes longer than all the rest here
if TYPE_CHECKING:
    from lmr.core.classifier import ZeroShot
    from lmr.core.errors import LmrError
    from lmr.core.method import Method, Prediction, Preset
    from lmr.core.norms import NormBank
    from lmr.core.registry import create, find_method, list_methods, register
    from lmr.models import Backbone, list_models, load
    from lmr.watching.watch_settings import Thresholds
    from lmr.watching.watched import Watched, watch

_PLACES = {
    "Backbone": "lmr.models",
    "LmrError": "lmr.core.errors",
    "Method": "lmr.core.method",
    "NormBank": "lmr.core.norms",
    "Prediction": "lmr.core.method",
    "Preset": "lmr.core.method",
    "Thresholds": "lmr.watching.watch_settings",
    "Watched": "lmr.watching.watched",
    "ZeroShot": "lmr.core.classifier",
    "create": "lmr.core.registry",
    "find_method": "lmr.core.registry",
    "list_methods": "lmr.core.registry",
    "list_models": "lmr.models",
    "load": "lmr.models",
    "register": "lmr.core.registry",
    "watch": "lmr.watching.watched",
}

__all__ = [
    "Backbone",
    "LmrError",
    "Method",
    "NormBank",
    "Prediction",
    "Preset",
    "Thresholds",
    "Watched",
    "ZeroShot",
    "__version__",
    "create",
    "find_method",
    "list_methods",
    "list_models",
    "load",
    "register",
    "watch",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'lmr' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
