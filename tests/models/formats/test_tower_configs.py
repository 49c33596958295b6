"""Configuration files: sizes as they say, and a sentence for what cannot be followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import checkpoint_maker as maker
import lmr
from lmr.models.clip.image_tower import VisionConfig
from lmr.models.clip.text_tower import TextConfig
from lmr.models.formats.tower_configs import read_end_token, read_hf_sizes, read_json, read_open_clip_sizes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def test_empty_huggingface_config_has_the_defaults_of_transformers(path: Path) -> None:
    from transformers import CLIPConfig

    maker.write_json({"model_type": "clip"}, path)
    image, text = read_hf_sizes(path)
    theirs = CLIPConfig()
    for ours, other in ((image, theirs.vision_config), (text, theirs.text_config)):
        assert ours.width == other.hidden_size
        assert ours.depth == other.num_hidden_layers
        assert ours.heads == other.num_attention_heads
        assert ours.hidden == other.intermediate_size
        assert ours.activation == other.hidden_act
        assert ours.eps == other.layer_norm_eps
        assert ours.features == theirs.projection_dim
    assert (image.resolution, image.patch) == (theirs.vision_config.image_size, theirs.vision_config.patch_size)
    assert (text.context, text.vocabulary) == (77, 49408)


def test_early_huggingface_config_is_read_as_transformers_reads_it(path: Path) -> None:
    """Such files hold the towers' sizes twice, and end texts with token 2, meaning the highest."""
    from transformers import CLIPConfig

    content = {
        "model_type": "clip",
        "projection_dim": 768,
        "vision_config": {"hidden_size": 768, "hidden_act": "gelu"},
        "vision_config_dict": {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24},
        "text_config": {"eos_token_id": 2, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6},
        "text_config_dict": None,
    }
    maker.write_json(content, path)
    image, text = read_hf_sizes(path)
    theirs = CLIPConfig(**content)
    assert image.width == theirs.vision_config.hidden_size == 1024
    assert image.heads == theirs.vision_config.num_attention_heads == 16
    assert image.activation == "gelu"
    assert text.activation == "gelu_tanh"
    assert text.eps == 1e-6
    assert image.features == text.features == 768


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vision_config": {"hidden_size": "768"}}, "a whole number above 0 as hidden_size in vision_config"),
        ({"vision_config": {"hidden_size": 0}}, "a whole number above 0 as hidden_size"),
        ({"vision_config": {"hidden_size": True}}, "a whole number above 0 as hidden_size"),
        ({"vision_config": {"num_attention_heads": 7}}, "num_attention_heads .* to divide the width 768, got 7"),
        ({"vision_config": {"num_channels": 4}}, "images of 4 channels"),
        ({"vision_config": []}, None),
        ({"vision_config": [1]}, "an object as vision_config"),
        ({"text_config": {"hidden_act": "relu"}}, "as hidden_act in text_config.*got 'relu'"),
        ({"text_config": {"layer_norm_eps": -1}}, "a number above 0 as layer_norm_eps"),
        ({"text_config": {"layer_norm_eps": "tiny"}}, "a number above 0 as layer_norm_eps"),
        ({"model_type": "bert"}, "the configuration of a CLIP model in .* but it describes another model"),
        ({"projection_dim": None}, "a whole number above 0 as projection_dim"),
    ],
)
def test_odd_huggingface_config_gets_a_sentence(change: dict[str, Any], words: str | None, path: Path) -> None:
    maker.write_json({"model_type": "clip"} | change, path)
    if words is None:
        assert read_hf_sizes(path)[0].width == 768
        return
    with pytest.raises(lmr.LmrError, match=words):
        read_hf_sizes(path)


def test_end_token_is_that_of_the_text_tower() -> None:
    assert read_end_token({"text_config": {"eos_token_id": 102}}, "config.json") == 102
    assert read_end_token({"text_config_dict": {"eos_token_id": 2}, "text_config": {"eos_token_id": 7}}, "") == 2
    assert read_end_token({}, "config.json") == 49407
    for wrong in (None, [1, 2], "2", -1, True):
        with pytest.raises(lmr.LmrError, match="Expected the id of a token as eos_token_id"):
            read_end_token({"text_config": {"eos_token_id": wrong}}, "config.json")


