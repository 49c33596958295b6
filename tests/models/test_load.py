"""``lmr.load``: one name or path, one model."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoint_maker as maker
import lmr
from lmr.cli import main
from lmr.models.clip import Clip, random_clip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return maker.write_huggingface(maker.make_model(words=49408), tmp_path_factory.mktemp("model"))


def test_names_are_described() -> None:
    models = lmr.list_models()
    assert {"photo", "pocket", "ViT-B-32", "ViT-B-16", "ViT-L-14", "ViT-L-14-336"} <= set(models)
    assert all(line and "\n" not in line for line in models.values())
    assert any(name.startswith("laion/") for name in models)
    assert any(name.startswith("google/siglip") for name in models)
    models.clear()
    assert lmr.list_models()


@pytest.mark.parametrize("name", ["poket", "ViT-B-61"])
def test_unknown_name_gets_a_message(name: str) -> None:
    words = rf"There is no model {name!r}\. Did you mean .* There are: photo, pocket, .*any folder"
    with pytest.raises(lmr.LmrError, match=words):
        lmr.load(name)


@pytest.mark.parametrize("name", [None, 3, b"pocket", ["pocket"]])
def test_what_is_no_name_gets_a_message(name: Any) -> None:
    with pytest.raises(lmr.LmrError, match="Expected the name or the path of a model"):
        lmr.load(name)


def test_embedded_model_has_its_own_architecture_and_follows_device_and_type() -> None:
    assert lmr.load("pocket", device="cpu", dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(lmr.LmrError, match="has its own architecture; omit"):
        lmr.load("pocket", architecture="ViT-B-32")
    with pytest.raises(lmr.LmrError, match="'meta' cannot be used here"):
        lmr.load("pocket", device="meta")


@pytest.mark.parametrize("memory", ["fast", "lean"])
def test_embedded_model_follows_its_mode(memory: Any) -> None:
    assert lmr.load("pocket", memory=memory).encoder.memory == memory


@pytest.mark.parametrize("options", [{"memory": "bogus"}, {"dtype": "bfloat16"}, {"dtype": torch.complex64}], ids=str)
def test_odd_options_get_a_message_before_anything_is_read(options: Any, tmp_path: Path) -> None:
    for name in ("pocket", tmp_path / "nowhere"):
        with pytest.raises(lmr.LmrError, match=r"Expected memory 'fast' or 'lean'|Expected one of torch\.float32"):
            lmr.load(name, **options)


def test_path_is_never_a_short_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pocket", "ViT-B-16", "ViT-B/16"):
        shutil.copytree(folder, tmp_path / name)
        for path in (Path(name), f"./{name}"):
            assert lmr.load(path).facts["files"] == str(Path(name) / "model.safetensors")
        with pytest.raises(lmr.LmrError, match=rf"{name!r} is the name of a model and of a folder .* give '\./{name}'"):
            lmr.load(name)
    shutil.rmtree("pocket")
    with pytest.raises(lmr.LmrError, match="There is no file or folder 'pocket'"):
        lmr.load(Path("pocket"))
    Path("pocket").mkdir()
    Path("pocket", "notes.txt").write_text("no model")
    assert lmr.load("pocket").name == "pocket"


def test_model_made_in_inference_mode_can_adapt(folder: Path) -> None:
    with torch.inference_mode():
        backbone = lmr.load(folder)
        clip = backbone.classifier(["cat", "dog"], cache=False)
    method = lmr.create("lmr", clip)
    assert method.step(torch.randn(4, 3, 32, 32)).logits.isfinite().all()


def test_loaded_model_is_frozen_and_says_what_it_is(folder: Path) -> None:
    backbone = lmr.load(folder)
    assert isinstance(backbone, Clip)
    for tower in (backbone.encoder, backbone.text):
        assert not any(parameter.requires_grad or parameter.is_meta for parameter in tower.parameters())
        assert not any(module.training for module in tower.modules())
    assert backbone.facts == {
        "format": "Hugging Face (safetensors)",
        "files": str(folder / "model.safetensors"),
        "architecture": "own sizes",
        "sizes from": "config.json",
        "activation": "quick_gelu",
        "preprocessing": "short side to 32, bicubic; from preprocessor_config.json",
        "tokenizer": "CLIP's byte-pair encoding",
        "context": "16",
    }


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the packages of ``pip install lmr`` alone."""
    extras = "transformers sentencepiece google.protobuf scipy cv2 pandas matplotlib jinja2 tqdm open_clip"
    for name in extras.split():
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("bare")
def test_clip_and_embedded_models_need_no_extra(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # a path loads without it
    shutil.copytree(folder, tmp_path / "copy")
    clip = lmr.load(tmp_path / "copy")
    assert clip.encode_text(["a dog"]).shape == (1, maker.FEATURES)
    assert clip.classifier(["cat", "dog"], cache=False).encode(torch.rand(1, *clip.input_shape)).isfinite().all()
    for name, classes in (("photo", ["cat", "ship"]), ("pocket", ["red ring", "blue star"])):
        assert lmr.load(name).classifier(classes).names == tuple(classes)


@pytest.mark.usefixtures("bare")
def test_what_needs_transformers_names_the_extra(folder: Path, tmp_path: Path) -> None:
    siglip, foreign = tmp_path / "siglip", tmp_path / "foreign"
    for copy, file, content in (
        (siglip, "config.json", {"model_type": "siglip"}),
        (foreign, "tokenizer_config.json", {"tokenizer_class": "GemmaTokenizer"}),
    ):
        shutil.copytree(folder, copy)
        maker.write_json(content, copy / file)
    (foreign / "tokenizer.model").write_bytes(b"not CLIP's")
    for act, purpose in (
        (lambda: lmr.load(siglip), "The SigLIP model '.*'"),
        (lambda: lmr.load(foreign), "The tokenizer in '.*', which is not CLIP's,"),
        (lambda: lmr.wrap_transformers(object(), object()), "A model of transformers in memory"),
        (lambda: lmr.from_transformers(object(), object(), ["cat", "dog"]), "A model of transformers in memory"),
        (lambda: lmr.load(folder).write_huggingface(tmp_path, {}), "A CLIPModel"),
    ):
        with pytest.raises(
            lmr.LmrError, match=rf"^{purpose} needs transformers; install it with: pip install 'lmr\[siglip\]'$"
        ):
            act()


BAD_DEVICE = r"The device .* cannot be used here: .* Use 'cpu'\."


@pytest.mark.parametrize("device", ["nonsense", "cpu:-7", 3.5, "", "meta", "hpu", "privateuseone"])
def test_unusable_device_is_refused(device: Any, folder: Path) -> None:
    with pytest.raises(lmr.LmrError, match=BAD_DEVICE):
        lmr.load(folder, device=device)
    with pytest.raises(lmr.LmrError, match=BAD_DEVICE):
        random_clip("ViT-S-32", device=device)


@pytest.mark.parametrize("device", ["nonsense", "cpu:-7", 3.5, ""])
def test_embedded_model_refuses_a_device_that_does_not_exist(device: Any) -> None:
    with pytest.raises(lmr.LmrError, match=BAD_DEVICE):
        lmr.load("pocket", device=device)


def test_command_refuses_an_unusable_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pocket", "--device", "nonsense"]) != 0
    assert "The device 'nonsense' cannot be used here" in capsys.readouterr().err


def test_siglip_goes_to_its_own_reader(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lmr.models.siglip as reader

    seen: list[Any] = []

    def load_siglip(*given: Any, **named: Any) -> str:
        seen.append((given, named))
        return "model"

    monkeypatch.setattr(reader, "load_siglip", load_siglip)
    maker.write_json({"model_type": "siglip2"}, tmp_path / "config.json")
    shutil.copy(folder / "model.safetensors", tmp_path)
    assert lmr.load(tmp_path, device="cpu", dtype=torch.float16) == "model"
    assert seen == [((tmp_path / "model.safetensors", str(tmp_path)), {"device": "cpu", "dtype": torch.float16})]
    with pytest.raises(lmr.LmrError, match="is a SigLIP model, whose config names its architecture"):
        lmr.load(tmp_path, architecture="ViT-B-16")


def test_repr_says_what_the_model_is(folder: Path) -> None:
    assert repr(lmr.load("pocket")) == "Backbone('pocket', width 160, 32x32 -> 128 features, cpu, float32)"
    half = lmr.load(folder, dtype=torch.bfloat16)
    width, side = maker.WIDTH, maker.SIDE
    assert repr(half) == (
        f"Backbone({str(folder)!r}, width {width}, {side}x{side} -> {maker.FEATURES} features, cpu, bfloat16)"
    )
    assert repr(random_clip("ViT-S-32")) == (
        "Backbone('random ViT-S-32', ViT-S-32, 224x224 -> 384 features, cpu, float32)"
    )
