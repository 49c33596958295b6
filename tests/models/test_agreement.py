"""Features beside transformers': they agree for every format, and a wrong activation or weight is found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import checkpoint_maker as maker
import lmr
import siglip_maker as siglip
from lmr.cli import main
from lmr.models.agreement import Agreement, compare_with_transformers, find_folder
from lmr.models.facts import ModelFormat
from lmr.models.formats.export import build_transformers_vision
from lmr.models.towers.image import VisionTower

BY_TRANSFORMERS, BY_LMR = "which read the files itself", "with the weights as loaded here"
TEXTS = ["cat", "a photo of a dog.", "two small birds in a tree"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept in the home of whoever runs the tests."""
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model in Hugging Face's form and in open_clip's, with CLIP's vocabulary."""
    root = tmp_path_factory.mktemp("models")
    model = maker.make_model("gelu", words=49408)
    maker.write_huggingface(model, root / "huggingface")
    maker.write_open_clip(model, root / "open_clip")
    config = maker.make_open_clip_config(False, text={"vocab_size": 49408})
    maker.write_json(config, root / "open_clip" / "open_clip_config.json")
    return {path.name: path for path in root.iterdir()}


def compare(backbone: lmr.Backbone) -> Agreement:
    images = torch.randn(2, *backbone.input_shape, generator=torch.Generator().manual_seed(0))
    return compare_with_transformers(backbone, images, TEXTS)


@pytest.mark.parametrize(("kind", "reader"), [("huggingface", BY_TRANSFORMERS), ("open_clip", BY_LMR)])
def test_features_agree(folders: dict[str, Path], kind: str, reader: str) -> None:
    backbone = lmr.load(folders[kind])
    assert find_folder(backbone) == (folders[kind] if kind == "huggingface" else None)
    found = compare(backbone)
    assert found.note == reader
    assert found.compared
    assert found.holds(1e-5)
    assert 0 <= found.image < 1e-5
    assert 0 <= found.text < 1e-5


@pytest.mark.parametrize("kind", ["huggingface", "open_clip"])
def test_wrong_activation_is_found(folders: dict[str, Path], kind: str) -> None:
    backbone = lmr.load(folders[kind])
    for tower in (backbone.encoder, backbone.text_side(TEXTS).tower):
        for block in tower.blocks:
            block.mlp.activation = "gelu_tanh"  # the nearest mistake there is; the configuration still says gelu
    found = compare(backbone)
    assert found.image > 1e-5
    assert found.text > 1e-5


def test_quick_gelu_is_unfolded(tmp_path: Path) -> None:
    model = maker.make_model("quick_gelu", words=49408)
    torch.save(maker.make_openai_state(model), tmp_path / "ViT-tiny.pt")
    found = compare(lmr.load(tmp_path / "ViT-tiny.pt"))
    assert found.note == BY_LMR
    assert found.image < 1e-5
    assert found.text < 1e-5


