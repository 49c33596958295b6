"""``lmr.load``: one name or path, one model."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import checkpoint_maker as maker
import lmr
from lmr.models.clip import Clip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return maker.write_huggingface(maker.make_model(), tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", ["phot", "ViT-B-61"])
def test_unknown_name_gets_a_message(name: str) -> None:
    words = rf"There is no model {name!r}\. Did you mean .* There are: photo, .*folders"
    with pytest.raises(lmr.LmrError, match=words):
        lmr.load(name)


def test_embedded_model_follows_device_and_type() -> None:
    assert lmr.load("photo", device="cpu", dtype=torch.bfloat16).dtype == torch.bfloat16
    backbone = lmr.load("photo", dtype="float64")
    assert backbone.dtype == torch.float64
    clip = backbone.classifier(["cat", "dog"])
    assert lmr.create("tent", clip).step(torch.randn(4, 3, 32, 32, dtype=torch.float64)).logits.dtype == torch.float64
    assert clip.to(dtype="float32").dtype == torch.float32
    with pytest.raises(lmr.LmrError, match="'meta' cannot be used here"):
        lmr.load("photo", device="meta")


def test_path_is_never_a_short_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photo", "ViT-B-16"):
        shutil.copytree(folder, tmp_path / name)
        for path in (Path(name), f"./{name}"):
            assert isinstance(lmr.load(path), Clip)
    assert not isinstance(lmr.load("photo"), Clip)
    for path in (Path("poket"), "./poket", "not/a/model"):
        with pytest.raises(lmr.LmrError, match="There is no folder"):
            lmr.load(path)


def test_single_file_gets_a_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for path in (folder / "model.safetensors", f"{folder.name}/model.safetensors"):
        with pytest.raises(lmr.LmrError, match="weights"):
            lmr.load(path)


def test_embedded_model_does_not_import_transformers(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), "navy").save(tmp_path / "photo.png")
    program = (
        "import sys, lmr, lmr.cli; lmr.load('photo').classifier(['cat', 'ship']); "
        f"assert lmr.cli.main(['predict', {str(tmp_path)!r}, '--labels', 'cat,ship']) == 0; "
        "sys.exit(' '.join({'transformers', 'tokenizers', 'huggingface_hub'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_loaded_model_is_frozen_and_says_what_it_is(folder: Path) -> None:
    backbone = lmr.load(folder)
    assert isinstance(backbone, Clip)
    for tower in (backbone.encoder, backbone.text):
        assert not any(parameter.requires_grad or parameter.is_meta for parameter in tower.parameters())
        assert not any(module.training for module in tower.modules())
    assert backbone.facts == {
        "format": "CLIP",
        "activation": "quick_gelu",
        "preprocessing": "short side to 32, bicubic",
        "tokenizer": f"CLIPTokenizer, {maker.WORDS} tokens",
        "context": "16",
    }


BAD_DEVICE = r"The device .* cannot be used here: .* Use 'cpu'\."


@pytest.mark.parametrize("device", ["nonsense", "cpu:-7", 3.5, "", "meta", "hpu"])
def test_unusable_device_is_refused(device: Any, folder: Path) -> None:
    with pytest.raises(lmr.LmrError, match=BAD_DEVICE):
        lmr.load(folder, device=device)
