"""Preprocessing as the files beside the weights say it, and a sentence for what cannot be followed."""

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
from lmr.models.formats.preprocessing_configs import read_preprocessing
from lmr.models.model_facts import ModelFormat
from lmr.models.preprocessing import OPENAI_MEAN, OPENAI_STD, Preprocessing


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
    assert read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32) == (plain, None)


def test_preprocessing_that_transformers_writes_is_read(tmp_path: Path) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    found, source = read_preprocessing(tmp_path, ModelFormat.HUGGINGFACE, 32)
    assert source in ("preprocessor_config.json", "processor_config.json")
    noise = torch.randint(256, (40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    theirs = processor(Image.fromarray(noise), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(found.prepare_image(Image.fromarray(noise)), theirs, atol=1e-5, rtol=0)


STD = r"three numbers from 0\.001 to 1000 as std in .*preprocessor_config.json"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"do_resize": False}, "do_resize to be true"),
        ({"do_rescale": False}, "do_rescale to be true"),
        ({"do_normalize": False}, "do_normalize to be true"),
        ({"rescale_factor": 1.0}, "1/255 as rescale_factor"),
        ({"resample": 1}, "resample 3"),
        ({"resample": [3]}, "resample 3"),
        ({"size": 256}, "to scale the short side to 32 pixels .* got size 256"),
        ({"crop_size": 64}, "crop_size 64"),
        ({"do_center_crop": False}, "do_center_crop False"),
        ({"size": {"height": 32, "width": 64}}, "got size"),
        ({"size": None}, "got size None"),
        ({"do_pad": True}, "asks for do_pad=True"),
        ({"image_mean": [0.5, 0.5]}, r"three numbers from -1000 to 1000 as mean in .*preprocessor_config.json"),
        ({"image_mean": [0.5, 0.5, 1e300]}, r"three numbers from -1000 to 1000 as mean in .*preprocessor_config.json"),
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
def test_odd_preprocessing_gets_a_sentence(change: dict[str, Any], words: str, tmp_path: Path) -> None:
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
        ({"mode": "L"}, "images in RGB"),
        ({"resize_mode": "longest"}, "'shortest' or 'squash'"),
        ({"interpolation": "lanczos"}, "'bicubic' or 'bilinear'"),
        ({"blur": 3}, "asks for blur=3"),
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
