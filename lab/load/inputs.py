"""Inputs of the experiments: the served models, the streams, and random images of fixed seeds."""

from __future__ import annotations

import io
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lmr.apps.method_options import MethodOptions
from lmr.core.method import Method
from lmr.core.registry import create
from lmr.models import Backbone, load
from lmr.watch.watched import Watched

CLASSES = ("cat", "dog", "ship", "truck", "bird", "frog", "horse", "deer", "airplane", "automobile")


@dataclass(frozen=True)
class LoadModel:
    """A model for ``lmr serve``, which can be loaded in this process for comparison."""

    name: str
    path: str  # for --model
    classes: tuple[str, ...]
    side: int
    method: str = "lmr"

    @property
    def options(self) -> list[str]:
        """Return the options of ``lmr serve``."""
        given = self.method_options
        return ["--model", given.model, "--labels", ",".join(self.classes), "--method", given.method, "--watch", "on"]

    @property
    def method_options(self) -> MethodOptions:
        """Return the same options for a method in this process."""
        return MethodOptions(model=self.path, labels=list(self.classes), method=self.method, watch="on")

    def load(self) -> Backbone:
        """Load the model in this process."""
        return load(self.path)


def find_photo() -> LoadModel:
    """Return the model of photographs that comes with lmr."""
    return LoadModel("photo", "photo", CLASSES, 32)


def write_random_vit(folder: Path) -> LoadModel:
    """Write CLIP ViT-B/16 with random weights as a Hugging Face folder of 600 MB, unless it is there."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    path = folder / "random-vit-b-16"
    if not (path / "config.json").exists():
        torch.manual_seed(0)
        model = CLIPModel(CLIPConfig(vision_config={"patch_size": 16}))
        words = [letter + end for end in ("", "</w>") for letter in string.ascii_lowercase]
        special = {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
        tokenizer = CLIPTokenizer({word: number for number, word in enumerate(words)} | special, [])
        path.mkdir(parents=True, exist_ok=True)
        # All that is not named is as in CLIP.
        (path / "preprocessor_config.json").write_text('{"image_processor_type": "CLIPImageProcessor"}')
        tokenizer.save_pretrained(path)
        model.save_pretrained(path)
    return LoadModel("ViT-B/16, random weights", str(path), CLASSES, 224)


def make_method(model: LoadModel, backbone: Backbone, streams: int, spec: str, watched: bool) -> Method | Watched:
    """Return the method that a service serves, by the spec that the service reports."""
    method = create(spec, backbone.classifier(model.classes), streams=streams)
    return Watched(method) if watched else method


def name_streams(count: int) -> Sequence[str]:
    """Return names of streams, sorted by their numbers."""
    return [f"load-{number:05d}" for number in range(count)]


def draw_pixels(number: int, side: int) -> NDArray[np.uint8]:
    """Return smooth random colours [side, side, 3], of which models are sure for some numbers only."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
    return np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))


def draw_image(number: int, side: int) -> bytes:
    """Return the same image as the content of a PNG file."""
    return encode_pixels(draw_pixels(number, side), "PNG")


def draw_tensor(numbers: Sequence[int], side: int) -> Tensor:
    """Return the pixels of several images [n, side, side, 3]."""
    return torch.stack([torch.from_numpy(draw_pixels(number, side).copy()) for number in numbers])


def encode_pixels(pixels: NDArray[np.uint8], kind: str) -> bytes:
    """Return pixels as the content of an image file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()
