"""Local Margin Restoration: keep a zero-shot image classifier accurate while the images it sees drift.

The public names are imported when they are first used, so that ``import lmr`` takes no time and needs no torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from lmr.version import __version__

TYPE_CHECKING = False  # for type checkers as in typing, whose import takes longer than all the rest here
if TYPE_CHECKING:
    from lmr.apps.export import export
    from lmr.core.batch import FrozenAnswer, Mix, Prediction
    from lmr.core.bimodal import BimodalMethod
    from lmr.core.classifier import ZeroShot
    from lmr.core.errors import LmrError
    from lmr.core.gradient import GradientMethod, NormMethod
    from lmr.core.method import Method
    from lmr.core.norms import NormBank
    from lmr.core.optim import Optimizer
    from lmr.core.prompts.prompt_method import PromptMethod
    from lmr.core.registry import create, find_method, list_methods, register
    from lmr.core.text import TextReader, TextSide
    from lmr.core.traits import Passes, Preset, Role, Scores, Tower
    from lmr.core.views.pixel_scale import PixelScale
    from lmr.core.views.view_maker import ViewMaker
    from lmr.core.views.view_method import EpisodicMethod, ViewMethod
    from lmr.data.dataset import Dataset, MissingData
    from lmr.images.files import UnreadableImage, list_images, open_image
    from lmr.models import Backbone, list_models, load
    from lmr.models.from_open_clip import from_open_clip
    from lmr.models.from_transformers import from_transformers, wrap_transformers
    from lmr.models.preprocessing import Preprocessing
    from lmr.service.client.client import Client
    from lmr.service.client.errors import ServiceError
    from lmr.watch.watch_method import watch
    from lmr.watch.watch_settings import Thresholds
    from lmr.watch.watched import Watched

_PLACES = {
    "Backbone": "lmr.models",
    "BimodalMethod": "lmr.core.bimodal",
    "Client": "lmr.service.client.client",
    "Dataset": "lmr.data.dataset",
    "EpisodicMethod": "lmr.core.views.view_method",
    "FrozenAnswer": "lmr.core.batch",
    "GradientMethod": "lmr.core.gradient",
    "LmrError": "lmr.core.errors",
    "Method": "lmr.core.method",
    "MissingData": "lmr.data.dataset",
    "Mix": "lmr.core.batch",
    "NormBank": "lmr.core.norms",
    "NormMethod": "lmr.core.gradient",
    "Optimizer": "lmr.core.optim",
    "Passes": "lmr.core.traits",
    "PixelScale": "lmr.core.views.pixel_scale",
    "Prediction": "lmr.core.batch",
    "Preprocessing": "lmr.models.preprocessing",
    "Preset": "lmr.core.traits",
    "PromptMethod": "lmr.core.prompts.prompt_method",
    "Role": "lmr.core.traits",
    "Scores": "lmr.core.traits",
    "ServiceError": "lmr.service.client.errors",
    "TextReader": "lmr.core.text",
    "TextSide": "lmr.core.text",
    "Thresholds": "lmr.watch.watch_settings",
    "Tower": "lmr.core.traits",
    "UnreadableImage": "lmr.images.files",
    "ViewMaker": "lmr.core.views.view_maker",
    "ViewMethod": "lmr.core.views.view_method",
    "Watched": "lmr.watch.watched",
    "ZeroShot": "lmr.core.classifier",
    "create": "lmr.core.registry",
    "export": "lmr.apps.export",
    "find_method": "lmr.core.registry",
    "from_open_clip": "lmr.models.from_open_clip",
    "from_transformers": "lmr.models.from_transformers",
    "list_images": "lmr.images.files",
    "list_methods": "lmr.core.registry",
    "list_models": "lmr.models",
    "load": "lmr.models",
    "open_image": "lmr.images.files",
    "register": "lmr.core.registry",
    "watch": "lmr.watch.watch_method",
    "wrap_transformers": "lmr.models.from_transformers",
}

__all__ = [
    "Backbone",
    "BimodalMethod",
    "Client",
    "Dataset",
    "EpisodicMethod",
    "FrozenAnswer",
    "GradientMethod",
    "LmrError",
    "Method",
    "MissingData",
    "Mix",
    "NormBank",
    "NormMethod",
    "Optimizer",
    "Passes",
    "PixelScale",
    "Prediction",
    "Preprocessing",
    "Preset",
    "PromptMethod",
    "Role",
    "Scores",
    "ServiceError",
    "TextReader",
    "TextSide",
    "Thresholds",
    "Tower",
    "UnreadableImage",
    "ViewMaker",
    "ViewMethod",
    "Watched",
    "ZeroShot",
    "__version__",
    "create",
    "export",
    "find_method",
    "from_open_clip",
    "from_transformers",
    "list_images",
    "list_methods",
    "list_models",
    "load",
    "open_image",
    "register",
    "watch",
    "wrap_transformers",
]


class _Package(ModuleType):
    """Keeps public names, such as ``lmr.watch``, from being replaced by sub-packages of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'lmr' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
