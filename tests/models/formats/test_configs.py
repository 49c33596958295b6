"""Sizes and preprocessing from configuration files: exact where valid, a message where not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import checkpoint_maker as maker
import lmr
from lmr.models.facts import ModelFormat
from lmr.models.formats.configs import (
    read_end_token,
    read_hf_sizes,
    read_json,
    read_open_clip_sizes,
    read_preprocessing,
)
from lmr.models.preprocessing import OPENAI_MEAN, OPENAI_STD, Preprocessing
from lmr.models.towers.image import VisionConfig
from lmr.models.towers.text import TextConfig


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
def test_odd_huggingface_config_gets_a_message(change: dict[str, Any], words: str | None, path: Path) -> None:
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
def test_file_that_is_no_object_gets_a_message(content: str, path: Path) -> None:
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
        ("vision", {"timm_model_name": "vit_base_patch16_224"}, "sets timm_model_name="),
        ("vision", {"layers": [3, 4, 6, 3]}, "a whole number above 0 as layers"),
        ("vision", {"ls_init_value": 1e-5}, "vision_cfg .* sets ls_init_value=1e-05"),
        ("vision", {"attentional_pool": True}, "sets attentional_pool=True"),
        ("vision", {"pool_type": "avg"}, "sets pool_type='avg'"),
        ("vision", {"no_ln_pre": True}, "sets no_ln_pre=True"),
        ("vision", {"act_kwargs": {"approximate": "poly"}}, "an activation with"),
        ("vision", {"norm_kwargs": {"elementwise_affine": False}}, "has norms with"),
        ("vision", {"image_size": [32, 64]}, "a whole number above 0 as image_size"),
        ("vision", {"brand_new": 3}, "sets brand_new=3"),
        ("text", {"hf_model_name": "roberta-base"}, "sets hf_model_name="),
        ("text", {"hf_tokenizer_name": "xlm-roberta-base"}, "sets hf_tokenizer_name="),
        ("text", {"tokenizer_kwargs": {"clean": "canonicalize"}}, "sets tokenizer_kwargs"),
        ("text", {"no_causal_mask": True}, "sets no_causal_mask=True"),
        ("text", {"pool_type": "last"}, "sets pool_type='last'"),
        ("text", {"embed_cls": True}, "sets embed_cls=True"),
        ("text", {"heads": 5}, "heads in text_cfg .* to divide the width 64"),
        ("model", {"multimodal_cfg": {"width": 512}}, "sets multimodal_cfg="),
        ("model", {"text_cfg": None}, "Expected an object with the sizes in text_cfg"),
    ],
)
def test_unsupported_open_clip_config_gets_a_message(part: str, change: dict[str, Any], words: str, path: Path) -> None:
    maker.write_json(maker.make_open_clip_config(quick=False, **{part: change}), path)
    with pytest.raises(lmr.LmrError, match=words):
        read_open_clip_sizes(path)


def test_preprocessing_of_huggingface_files(tmp_path: Path) -> None:
    own = {"image_mean": [0.5, 0.4, 0.3], "image_std": [1, 0.2, 0.1], "resample": 2}
    for size, crop, resize in (
        (32, 32, "short"),
        ({"shortest_edge": 32}, {"height": 32, "width": 32}, "short"),
        ({"height": 32, "width": 32}, {"height": 32, "width": 32}, "squash"),
    ):
        maker.write_json(
            maker.PREPROCESSOR | own | {"size": size, "crop_size": crop}, tmp_path / "preprocessor_config.json"
        )
        found, source = read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)
        assert found == Preprocessing(32, (0.5, 0.4, 0.3), (1.0, 0.2, 0.1), resize, "bilinear")  # type: ignore[arg-type]
        assert source == "preprocessor_config.json"
    (tmp_path / "preprocessor_config.json").unlink()
    maker.write_json({"image_processor": maker.PREPROCESSOR | own}, tmp_path / "processor_config.json")
    assert read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)[0].interpolation == "bilinear"
    maker.write_json({"processor_class": "CLIPProcessor"}, tmp_path / "processor_config.json")
    plain = Preprocessing(32, OPENAI_MEAN, OPENAI_STD)
    assert read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32) == (plain, "CLIP's own constants")


def test_preprocessing_that_transformers_writes_is_read(tmp_path: Path) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    found, source = read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)
    assert source in ("preprocessor_config.json", "processor_config.json")
    noise = torch.randint(256, (40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    theirs = processor(Image.fromarray(noise), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(found.prepare_image(Image.fromarray(noise)), theirs, atol=1e-5, rtol=0)


MEAN = r"preprocessor_config.json.* three numbers from -1000 to 1000 as mean"
STD = r"preprocessor_config.json.* three numbers from 0\.001 to 1000 as std"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"do_resize": False}, "do_resize to be true"),
        ({"do_rescale": False}, "do_rescale to be true"),
        ({"do_normalize": False}, "do_normalize to be true"),
        ({"rescale_factor": 1.0}, "1/255 as rescale_factor"),
        ({"resample": 1}, "Expected one of 2, 3 as resample"),
        ({"resample": [3]}, "Expected one of 2, 3 as resample"),
        ({"size": 256}, "to scale the short side to 32 pixels .* got size 256"),
        ({"crop_size": 64}, "crop_size 64"),
        ({"do_center_crop": False}, "do_center_crop False"),
        ({"size": {"height": 32, "width": 64}}, "got size"),
        ({"size": None}, "got size None"),
        ({"do_pad": True}, "sets do_pad=True"),
        ({"image_mean": [0.5, 0.5]}, MEAN),
        ({"image_mean": [0.5, 0.5, 1e300]}, MEAN),
        ({"image_std": "half"}, STD),
        ({"image_std": [0.5, 0.0, 0.5]}, STD),
        ({"image_std": [0.5, -0.5, 0.5]}, STD),
        ({"image_std": [0.5, 1e-300, 0.5]}, STD),
        ({"image_std": [0.5, 5e-324, 0.5]}, STD),
        ({"image_std": [0.5, 1e-9, 0.5]}, STD),
        ({"image_std": [0.5, 1e9, 0.5]}, STD),
        ({"image_std": [0.5, 10**400, 0.5]}, STD),
        ({"image_std": [0.5, math.nan, 0.5]}, STD),
        ({"rescale_factor": math.nan}, "1/255 as rescale_factor"),
    ],
)
def test_odd_preprocessing_gets_a_message(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    maker.write_json(maker.PREPROCESSOR | change, tmp_path / "preprocessor_config.json")
    with pytest.raises(lmr.LmrError, match=words):
        read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)


def write_without(path: Path, kind: str, *missing: str) -> None:
    config = {key: value for key, value in maker.PREPROCESSOR.items() if key not in missing}
    del config["feature_extractor_type"]
    maker.write_json(config | {"image_processor_type": kind}, path / "preprocessor_config.json")


@pytest.mark.parametrize("kind", ["CLIPImageProcessor", "CLIPImageProcessorFast", "SiglipImageProcessor"])
def test_missing_entries_are_those_of_the_type(kind: str, tmp_path: Path) -> None:
    """What the file leaves out is what transformers' class of that name says, whatever the model is."""
    import transformers

    write_without(tmp_path, kind, "image_mean", "image_std", "resample")
    own = getattr(transformers, kind.removesuffix("Fast"))
    for form in (ModelFormat.HUGGINGFACE, ModelFormat.SIGLIP):
        found, _ = read_preprocessing(tmp_path, form, 32)
        assert found == Preprocessing(32, tuple(own.image_mean), tuple(own.image_std))
        assert found.interpolation == own.resample.name.lower()


