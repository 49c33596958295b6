"""The options about the model and its prompts, and `lmr predict` with a CLIP checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import checkpoint_maker as maker
import lmr
from lmr.apps.model_options import choose_prompts
from lmr.apps.options import ModelOptions
from lmr.cli import main
from lmr.data.pocket_world import draw
from predict_runs import predict_images

NAMES = ["cat", "great dane", "tree"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept in the home of whoever runs the tests."""
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in Hugging Face's form, the same one's bare weights in open_clip's, pictures and prompts."""
    root = tmp_path_factory.mktemp("work")
    model = maker.make_model("gelu", words=49408)
    maker.write_huggingface(model, root / "model")
    (root / "photos").mkdir()
    for number, pixels in enumerate(draw(range(6))[0]):
        Image.fromarray(pixels).save(root / "photos" / f"{number}.png")
    prompts = {name: [f"a {name} that sleeps", f"one big {name}"] for name in [*NAMES, "never asked"]}
    (root / "prompts.json").write_text(json.dumps(prompts))
    return root


def read_tops(path: Path) -> list[Any]:
    return [json.loads(line)["top"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_predict_with_a_checkpoint_and_a_prompt_set(here: Path, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "lines.jsonl"
    words = [str(here / "photos"), "--labels", ",".join(NAMES), "--model", str(here / "model"), "--batch-size", "4"]
    words += ["--prompts", str(here / "prompts.json"), "--dtype", dtype, "--memory", "lean", "--out", str(out)]
    assert main(["predict", *words, "--method", "lmr"]) == 0

    backbone = lmr.load(here / "model", dtype=getattr(torch, dtype), memory="lean")
    method = lmr.create(
        "lmr", backbone.classifier(NAMES, here / "prompts.json", cache=False), preset="auto", pace="image"
    )
    pictures = [backbone.preprocess(Image.open(here / "photos" / f"{number}.png")) for number in range(6)]
    shares = [method.step(torch.stack(part)).probabilities for part in (pictures[:4], pictures[4:])]
    for top, row in zip(read_tops(out), torch.cat(shares).tolist(), strict=True):
        assert dict(top) == pytest.approx(dict(zip(NAMES, row, strict=True)), abs=1e-5)


def test_state_fits_only_the_same_numbers(here: Path, tmp_path: Path) -> None:
    """The type of the weights and the prompts are in the state's digests, so another of either is refused."""
    shared: dict[str, Any] = {"model": str(here / "model"), "state": tmp_path / "camera.state"}
    predict_images(here / "photos", NAMES, **shared, out=tmp_path / "a.jsonl")
    with pytest.raises(lmr.LmrError, match="other classes or prompts"):
        predict_images(here / "photos", NAMES, **shared, prompts=here / "prompts.json", out=tmp_path / "b.jsonl")
    with pytest.raises(lmr.LmrError, match="other weights"):
        predict_images(here / "photos", NAMES, **shared, dtype="bfloat16", out=tmp_path / "b.jsonl")
    predict_images(here / "photos", NAMES, **shared, memory="lean", out=tmp_path / "c.jsonl")


def test_architecture_names_what_a_bare_file_holds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file

    save_file(maker.rename_to_openai(maker.make_model("gelu", words=49408)), here / "bare.safetensors")
    words = ["predict", str(here / "photos"), "--labels", "cat,dog", "--model", str(here / "bare.safetensors")]
    assert main(words) == 2
    assert "Name the architecture" in capsys.readouterr().err
    assert main([*words, "--architecture", "ViT-B-16"]) == 2
    assert "does not match" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "labels"), [("pocket", "red star,blue ring"), ("photo", "cat,dog")])
def test_an_embedded_model_is_what_it_is(
    here: Path, model: str, labels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--architecture", "ViT-B-16"]
    assert main(["predict", str(here / "photos"), "--labels", labels, "--model", model, *words]) == 2
    assert capsys.readouterr().err.startswith(f"lmr: The model {model!r} has its own architecture")


@pytest.mark.parametrize("device", ["nonsense", "cpu:x"])
def test_unknown_device_gets_an_error_message(here: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", str(here / "model"), "--device", device]
    assert main(["predict", str(here / "photos"), "--labels", "cat,dog", *model]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lmr: ")
    assert device in said
    assert said.count("\n") == 1
    assert main(["doctor", str(here / "model"), "--device", device]) == 2
    assert device in capsys.readouterr().err


def test_prompts_and_templates_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text('{"cat": ["a cat."]}')
    assert choose_prompts(None, None) is None
    assert choose_prompts(["a {}."], None) == ["a {}."]
    assert choose_prompts(None, path) == path
    with pytest.raises(lmr.LmrError, match="Choose between"):
        choose_prompts(["a {}."], path)
    for content in ('{"cat": ', "[" * 100_000):
        path.write_text(content)
        with pytest.raises(lmr.LmrError, match="Cannot read the prompts"):
            choose_prompts(None, path)


def test_options_reach_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("lmr.models.load", lambda model, **options: asked.update(options, model=model))
    ModelOptions().load("a")
    assert asked == {"model": "a", "architecture": None, "device": "cpu", "dtype": None, "memory": "fast"}
    asked.clear()
    ModelOptions("ViT-B-16", "cpu", "bfloat16", "lean").load("b")
    assert asked == {
        "model": "b",
        "architecture": "ViT-B-16",
        "device": "cpu",
        "dtype": torch.bfloat16,
        "memory": "lean",
    }
    with pytest.raises(lmr.LmrError, match="float32, bfloat16, float16"):
        ModelOptions(dtype="int8").load("c")
