"""NaFlex: packed patches against the tensors and features of transformers, on images of many shapes in one batch."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers.models.siglip2.image_processing_pil_siglip2 import get_image_size_for_max_num_patches

import lmr
import processor_maker as maker
from lmr.models.naflex import PatchPreprocessing, fit_grid, unpack

SIZES = [(40, 40), (70, 21), (20, 64), (33, 47), (200, 3), (1, 300), (9, 8)]
HALF = (0.5, 0.5, 0.5)


def draw(count: int = len(SIZES)) -> list[Image.Image]:
    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 256, (*size, 3)).astype(np.uint8)) for size in SIZES[:count]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[lmr.Backbone, maker.Siglip2Model, maker.Siglip2Processor]:
    folder = tmp_path_factory.mktemp("naflex")
    model, processor = maker.save_naflex(folder)
    return lmr.load(folder), model, processor


@pytest.mark.parametrize("height", [1, 3, 16, 17, 224, 255, 1000, 4032])
@pytest.mark.parametrize("width", [1, 16, 31, 224, 640, 5000])
@pytest.mark.parametrize(("patch", "most"), [(16, 256), (14, 1024), (4, 20)])
def test_grid_is_that_of_transformers(height: int, width: int, patch: int, most: int) -> None:
    rows, columns = fit_grid(height, width, patch, most)
    assert (rows * patch, columns * patch) == get_image_size_for_max_num_patches(height, width, patch, most)
    assert rows * columns <= most


def test_inputs_and_features_are_those_of_transformers(
    loaded: tuple[lmr.Backbone, maker.Siglip2Model, maker.Siglip2Processor],
) -> None:
    backbone, model, processor = loaded
    images = torch.stack([backbone.preprocess(image) for image in draw()])
    assert images.shape[1:] == backbone.input_shape
    expected = processor.image_processor(draw(), return_tensors="pt")
    assert len({tuple(shape) for shape in expected["spatial_shapes"].tolist()}) > 4
    for key, value in unpack(images).items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-6, check_dtype=False)
    with torch.no_grad():
        features = model.get_image_features(**expected).pooler_output
        torch.testing.assert_close(backbone.encoder(images), features, rtol=0, atol=1e-5)
        alone = backbone.encoder(images[3:4])
    torch.testing.assert_close(alone, features[3:4], rtol=0, atol=1e-5)  # padding and neighbours do not matter


def test_grid_survives_half_precision() -> None:
    preprocessing = PatchPreprocessing(64, HALF, HALF, patch=2, patches=1000)
    images = torch.stack([preprocessing.prepare_image(image) for image in draw()])
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert torch.equal(unpack(images.to(dtype))["spatial_shapes"], unpack(images)["spatial_shapes"])


def test_what_is_not_an_image_is_refused() -> None:
    preprocessing = PatchPreprocessing(16, HALF, HALF, interpolation="bilinear", patch=4, patches=20)
    with pytest.raises(lmr.LmrError, match="Expected a PIL image"):
        preprocessing.prepare_image("cat.jpg")  # type: ignore[arg-type]


def spoil(images: Tensor, kind: str) -> Tensor:
    images = images.clone()
    if kind == "nothing":
        images.zero_()
    elif kind == "hole":
        images[0, 1, -2] = 0
    elif kind == "no row":
        images[..., -1] = 0
    else:
        images[0, :5, -1] = 1
    return images


@pytest.mark.parametrize("kind", ["nothing", "hole", "no row", "uneven"])
def test_images_that_are_not_packed_are_refused(
    loaded: tuple[lmr.Backbone, maker.Siglip2Model, maker.Siglip2Processor], kind: str
) -> None:
    backbone = loaded[0]
    images = torch.stack([backbone.preprocess(image) for image in draw(3)])
    method = lmr.create("tent", backbone.classifier(["cat", "dog"]))
    with pytest.raises(lmr.LmrError, match="as this model's preprocess packs them"):
        method.step(spoil(images, kind))


def test_facts_say_what_was_loaded(loaded: tuple[lmr.Backbone, maker.Siglip2Model, maker.Siglip2Processor]) -> None:
    assert loaded[0].facts["preprocessing"].startswith("at most 20 patches of 4 pixels, bilinear; from ")


def test_it_cannot_be_written(
    loaded: tuple[lmr.Backbone, maker.Siglip2Model, maker.Siglip2Processor], tmp_path: Path
) -> None:
    with pytest.raises(lmr.LmrError, match="cannot be written as a Hugging Face folder"):
        loaded[0].write_huggingface(tmp_path, {})
    assert not list(tmp_path.iterdir())


def test_preprocess_takes_a_list_and_can_be_pickled(
    loaded: tuple[lmr.Backbone, maker.Siglip2Model, maker.Siglip2Processor],
) -> None:
    """Images of several shapes in one call, as a worker of a DataLoader makes it."""
    preprocess = loaded[0].preprocess
    expected = torch.stack([preprocess(image) for image in draw()])
    assert torch.equal(pickle.loads(pickle.dumps(preprocess))(draw()), expected)
    assert torch.equal(preprocess([np.asarray(image) for image in draw()]), expected)


def test_settings_of_another_model_are_refused(tmp_path: Path) -> None:
    maker.save_naflex(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    for key, value, words in (
        ("patch_size", 8, "patches of the model's 4 pixels"),
        ("max_num_patches", 0, "a number of patches"),
        ("do_rescale", False, "Expected do_rescale to be true"),
        ("rescale_factor", 1.0, "Expected 1/255 as rescale_factor"),
        ("resample", 0, "Expected one of 2, 3 as resample"),
        ("image_mean", [0.5], r"Expected three numbers .* as mean"),
        ("image_std", "half", r"Expected three numbers .* as std"),
        ("do_pad", True, "sets do_pad=True"),
    ):
        file.write_text(json.dumps(settings | {key: value}))
        with pytest.raises(lmr.LmrError, match=words):
            lmr.load(tmp_path)


def test_settings_of_a_whole_processor_are_read(tmp_path: Path) -> None:
    """transformers 5 writes them into processor_config.json."""
    _, processor = maker.save_naflex(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    processor.image_processor.image_mean = [0.1, 0.2, 0.3]
    processor.save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    backbone = lmr.load(tmp_path)
    assert isinstance(backbone.preprocessing, PatchPreprocessing)
    assert (backbone.preprocessing.patches, backbone.preprocessing.mean) == (maker.PATCHES, (0.1, 0.2, 0.3))
    assert backbone.facts["preprocessing"].endswith("from processor_config.json")
    expected = processor.image_processor(draw(), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(backbone.preprocess(draw())[..., :-2], expected, rtol=0, atol=1e-6)
    (tmp_path / "processor_config.json").write_text('{"image_processor": 3}')
    with pytest.raises(lmr.LmrError, match="Expected an object with the preprocessing"):
        lmr.load(tmp_path)
