"""What a model is, as values: every format fills them, and the words of the screen come from them alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import checkpoint_maker as maker
import lmr
import siglip_maker as siglip
from lmr.models.clip import random_clip
from lmr.models.facts import ModelFacts, ModelFormat
from lmr.models.preprocessing import Preprocessing
from lmr.models.towers.architectures import ARCHITECTURES
from lmr.models.towers.image import VisionConfig
from lmr.models.towers.text import TextConfig


def test_every_format_is_named(tmp_path: Path) -> None:
    model = maker.make_model()
    torch.save(maker.make_openai_state(model), tmp_path / "ViT-tiny.pt")
    siglip.save_siglip(tmp_path / "siglip")
    found = {
        ModelFormat.POCKET: lmr.load("pocket"),
        ModelFormat.OPENAI: lmr.load(tmp_path / "ViT-tiny.pt"),
        ModelFormat.OPEN_CLIP: lmr.load(maker.write_open_clip(model, tmp_path / "open_clip")),
        ModelFormat.HUGGINGFACE: lmr.load(maker.write_huggingface(model, tmp_path / "huggingface")),
        ModelFormat.SIGLIP: lmr.load(tmp_path / "siglip"),
        ModelFormat.RANDOM: random_clip("ViT-S-32"),
    }
    assert {form: backbone.model_facts.format for form, backbone in found.items()} == {form: form for form in found}
    sources = {form: backbone.facts.get("sizes from") for form, backbone in found.items()}
    assert sources[ModelFormat.OPENAI] == "the weights, which are OpenAI's"
    assert sources[ModelFormat.OPEN_CLIP] == "open_clip_config.json"
    assert sources[ModelFormat.HUGGINGFACE] == sources[ModelFormat.SIGLIP] == "config.json"
    for form, backbone in found.items():
        assert backbone.facts["format"].startswith(form.value.partition(",")[0])
    tokenizers = {form: backbone.facts["tokenizer"] for form, backbone in found.items()}
    assert tokenizers[ModelFormat.POCKET] == "the words of the embedded model"
    assert "tokens" in tokenizers[ModelFormat.SIGLIP]
    assert tokenizers[ModelFormat.OPENAI] == "none (own vocabulary)"
    assert not found[ModelFormat.OPENAI].model_facts.reads_texts
    assert found[ModelFormat.POCKET].model_facts.reads_texts


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-B-32-quickgelu", "ViT-S-32"])
def test_activation_is_assumed_only_for_sizes_that_openai_has_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = maker
    image = VisionConfig(m.SIDE, m.PATCH, m.WIDTH, m.DEPTH, m.HEADS, m.FEATURES, m.HIDDEN, "gelu")
    heads, features, hidden = m.TEXT_HEADS, m.FEATURES, m.TEXT_HIDDEN
    text = TextConfig(m.CONTEXT, m.WORDS, m.TEXT_WIDTH, m.TEXT_DEPTH, heads, features, hidden, "gelu")
    monkeypatch.setitem(ARCHITECTURES, name.removesuffix("-quickgelu"), (image, text))
    torch.save(maker.rename_to_openai(maker.make_model("gelu")), tmp_path / "tuned.pt")
    backbone = lmr.load(tmp_path / "tuned.pt", architecture=name)
    facts = backbone.model_facts
    assert facts.architecture == name
    assert facts.activation_assumed == (name == "ViT-B-32")
    assert backbone.facts["sizes from"] == f"the named architecture {name}"


def test_a_class_of_a_users_own_says_nothing() -> None:
    assert ModelFacts().shown == {}
    assert lmr.Backbone.model_facts == ModelFacts()
    assert ModelFacts().reads_texts


def test_squashing_is_named_as_such() -> None:
    half = (0.5, 0.5, 0.5)
    assert str(Preprocessing(32, half, half, "squash")) == "squash to 32, bicubic"
