"""What a loaded model is: what it says of itself, and what can be counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from lmr.apps.doctor.self_check import find_place
from lmr.core.card import Tower
from lmr.core.classifier import digest_tensors
from lmr.core.errors import LmrError
from lmr.core.norms import NormBank
from lmr.models import Backbone
from lmr.models.facts import ModelFacts
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.text import TextConfig, TextTower


@dataclass(frozen=True)
class TowerDescription:
    """One tower: its number of parameters, the SHA-256 of its weights, and its sizes where it is one of ours."""

    parameters: int
    digest: str
    config: VisionConfig | TextConfig | None = None
    stem: bool = False  # whether convolutions make the tokens of an image, in place of a patch layer


@dataclass(frozen=True)
class ModelDescription:
    """What was loaded."""

    name: str
    facts: ModelFacts = field(default_factory=ModelFacts)
    towers: dict[Tower, TowerDescription] = field(default_factory=dict)
    input_shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    adapted: int | None = None  # parameters of the image tower's layer norms; None where it has no layer norms
    logit_scale: float = 100.0
    logit_bias: float = 0.0


def describe_model(backbone: Backbone, texts: Sequence[str]) -> ModelDescription:
    """Describe a model; ``texts`` are some that it can read, or none if it has no tokenizer."""
    side = backbone.text_side(list(texts)) if texts else None
    device, dtype = find_place(backbone.encoder)
    towers = {Tower.IMAGE: backbone.encoder} | ({} if side is None else {Tower.TEXT: side.tower})
    try:
        adapted = NormBank(backbone.encoder).size
    except LmrError:
        adapted = None
    return ModelDescription(
        backbone.name,
        backbone.model_facts,
        {which: _describe_tower(tower) for which, tower in towers.items()},
        backbone.input_shape,
        dtype,
        device,
        adapted,
        backbone.logit_scale,
        backbone.logit_bias,
    )


def _describe_tower(tower: nn.Module) -> TowerDescription:
    config = tower.config if isinstance(tower, VisionTower | TextTower) else None
    parameters = sum(p.numel() for p in tower.parameters())
    stem = isinstance(tower, VisionTower) and not tower.is_clip
    return TowerDescription(parameters, digest_tensors(tower.state_dict()), config, stem)
