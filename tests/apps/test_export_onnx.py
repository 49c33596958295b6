"""An ONNX file answers as the method does, through onnxruntime alone; what cannot be written leaves nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor

import checkpoint_maker as maker
import lmr
import siglip_maker as siglip
from lmr.apps import export as export_file
from lmr.cli import main

pytestmark = pytest.mark.usefixtures("tiny_models")
LMR = "lmr(lr=0.01, tau=0.0, delta=0.0, gamma0=40.0)"  # every sample has a margin to restore
PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def make_images(seed: int, count: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def teach(backbone: lmr.Backbone, spec: str = LMR, streams: int = 1) -> lmr.Method:
    method = lmr.create(spec, backbone.classifier(["cat", "dog", "bird", "ship"]), streams=streams)
    for seed in range(3):
        method.step(make_images(seed, 6), torch.arange(6) % streams if streams > 1 else None)
    return method


def answer(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


@pytest.mark.parametrize("form", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def test_logits_through_onnxruntime_are_those_of_predict(form: str, tmp_path: Path) -> None:
    if form == "clip":
        maker.write_huggingface(maker.make_model("quick_gelu"), tmp_path / "model")
    else:
        siglip.save_siglip(tmp_path / "model")
    backbone = lmr.load(tmp_path / "model")
    method = teach(backbone, streams=2)
    before = {key: value.clone() for key, value in backbone.encoder.state_dict().items()}
    summary = lmr.export(method, backbone, tmp_path / "out.onnx", format="onnx", stream=1)
    assert "Logits through onnxruntime are at most" in str(summary)
    assert summary.difference < 1e-4
    for count in (1, 5):
        images = make_images(50, count)
        expected = method.predict(images, [1] * count).logits
        torch.testing.assert_close(answer(tmp_path / "out.onnx", images), expected, atol=1e-4, rtol=0)
        assert (expected - method.predict(images, [0] * count).logits).abs().max() > 1e-2
    assert all(before[key].equal(value) for key, value in backbone.encoder.state_dict().items())
    assert not any(value.requires_grad for value in backbone.encoder.parameters())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.onnx"]


@pytest.mark.slow
def test_the_lines_of_the_page_run_without_lmr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model that comes with lmr, from a state file; a second export replaces the first only when told to."""
    backbone = lmr.load("photo")
    method = teach(backbone)
    method.save(tmp_path / "camera.state")
    monkeypatch.chdir(tmp_path)
    words = ["export", "camera.state", "--labels", "cat,dog,bird,ship", "--format", "onnx", "--out", "camera.onnx"]
    assert main(words) == 0
    assert "'camera.onnx' holds lmr(" in capsys.readouterr().err
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (45, 60, 3), dtype=np.uint8)).save("photo.png")
    program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[2]
    program = f"import sys\nsys.modules['lmr'] = sys.modules['torch'] = None\n{program}\nprint(logits.tolist())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    label, logits = done.stdout.splitlines()
    expected = method.predict(backbone.preprocess("photo.png")[None])
    assert label == expected.names[0]
    torch.testing.assert_close(torch.tensor(json.loads(logits)), expected.logits, atol=1e-4, rtol=0)
    content = Path("camera.onnx").read_bytes()
    assert main(words) == 2
    assert "The file 'camera.onnx' exists; give another name, or --overwrite" in capsys.readouterr().err
    # One that answers otherwise than the method is found out, and what was there stays.
    monkeypatch.setattr(export_file, "build_onnx", lambda *_: content)
    method.step(4 * make_images(9, 6))
    with pytest.raises(lmr.LmrError, match="would not answer as lmr"):
        lmr.export(method, backbone, "camera.onnx", format="onnx", overwrite=True)
    assert Path("camera.onnx").read_bytes() == content
    assert main([*words, "--overwrite"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["camera.onnx", "camera.state", "photo.png"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    backbone = lmr.load("photo")
    method = teach(backbone)
    (tmp_path / "text.onnx").write_text("precious")
    (tmp_path / "folder").mkdir()
    for out, options, words in (
        ("text.onnx", {"overwrite": True}, "The file .* is not an export of lmr"),
        ("folder", {"overwrite": True}, "is a folder; give the name of a file"),
        ("new.onnx", {"format": "tflite"}, "Expected the format 'transformers' or 'onnx', got 'tflite'"),
        ("nowhere/new.onnx", {}, "create it first"),
    ):
        with pytest.raises(lmr.LmrError, match=words):
            lmr.export(method, backbone, tmp_path / out, **{"format": "onnx", **options})  # type: ignore[arg-type]
    with pytest.raises(lmr.LmrError, match="tda cannot be exported"):
        lmr.export(teach(backbone, "tda"), backbone, tmp_path / "new.onnx", format="onnx")
    assert (tmp_path / "text.onnx").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 2
