"""The models pocket and photo in a tiny size, for tests in which a model must be whole but need not be good."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

import lmr
from lmr.core.classifier import leave_inference_mode
from lmr.models.embedded import PHOTO, Embedded, EmbeddedConfig, EmbeddedTowers
from pocket import POCKET, draw

SIZES = {"width": 16, "depth": 2, "heads": 2, "text_width": 16, "text_depth": 1, "text_heads": 2, "features": 16}
FILES = {"pocket": POCKET, "photo": PHOTO}
PATCHES = {"pocket": {"patch": 16}, "photo": {"stem": (4, 8, 8)}}  # a patch layer, or the channels of a stem
SEEDS = {"pocket": 6, "photo": 1}  # whose answers are neither all of one class nor all certain
FACTORS = {"conv.weight": 2.0, "qkv.weight": 3.0, "out.weight": 3.0, "patches.weight": 3.0}  # what differs, louder
FACTORS |= {"class_token": 0.1, "words.weight": 50.0}


@functools.cache
def make_file(name: str) -> bytes:
    """Random weights with the words of the real model; its answers have many classes and are more or less certain."""
    with safe_open(str(FILES[name]), framework="pt") as file:
        written = dict(file.metadata())
    config = replace(EmbeddedConfig(**json.loads(written["config"])), **SIZES | PATCHES[name])
    with torch.random.fork_rng():
        torch.manual_seed(SEEDS[name])
        towers = EmbeddedTowers(config)
    with torch.no_grad():
        for key, value in towers.named_parameters():
            value *= next((factor for ending, factor in FACTORS.items() if key.endswith(ending)), 1.0)
    tensors = {key: value.contiguous() for key, value in towers.state_dict().items()}
    return save(tensors, written | {"config": json.dumps(asdict(config))})


def load_tiny(name: str = "pocket") -> lmr.Backbone:
    """Every call gives a model of its own."""
    with tempfile.NamedTemporaryFile() as file, leave_inference_mode():
        file.write(make_file(name))
        file.flush()
        return Embedded(Path(file.name))


def draw_batches(sizes: Sequence[int], seed: int = 3) -> list[Tensor]:
    """Batches of the pocket world's pictures as its model takes them."""
    pictures, _ = draw(range(sum(sizes)), seed=seed)
    return list(load_tiny().preprocess(torch.from_numpy(pictures)).split(list(sizes)))