@pytest.mark.parametrize("save", [siglip.save_siglip, siglip.save_siglip2], ids=["siglip", "siglip2"])
def test_siglip_passes_every_check(save: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its pooled features and its padded texts, read once more by transformers from the same files."""
    save(tmp_path / "model")
    assert main(["doctor", str(tmp_path / "model")]) == 0
    text = capsys.readouterr().out
    assert "through transformers" in text
    assert "logit scale    12.18, bias -4.25\n" in text
    assert "  ok      agreement with transformers: image " in text
    assert "which read the files itself" in text


@pytest.mark.parametrize("kind", ["tuned", "prefix", "table"])
def test_weights_that_transformers_would_not_read_are_handed_over(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """A tuned file beside the original, and a file whose names or table only we take the wrapping off."""
    folder = shutil.copytree(folders["huggingface"], tmp_path / "copy")
    state = {name: 1.1 * t if t.ndim else t for name, t in load_file(folder / "model.safetensors").items()}
    if kind == "tuned":
        path = folder / "tuned.safetensors"
        save_file(state, path)
    else:
        (folder / "model.safetensors").unlink()
        path = folder / "pytorch_model.bin"
        torch.save({"state_dict": state} if kind == "table" else {f"module.{n}": t for n, t in state.items()}, path)
    found = compare(lmr.load(path))
    assert found.note == BY_LMR
    assert found.image < 1e-5
    assert found.text < 1e-5


def test_siglip_that_transformers_would_not_read_is_not_compared(tmp_path: Path) -> None:
    siglip.save_siglip(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "tuned.safetensors")
    found = compare(lmr.load(tmp_path))
    assert "which would not read these weights" in found.note
    assert not found.compared
    assert not found.holds(float("inf"))


def test_siglip_without_its_tokenizer_is_not_compared(tmp_path: Path) -> None:
    siglip.save_siglip(tmp_path)
    backbone = lmr.load(tmp_path)
    for name in ("spiece.model", "tokenizer.json"):
        (tmp_path / name).unlink(missing_ok=True)
    images = torch.randn(2, *backbone.input_shape)
    assert "no tokenizer" in compare_with_transformers(backbone, images, ["cat", "dog"]).note


def test_words_of_the_screen_decide_nothing(folders: dict[str, Path]) -> None:
    """Whatever the facts are called on the screen, the comparison asks their types."""
    backbone = lmr.load(folders["huggingface"])
    backbone.facts = {"format": "a folder of another hub", "files": "elsewhere", "unwrapped": "all of it"}
    assert backbone.model_facts.format is ModelFormat.HUGGINGFACE
    assert compare(backbone).note == BY_TRANSFORMERS


def test_wrong_weight_is_found_where_transformers_read_the_files(folders: dict[str, Path]) -> None:
    backbone = lmr.load(folders["huggingface"])
    assert isinstance(backbone.encoder, VisionTower)
    with torch.no_grad():
        backbone.encoder.blocks[1].qkv.weight[:5] *= 1.5
    found = compare(backbone)
    assert found.image > 1e-4
    assert found.text < 1e-5


def test_the_embedded_model_agrees_too() -> None:
    """Its end token is not its highest id, so this one is not found by transformers' own rule."""
    backbone = lmr.load("pocket")
    found = compare_with_transformers(backbone, torch.randn(2, 3, 32, 32), ["red star", "a photo of a blue ring"])
    assert found.note == BY_LMR
    assert found.image < 1e-5
    assert found.text < 1e-5


def test_model_with_a_stem_agrees_after_it() -> None:
    """Transformers has no such layers, so they are the same in both; everything after them is compared."""
    backbone = lmr.load("photo")
    images, texts = torch.randn(2, 3, 32, 32), ["cat", "a photo of a pickup truck."]
    found = compare_with_transformers(backbone, images, texts)
    assert found.note == "with weights and stem as loaded"
    assert found.image < 1e-5
    assert found.text < 1e-5
    encoder = backbone.encoder
    assert isinstance(encoder, VisionTower)
    plain = build_transformers_vision(encoder)
    with torch.no_grad():
        features = plain(images).image_embeds
        next(encoder.patches.parameters()).mul_(2.0)
        assert torch.equal(plain(images).image_embeds, features)  # it has its own copy of the stem
        assert not torch.allclose(encoder(images), features, atol=1e-3)


def test_screen_of_a_checkpoint(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(folders["huggingface"])]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "Hugging Face (safetensors)" in said.out
    assert "32 pixels in patches of 8, 2 blocks, 128 wide, 2 heads, 24 features" in said.out
    assert "activation     gelu\n" in said.out
    assert "  ok      agreement with transformers: image " in said.out


def test_half_precision_is_told_by_its_own_tolerance(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(folders["open_clip"]), "--dtype", "bfloat16", "--memory", "lean"]) == 0
    text = capsys.readouterr().out
    assert "bfloat16 on cpu" in text
    assert "(limit 0.05), with the weights as loaded here" in text


def test_damaged_config_is_a_failed_check(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = folders["huggingface"]
    backbone = lmr.load(folder)
    config = folder / "config.json"
    whole = config.read_text()
    try:
        config.write_text(whole[: len(whole) // 2])
        from lmr.apps.doctor.examine import examine

        report = examine(backbone)
    finally:
        config.write_text(whole)
    assert [kind.name for kind in report.failed] == ["AGREEMENT"]
    assert "transformers cannot run these weights" in str(report)
