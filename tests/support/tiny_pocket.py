"""The model "pocket" in a tiny size, for tests in which a model must be whole but need not be good."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

import lmr
from lmr.core.classifier import leave_inference_mode
from lmr.data.pocket_world import draw
from lmr.models.embedded import ASSETS, Embedded, EmbeddedConfig, EmbeddedTowers

SIDE = 16  # of an image, in pixels


@functools.cache
def make_file() -> bytes:
    """Random weights with the words of "pocket"; images and texts differ enough to be answered with many classes."""
    with safe_open(str(ASSETS / "pocket.safetensors"), framework="pt") as file:
        written = dict(file.metadata())
    config = replace(EmbeddedConfig(**json.loads(written["config"])), resolution=SIDE, width=16, depth=2, heads=2)
    config = replace(config, text_width=16, text_depth=1, text_heads=2, features=16)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        towers = EmbeddedTowers(config)
    with torch.no_grad():
        for name, value in towers.named_parameters():
            if name.endswith(("qkv.weight", "out.weight", "patches.weight")):
                value *= 3
            elif name.endswith("class_token"):
                value *= 0.1
            elif name.endswith("words.weight"):
                value *= 50
    return save(towers.state_dict(), written | {"config": json.dumps(asdict(config))})


def load_tiny() -> lmr.Backbone:
    """As lmr.load("pocket"); every call gives a model of its own."""
    with tempfile.NamedTemporaryFile() as file, leave_inference_mode():
        file.write(make_file())
        file.flush()
        return Embedded("pocket", Path(file.name))


def draw_tiny(sizes: tuple[int, ...], seed: int = 3) -> list[Tensor]:
    """Batches of the pocket world's pictures, preprocessed for the tiny model."""
    pictures, _ = draw(range(sum(sizes)), seed=seed)
    small = torch.from_numpy(pictures)[:, :: 32 // SIDE, :: 32 // SIDE]
    return list(load_tiny().preprocess_pixels(small).split(sizes))
