"""SigLIP with the towers of transformers: precision, adaptation, and its tokenizer in the digest."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lmr
import siglip_maker as maker
from lmr.core.norms import NormBank

CONTEXT, SIDE, WIDTH = maker.CONTEXT, maker.SIDE, maker.WIDTH
NAMES = ["cat", "red_bird", "blue star"]


class Case:
    """A folder, and the model that was saved there."""

    def __init__(self, folder: Path, save: Callable[[Path], Any]) -> None:
        self.folder, self.model = folder, save(folder)

    def load(self, **options: Any) -> lmr.Backbone:
        return lmr.load(self.folder, **options)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("siglip"), maker.save_siglip)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def images() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(6, 3, SIDE, SIDE)


def test_step_moves_every_norm_as_autograd_does(siglip: Case, images: Tensor) -> None:
    """Entropy's gradient on the served norms is the one a plain copy of the model gets."""
    backbone = siglip.load()
    clip = backbone.classifier(NAMES)
    bank = NormBank(clip.encoder)
    rows = bank.start.unsqueeze(0).clone().requires_grad_()
    with bank.serve(rows):
        own = clip.logits(clip.cosines(clip.features(images))).log_softmax(1)
        (gradient,) = torch.autograd.grad(-(own.exp() * own).sum(), rows)
    model = copy.deepcopy(siglip.model).vision_model
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    for norm in norms:
        norm.requires_grad_(True)
    features = model(images).pooler_output
    features = features / features.norm(dim=1, keepdim=True)
    other = (np.exp(2.5) * features @ clip.prototypes.T - 4.25).log_softmax(1)
    (-(other.exp() * other).sum()).backward()
    expected = torch.cat([t for norm in norms for t in (norm.weight.grad, norm.bias.grad)])  # type: ignore[misc]
    torch.testing.assert_close(gradient[0], expected, rtol=1e-4, atol=1e-5)
    assert (expected.abs().view(12, WIDTH).sum(1) > 0).all()


def test_tokenizer_is_part_of_the_digest(siglip: Case, tmp_path: Path) -> None:
    copied = shutil.copytree(siglip.folder, tmp_path / "copy")
    assert lmr.load(copied).text_digest() == siglip.load().text_digest()
    settings = json.loads((copied / "tokenizer_config.json").read_text())
    (copied / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    assert lmr.load(copied).text_digest() != siglip.load().text_digest()