def test_processor_of_another_type_must_say_everything(tmp_path: Path) -> None:
    write_without(tmp_path, "ViTImageProcessor", "image_mean", "resample")
    with pytest.raises(lmr.LmrError, match=r"'ViTImageProcessor', whose defaults .* lacks resample, image_mean"):
        read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)
    for missing, resize in (("crop_size", "short"), ("do_center_crop", "squash")):
        write_without(tmp_path, "ViTImageProcessor", missing)
        settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
        maker.write_json(settings | {"default_to_square": resize == "squash"}, tmp_path / "preprocessor_config.json")
        found, _ = read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)
        assert found == Preprocessing(32, OPENAI_MEAN, OPENAI_STD, resize)  # type: ignore[arg-type]
    write_without(tmp_path, "ViTImageProcessor")  # whose one size means both sides
    assert read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)[0].resize == "squash"


def test_preprocessing_of_open_clip_files(tmp_path: Path) -> None:
    path = tmp_path / "open_clip_config.json"
    own = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bilinear", "resize_mode": "squash"}
    maker.write_json(maker.make_open_clip_config(False, own | {"size": [32, 32], "fill_color": 0, "mode": "RGB"}), path)
    half = (0.5, 0.5, 0.5)
    assert read_preprocessing(tmp_path, ModelFormat.OPEN_CLIP, 32)[0] == Preprocessing(
        32, half, half, "squash", "bilinear"
    )
    for config in ({"interpolation": "random", "resize_mode": None}, {}):
        maker.write_json(maker.make_open_clip_config(False, config), path)
        assert read_preprocessing(tmp_path, ModelFormat.OPEN_CLIP, 32)[0] == Preprocessing(32, OPENAI_MEAN, OPENAI_STD)
    for config, words in (
        ({"size": 64}, "Expected the model's 32 pixels as size"),
        ({"mode": "L"}, "one of 'RGB' as mode"),
        ({"resize_mode": "longest"}, "one of 'shortest', 'squash'"),
        ({"interpolation": "lanczos"}, "one of 'bicubic', 'bilinear'"),
        ({"blur": 3}, "sets blur=3"),
        ([1], "an object with the preprocessing"),
    ):
        maker.write_json(maker.make_open_clip_config(False, config), path)
        with pytest.raises(lmr.LmrError, match=words):
            read_preprocessing(tmp_path, ModelFormat.OPEN_CLIP, 32)


def test_model_and_preprocessing_must_agree(tmp_path: Path) -> None:
    """The whole way: a folder whose two files contradict each other loads nothing."""
    folder = maker.write_huggingface(maker.make_model(), tmp_path)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    maker.write_json(settings | {"size": 224, "crop_size": 224}, folder / "preprocessor_config.json")
    with pytest.raises(lmr.LmrError, match="to scale the short side to 32 pixels"):
        lmr.load(folder)
    sizes = json.loads((folder / "config.json").read_text())
    sizes["vision_config"]["num_hidden_layers"] = 3
    maker.write_json(sizes, folder / "config.json")
    with pytest.raises(lmr.LmrError, match=r"16 missing \(vision_model\.encoder\.layers\.2\."):
        lmr.load(folder)
