"""`--dtype`: where "auto" computes in bfloat16, what it says, and that a resumed run keeps its type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import lmr
from lmr.apps import precision
from lmr.apps.method_options import MethodOptions
from lmr.apps.precision import computes_in_bfloat16, load_model
from lmr.core.state import read_state
from predict_runs import draw_arrays, predict_images

NAMES = ["cat", "dog", "ship"]


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that computes in bfloat16, for which the model of the package is not too small."""
    monkeypatch.setattr(precision, "computes_in_bfloat16", lambda device: True)
    monkeypatch.setattr(lmr.Backbone, "is_small", False)
    monkeypatch.setattr(precision, "SECONDS", 60.0)


def options(dtype: Any = "auto") -> MethodOptions:
    return MethodOptions(labels=NAMES, dtype=dtype).resolve()


@pytest.mark.parametrize(
    ("able", "expected"),
    [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"bf16": True}, True), ({"avx512_f": True}, False)],
)
def test_the_processor_says_whether_it_computes_in_bfloat16(
    able: dict[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert computes_in_bfloat16(torch.device("cpu")) is expected


def test_a_small_model_stays_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "computes_in_bfloat16", lambda device: True)
    loaded = load_model(options())
    assert (loaded.dtype, loaded.said) == ("float32", None)


@pytest.mark.usefixtures("able")
def test_a_large_model_computes_in_bfloat16_where_labels_stay() -> None:
    loaded = load_model(options())
    assert loaded.dtype == "bfloat16"
    assert loaded.said is not None
    assert "64 of 64 labels" in loaded.said
    assert loaded.classifier.dtype == torch.bfloat16
    full = lmr.load().classifier(NAMES)
    assert torch.equal(loaded.classifier.prototypes, full.prototypes)
    assert loaded.classifier.fingerprint == full.fingerprint
    forced = load_model(options("bfloat16"))
    assert forced.said is None
    image = forced.backbone.preprocess(Image.new("RGB", (40, 30), "red")).unsqueeze(0)
    assert torch.equal(forced.classifier(image), loaded.classifier(image))


@pytest.mark.usefixtures("able")
def test_the_images_of_the_user_are_compared_as_far_as_time_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(200)]
    for path, pixels in zip(paths[:10], draw_arrays(range(10)), strict=True):
        Image.fromarray(pixels).save(path)
    (tmp_path / "10.png").write_text("no image")
    said = load_model(options(), paths[:11]).said
    assert said is not None
    assert "10 of 10 labels of your images" in said
    assert "64 of 64 labels of photographs" in (load_model(options(), paths[11:]).said or "")
    monkeypatch.setattr(precision, "SECONDS", 0.0)
    assert "1 of 1 labels of your images" in (load_model(options(), paths[:11]).said or "")


@pytest.mark.usefixtures("able")
def test_a_model_whose_labels_change_stays_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = lmr.ZeroShot.encode

    def spoil(self: lmr.ZeroShot, images: Tensor) -> Tensor:
        features = encode(self, images)
        return features if self.dtype == torch.float32 else -features

    monkeypatch.setattr(lmr.ZeroShot, "encode", spoil)
    loaded = load_model(options())
    assert loaded.dtype == "float32"
    assert loaded.said is not None
    assert "float32" in loaded.said
    assert load_model(options("bfloat16")).dtype == "bfloat16"


@pytest.mark.usefixtures("able")
def test_a_resumed_run_keeps_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(draw_arrays(range(4))):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    run: dict[str, Any] = {"sources": tmp_path / "photos", "labels": NAMES, "state": tmp_path / "a.state"}
    out = tmp_path / "a.jsonl"
    predict_images(**run, out=out, batch_size=2, dtype="auto")
    assert read_state(tmp_path / "a.state")[1]["note.dtype"] == "bfloat16"
    monkeypatch.setattr(precision, "computes_in_bfloat16", lambda device: False)
    predict_images(**run, out=out, batch_size=2, dtype="auto", resume=True)
    with pytest.raises(lmr.LmrError, match="dtype"):
        predict_images(**run, out=out, batch_size=2, dtype="float32", resume=True)


def test_attention_in_bfloat16_is_near_that_in_float64() -> None:
    from lmr.models.towers.block import attend

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 50, 16, dtype=torch.float64).bfloat16() for _ in range(3))
    scores = (q.double() @ k.double().transpose(-1, -2) / 4).softmax(-1)
    assert (attend(q, k, v).double() - scores @ v.double()).abs().max() < 0.02
