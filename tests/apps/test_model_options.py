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
from lmr.apps.model_options import add_prior
from lmr.cli import main
from lmr.core.placement import place_tower
from lmr.core.spec import parse_spec
from lmr.core.state import read_state
from predict_runs import draw_arrays, predict_images

NAMES = ["cat", "great dane", "tree"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept in the home of whoever runs the tests."""
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in the layout of the hub, pictures and prompts."""
    root = tmp_path_factory.mktemp("work")
    model = maker.make_model("gelu")
    maker.write_huggingface(model, root / "model")
    (root / "photos").mkdir()
    for number, pixels in enumerate(draw_arrays(range(6))):
        Image.fromarray(pixels).save(root / "photos" / f"{number}.png")
    prompts = {name: [f"a {name} that sleeps", f"one big {name}"] for name in [*NAMES, "never asked"]}
    (root / "prompts.json").write_text(json.dumps(prompts))
    return root


def read_tops(path: Path) -> list[Any]:
    return [json.loads(line)["top"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_predict_with_a_checkpoint_and_a_prompt_set(here: Path, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "lines.jsonl"
    words = [str(here / "photos"), "--labels", ",".join(NAMES), "--model", str(here / "model"), "--batch-size", "4"]
    words += ["--prompts", str(here / "prompts.json"), "--dtype", dtype, "--out", str(out)]
    assert main(["predict", *words, "--method", "lmr", "--passes", "1"]) == 0

    backbone = lmr.load(here / "model", dtype="float64" if dtype == "float64" else "float32")
    clip = backbone.classifier(NAMES, here / "prompts.json", cache=False)
    place_tower(backbone.encoder, dtype=getattr(torch, dtype))  # and not the text tower
    method = lmr.create("lmr", clip, preset="auto")
    pictures = [backbone.preprocess(Image.open(here / "photos" / f"{number}.png")) for number in range(6)]
    shares = [method.step(torch.stack(part)).probabilities for part in (pictures[:4], pictures[4:])]
    for top, row in zip(read_tops(out), torch.cat(shares).tolist(), strict=True):
        assert dict(top) == pytest.approx(dict(zip(NAMES, row, strict=True)), abs=1e-5)


def test_state_fits_the_same_prompts_and_every_type(here: Path, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"model": str(here / "model"), "state": tmp_path / "camera.state"}
    predict_images(here / "photos", NAMES, **shared, out=tmp_path / "a.jsonl")
    with pytest.raises(lmr.LmrError, match="other classes or prompts"):
        predict_images(here / "photos", NAMES, **shared, prompts=here / "prompts.json", out=tmp_path / "b.jsonl")
    for number, dtype in enumerate(("bfloat16", "float32")):
        predict_images(here / "photos", NAMES, **shared, dtype=dtype, out=tmp_path / f"{number}.jsonl")


def test_prior_becomes_an_argument_of_the_method() -> None:
    names = ["car", "pickup truck", "bus, long", "dog"]
    assert add_prior("steady", "uniform", names) == "steady(prior='uniform')"
    assert add_prior("lmr_variants(lr=0.1)", "car=0.8,pickup_truck=.1", names) == (
        "lmr_variants(lr=0.1, prior={'car': 0.8, 'pickup_truck': 0.1})"
    )
    assert add_prior("steady", {"dog": 1}, names) == "steady(prior={'dog': 1})"


@pytest.mark.parametrize(
    ("spec", "prior", "sentence"),
    [
        ("tent", "uniform", "tent does not use class shares, .* one of these methods: lmr_variants, steady"),
        ("mint", "uniform", "mint does not use class shares"),  # its prior is a number of images
        ("steady(prior='uniform')", "history", "given twice"),
        ("steady", "shares.csv", "history, uniform or shares"),
        ("steady", "cars=0.5", "did you mean 'car'"),
        ("steady", "car=0.8,dog=0.5", "sum of at most 1, got 1.3"),
        ("steady", "car=much", "history, uniform or shares"),
    ],
)
def test_prior_that_does_not_fit_is_refused(spec: str, prior: str, sentence: str) -> None:
    with pytest.raises(lmr.LmrError, match=sentence):
        add_prior(spec, prior, ["car", "truck", "dog"])


def test_prior_is_a_part_of_the_command(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(here / "photos"), "--labels", ",".join(NAMES), "--model", str(here / "model")]
    state = tmp_path / "s"
    assert main([*words, "--prior", f"{NAMES[0]}=1", "--state", str(state), "--out", str(tmp_path / "a.jsonl")]) == 0
    assert "adapting changed" in capsys.readouterr().err
    assert parse_spec(read_state(state)[1]["spec"])[1]["prior"] == (1.0, *[0.0] * (len(NAMES) - 1))
    assert main([*words, "--prior", "history", "--method", "lmr_variants"]) == 2
    assert "Expected 'uniform' or values in brackets" in capsys.readouterr().err
