"""Local Margin Restoration: keep a zero-shot image classifier accurate while the images it sees drift.

The public names are imported when they are first used, so that ``import lmr`` takes no time and needs no torch.
"""

from __future__ import annotations

import importlib

from lmr.version import __version__

TYPE_CHECKING = False  # for type checkers as in typing, whose import takes longer than all the rest here
if TYPE_CHECKING:
    from lmr.apps.export import export
    from lmr.apps.predict.gallery import Answers, predict
    from lmr.core.bases.bimodal import BimodalMethod
    from lmr.core.bases.norms import GradientMethod, NormMethod
    from lmr.core.bases.prompts import PromptMethod
    from lmr.core.bases.views import EpisodicMethod, ViewMethod
    from lmr.core.card import Card, Preset, Role, Scores, Tower
    from lmr.core.classifier import ZeroShot
    from lmr.core.errors import LmrError
    from lmr.core.functional.offset import Estimate
    from lmr.core.labelled import Labelled
    from lmr.core.method import Method
    from lmr.core.norms import NormBank
    from lmr.core.optim import Optimizer
    from lmr.core.passes import Passes, count_passes
    from lmr.core.pixel_scale import PixelScale
    from lmr.core.prediction import AdaptedParameters, Prediction, Step
    from lmr.core.registry import create, find_method, list_methods, register
    from lmr.core.reused import Reused
    from lmr.core.streams import Streams
    from lmr.core.text import TextReader, TextSide
    from lmr.core.views.view_maker import ViewMaker
    from lmr.core.wrapper import Wrapper
    from lmr.data.corruptions.apply import corrupt
    from lmr.data.dataset import Dataset, MissingData
    from lmr.images.files import UnreadableImage, list_images, open_image
    from lmr.models import Backbone, list_models, load
    from lmr.models.from_module import wrap_module
    from lmr.models.from_open_clip import from_open_clip
    from lmr.models.from_transformers import from_transformers, wrap_transformers
    from lmr.models.preprocessing import Preprocessing
    from lmr.service.client.client import Client
    from lmr.service.client.errors import ServiceError
    from lmr.watch.settings import Thresholds, WatchSettings
    from lmr.watch.watched import Watched

_PLACES = {
    "AdaptedParameters": "lmr.core.prediction",
    "Answers": "lmr.apps.predict.gallery",
    "Backbone": "lmr.models",
    "BimodalMethod": "lmr.core.bases.bimodal",
    "Card": "lmr.core.card",
    "Client": "lmr.service.client.client",
    "Dataset": "lmr.data.dataset",
    "EpisodicMethod": "lmr.core.bases.views",
    "Estimate": "lmr.core.functional.offset",
    "GradientMethod": "lmr.core.bases.norms",
    "Labelled": "lmr.core.labelled",
    "LmrError": "lmr.core.errors",
    "Method": "lmr.core.method",
    "MissingData": "lmr.data.dataset",
    "NormBank": "lmr.core.norms",
    "NormMethod": "lmr.core.bases.norms",
    "Optimizer": "lmr.core.optim",
    "Passes": "lmr.core.passes",
    "PixelScale": "lmr.core.pixel_scale",
    "Prediction": "lmr.core.prediction",
    "Preprocessing": "lmr.models.preprocessing",
    "Preset": "lmr.core.card",
    "PromptMethod": "lmr.core.bases.prompts",
    "Reused": "lmr.core.reused",
    "Role": "lmr.core.card",
    "Scores": "lmr.core.card",
    "ServiceError": "lmr.service.client.errors",
    "Step": "lmr.core.prediction",
    "Streams": "lmr.core.streams",
    "TextReader": "lmr.core.text",
    "TextSide": "lmr.core.text",
    "Thresholds": "lmr.watch.settings",
    "Tower": "lmr.core.card",
    "UnreadableImage": "lmr.images.files",
    "ViewMaker": "lmr.core.views.view_maker",
    "ViewMethod": "lmr.core.bases.views",
    "WatchSettings": "lmr.watch.settings",
    "Watched": "lmr.watch.watched",
    "Wrapper": "lmr.core.wrapper",
    "ZeroShot": "lmr.core.classifier",
    "corrupt": "lmr.data.corruptions.apply",
    "count_passes": "lmr.core.passes",
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
    "predict": "lmr.apps.predict.gallery",
    "register": "lmr.core.registry",
    "wrap_module": "lmr.models.from_module",
    "wrap_transformers": "lmr.models.from_transformers",
}

__all__ = [
    "AdaptedParameters",
    "Answers",
    "Backbone",
    "BimodalMethod",
    "Card",
    "Client",
    "Dataset",
    "EpisodicMethod",
    "Estimate",
    "GradientMethod",
    "Labelled",
    "LmrError",
    "Method",
    "MissingData",
    "NormBank",
    "NormMethod",
    "Optimizer",
    "Passes",
    "PixelScale",
    "Prediction",
    "Preprocessing",
    "Preset",
    "PromptMethod",
    "Reused",
    "Role",
    "Scores",
    "ServiceError",
    "Step",
    "Streams",
    "TextReader",
    "TextSide",
    "Thresholds",
    "Tower",
    "UnreadableImage",
    "ViewMaker",
    "ViewMethod",
    "WatchSettings",
    "Watched",
    "Wrapper",
    "ZeroShot",
    "__version__",
    "corrupt",
    "count_passes",
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
    "predict",
    "register",
    "wrap_module",
    "wrap_transformers",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'lmr' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
