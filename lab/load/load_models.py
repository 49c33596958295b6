"""The models that are loaded with work: the pocket model, and ViT-B/16 with random weights as a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmr.core.method import Method
from lmr.core.registry import create
from lmr.models import Backbone, load
from lmr.watch.watched import Watched

POCKET_CLASSES = ("red ring", "blue star", "green square", "purple cross")
VIT_CLASSES = ("cat", "dog", "ship", "truck", "bird", "frog", "horse", "deer", "airplane", "automobile")


@dataclass(frozen=True)
class LoadModel:
    """What ``lmr serve`` is told to serve, and the same in this process, to compare with."""

    name: str
    path: str  # for --model
    classes: tuple[str, ...]
    side: int
    method: str = "lmr"

    @property
    def options(self) -> list[str]:
        """For ``lmr serve``."""
        return ["--model", self.path, "--labels", ",".join(self.classes), "--method", self.method]

    def load(self) -> Backbone:
        """The same model in this process."""
        return load(self.path)


def find_pocket() -> LoadModel:
    """The model of drawings that comes with lmr."""
    return LoadModel("pocket", "pocket", POCKET_CLASSES, 32)


def write_random_vit(folder: Path) -> LoadModel:
    """CLIP ViT-B/16 with random weights as a Hugging Face folder of 600 MB; made once in a folder."""
    from lmr.models.clip import random_clip
    from lmr.models.formats.export import build_transformers_clip, write_model
    from lmr.models.towers.image import VisionTower
    from lmr.models.towers.text import TextTower

    path = folder / "random-vit-b-16"
    if not (path / "config.json").exists():
        backbone = random_clip("ViT-B-16")
        image, side = backbone.encoder, backbone.text_side(["a photo."])
        assert isinstance(image, VisionTower)
        assert side is not None
        assert isinstance(side.tower, TextTower)
        write_model(build_transformers_clip(image, side.tower), path)
    return LoadModel("ViT-B/16, random weights", str(path), VIT_CLASSES, 224)


def make_method(model: LoadModel, backbone: Backbone, streams: int, spec: str, watched: bool) -> Method:
    """The method that the service serves, by the spec that the service itself names."""
    method = create(spec, backbone.classifier(model.classes), streams=streams)
    return Watched(method) if watched else method


def name_streams(count: int) -> Sequence[str]:
    """Names whose order is that of their numbers."""
    return [f"load-{number:05d}" for number in range(count)]