def test_config_of_timm_is_not_taken_for_one_of_clip(path: Path) -> None:
    maker.write_json({"architecture": "vit_base_patch16_clip_224", "num_classes": 512}, path)
    with pytest.raises(lmr.LmrError, match="describes another model"):
        read_hf_sizes(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '"x"', "\udcff", "[" * 100_000])
def test_file_that_is_no_object_gets_a_sentence(content: str, path: Path) -> None:
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(lmr.LmrError, match=r"config\.json"):
        read_json(path)


# open_clip.


def test_open_clip_sizes(path: Path) -> None:
    maker.write_json(maker.make_open_clip_config(quick=False), path)
    image, text = read_open_clip_sizes(path)
    assert image == VisionConfig(32, 8, 128, 2, 2, 24, 160, "gelu")
    assert text == TextConfig(16, 300, 64, 3, 1, 24, 256, "gelu")
    bare = maker.make_open_clip_config(quick=True)["model_cfg"]  # as the files of open_clip itself are
    maker.write_json(bare, path)
    assert read_open_clip_sizes(path)[0].activation == "quick_gelu"
    rich = maker.make_open_clip_config(
        quick=False,
        model={"custom_text": True, "init_logit_bias": -10, "multimodal_cfg": None},
        vision={"norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"}, "patch_dropout": 0.5,
                "ls_init_value": None, "pool_type": "tok", "image_size": [32, 32]},
        text={"pool_type": "argmax", "proj_bias": False, "pad_id": 1, "norm_kwargs": {}},
    )  # fmt: skip
    maker.write_json(rich, path)
    image, text = read_open_clip_sizes(path)
    assert image == VisionConfig(32, 8, 128, 2, 2, 24, 160, "gelu_tanh", 1e-6)
    assert text.eps == 1e-5


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("vision", {"timm_model_name": "vit_base_patch16_224"}, "its image tower is a timm model"),
        ("vision", {"layers": [3, 4, 6, 3]}, "its image tower is a ResNet"),
        ("vision", {"ls_init_value": 1e-5}, "vision_cfg .* asks for ls_init_value=1e-05"),
        ("vision", {"attentional_pool": True}, "asks for attentional_pool=True"),
        ("vision", {"pool_type": "avg"}, "asks for pool_type='avg'"),
        ("vision", {"no_ln_pre": True}, "asks for no_ln_pre=True"),
        ("vision", {"act_kwargs": {"approximate": "poly"}}, "an activation with"),
        ("vision", {"norm_kwargs": {"elementwise_affine": False}}, "asks for norms with"),
        ("vision", {"image_size": [32, 64]}, "a whole number above 0 as image_size"),
        ("vision", {"brand_new": 3}, "asks for brand_new=3"),
        ("text", {"hf_model_name": "roberta-base"}, "its text tower is a Hugging Face language model"),
        ("text", {"hf_tokenizer_name": "xlm-roberta-base"}, "its tokenizer is not CLIP's"),
        ("text", {"tokenizer_kwargs": {"clean": "canonicalize"}}, "asks for tokenizer_kwargs"),
        ("text", {"no_causal_mask": True}, "asks for no_causal_mask=True"),
        ("text", {"pool_type": "last"}, "asks for pool_type='last'"),
        ("text", {"embed_cls": True}, "asks for embed_cls=True"),
        ("text", {"heads": 5}, "heads in text_cfg .* to divide the width 64"),
        ("model", {"multimodal_cfg": {"width": 512}}, "it is a CoCa model"),
        ("model", {"text_cfg": None}, "Expected an object with the sizes in text_cfg"),
    ],
)
def test_unsupported_open_clip_config_gets_a_sentence(
    part: str, change: dict[str, Any], words: str, path: Path
) -> None:
    maker.write_json(maker.make_open_clip_config(quick=False, **{part: change}), path)
    with pytest.raises(lmr.LmrError, match=words):
        read_open_clip_sizes(path)
