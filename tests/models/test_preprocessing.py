"""Preprocessing against the processors of transformers, for images in every form."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import lmr
from lmr.images.files import open_image
from lmr.models.preprocessing import ImagePreprocess, Preprocessing, read_image_processor

CLIP = Preprocessing(24, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SIZES = [(24, 24), (25, 24), (24, 31), (17, 40), (80, 61), (3, 5), (1, 1), (1, 30), (200, 9), (9, 200), (131, 97)]


def draw_noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def draw_scene(height: int, width: int) -> NDArray[np.uint8]:
    """Soft colours with a hard-edged box in the middle: flat, smooth and sharp places, as photographs have them."""
    soft = Image.fromarray(draw_noise(5, 5)).resize((width, height), Image.Resampling.BICUBIC)
    scene = np.array(soft)
    scene[height // 3 : 2 * height // 3, width // 3 : 2 * width // 3] = (255, 0, 40)
    return scene


# The inputs that transformers gives.


@pytest.mark.parametrize("kind", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [*SIZES, (30, 40), (40, 31), (61, 80), (24, 27), (24, 29), (31, 24)], ids=str)
def test_images_are_those_of_transformers(size: tuple[int, int], kind: Any) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    resample, square = {"bilinear": 2, "bicubic": 3}[kind], {"height": 24, "width": 24}
    clip = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size=square, resample=resample)
    for processor in (clip, SiglipImageProcessorPil(size=square, resample=resample)):
        preprocessing = read_image_processor(processor, 24)
        assert (preprocessing.interpolation, preprocessing.resize) == (kind, "short" if processor is clip else "squash")
        for pixels, mode in ((draw_noise(*size), "RGB"), (draw_scene(*size), "RGB"), (draw_scene(*size), "L")):
            image = Image.fromarray(pixels).convert(mode)
            expected = processor(image, return_tensors="pt")["pixel_values"][0]
            torch.testing.assert_close(preprocessing.prepare_image(image), expected, rtol=0, atol=1e-5)


# Where the crop falls, what needs no resizing, what must not cost memory.


def test_strip_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pixel wide and a hundred thousand long: scaled whole it would have 24 x 2,400,000 pixels."""
    resize, sizes = Image.Image.resize, list[int]()

    def note(image: Image.Image, size: tuple[int, int], *rest: Any, **more: Any) -> Image.Image:
        sizes.append(size[0] * size[1])
        return resize(image, size, *rest, **more)

    monkeypatch.setattr(Image.Image, "resize", note)
    for shape in ((1, 100_001, 3), (100_001, 1, 3)):
        assert CLIP.prepare_image(Image.fromarray(np.zeros(shape, np.uint8))).shape == (3, 24, 24)
    assert max(sizes) <= 24 * 24 * 65


# Modes of more than 8 bits, and what files are opened as.


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_16_bits_are_scaled_as_in_files(mode: str, tmp_path: Path) -> None:
    """Pillow's own conversion makes all above 255 white."""
    values = np.linspace(0, 65535, 30 * 40).reshape(30, 40).round()
    kind = {"I;16": "<u2", "I;16B": ">u2", "I": "<i4"}[mode]
    image = Image.frombytes(mode, (40, 30), values.astype(kind).tobytes())
    grey = np.rint(values / 257).astype(np.uint8)
    expected = CLIP.prepare_image(Image.fromarray(grey).convert("RGB"))
    assert torch.equal(CLIP.prepare_image(image), expected)
    Image.frombytes("I;16", (40, 30), values.astype("<u2").tobytes()).save(tmp_path / "deep.png")
    assert torch.equal(CLIP.prepare_image(open_image(tmp_path / "deep.png")), expected)
    with Image.open(tmp_path / "deep.png") as opened:
        assert torch.equal(CLIP.prepare_image(opened), expected)


def test_values_of_unknown_range_are_refused() -> None:
    with pytest.raises(lmr.LmrError, match="mode 'F'"):
        CLIP.prepare_image(Image.new("F", (5, 5), 0.5))


# What is not an image.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resolution": 0}, "resolution"),
        ({"std": (0.5, math.nan, 0.5)}, "as std"),
    ],
)
def test_what_no_model_wants_gets_a_message(change: dict[str, Any], words: str) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        Preprocessing(**{"resolution": 24, "mean": CLIP.mean, "std": CLIP.std, **change})


PREPROCESS = ImagePreprocess(Preprocessing(24, CLIP.mean, CLIP.std))
FORMS = [(37, 51), (24, 24), (60, 25)]


def draw_array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def encode(array: np.ndarray, **options: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(array).save(content, "PNG", **options)
    return content.getvalue()


@pytest.mark.parametrize("size", FORMS, ids=str)
def test_every_form_gives_the_same_bits(size: tuple[int, int], tmp_path: Path) -> None:
    for array in (draw_array(*size, 3), draw_array(*size)):
        content = encode(array)
        (tmp_path / "a.png").write_bytes(content)
        image = Image.fromarray(array)
        expected = PREPROCESS.preprocessing.prepare_image(image)
        assert expected.shape == (3, 24, 24)
        turned = np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)  # the same values in another memory order
        forms = [image, tmp_path / "a.png", str(tmp_path / "a.png"), content, bytearray(content), memoryview(content)]
        forms += [array, turned, torch.from_numpy(array), torch.from_numpy(turned)]
        for form in forms:
            assert torch.equal(PREPROCESS(form), expected), type(form)
        batch = PREPROCESS(forms)
        assert torch.equal(batch, expected.expand(len(forms), -1, -1, -1))
        assert torch.equal(PREPROCESS(tuple(forms)), batch)


def test_lists_may_mix_sizes_and_arrays_of_four_dimensions_are_lists() -> None:
    arrays = [draw_array(*size, 3) for size in FORMS]
    expected = torch.stack([PREPROCESS(array) for array in arrays])
    assert torch.equal(PREPROCESS([arrays[0], Image.fromarray(arrays[1]), encode(arrays[2])]), expected)
    batch = draw_array(3, 40, 31, 3)
    assert torch.equal(PREPROCESS(batch), PREPROCESS(list(batch)))
    assert torch.equal(PREPROCESS(torch.from_numpy(batch)), PREPROCESS(list(batch)))
    assert PREPROCESS([arrays[0]]).shape == (1, 3, 24, 24)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "got NoneType"),
        ([], "empty list"),
        (np.zeros((5, 5, 3)), "float64"),
        (np.zeros((5, 5, 4), np.uint8), "alpha channel"),
        (torch.zeros(2, 3, 5, 5, dtype=torch.uint8), "Image 0 of the list .*channels"),
        (np.zeros((0, 5, 3), np.uint8), "with pixels"),
        ([np.zeros((5, 5, 3), np.uint8), b"no image"], "Image 1 of the list"),
    ],
)
def test_what_is_no_image_gets_a_message(given: Any, words: str) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        PREPROCESS(given)


def test_backbone_gives_it_without_the_model() -> None:
    backbone = lmr.load()
    kept = pickle.dumps(backbone.preprocess)
    assert len(kept) < 2000
    again = pickle.loads(kept)
    assert again == backbone.preprocess
    array = draw_array(50, 40, 3)
    assert torch.equal(again(array), backbone.preprocessing.prepare_image(Image.fromarray(array)))
    backbone.to(torch.bfloat16)
    assert backbone.preprocess(array).dtype == torch.bfloat16
    assert torch.equal(backbone.preprocess(array), again(array).to(torch.bfloat16))
