"""Local Margin Restoration: keep a zero-shot image classifier accurate while the images it sees drift."""

from __future__ import annotations

import lmr.methods as _methods  # noqa: F401  (fills the registry)
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method, Prediction, Preset
from lmr.core.norms import NormBank
from lmr.core.registry import create, find_method, list_methods, register
from lmr.models import Backbone, list_models, load
from lmr.version import __version__

__all__ = [
    "Backbone",
    "LmrError",
    "Method",
    "NormBank",
    "Prediction",
    "Preset",
    "ZeroShot",
    "__version__",
    "create",
    "find_method",
    "list_methods",
    "list_models",
    "load",
    "register",
]
