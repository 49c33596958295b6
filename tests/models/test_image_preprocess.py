"""``backbone.preprocess``: every form of an image gives the same bits, here and in a worker of a DataLoader."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import lmr
from lmr.images.image_files import UnreadableImage, open_image
from lmr.models.image_preprocess import ImagePreprocess
from lmr.models.preprocessing import OPENAI_MEAN, OPENAI_STD, Preprocessing

CLIP = ImagePreprocess(Preprocessing(24, OPENAI_MEAN, OPENAI_STD))
SIZES = [(37, 51), (24, 24), (60, 25)]


def draw_noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def encode(array: np.ndarray, **options: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(array).save(content, "PNG", **options)
    return content.getvalue()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_form_gives_the_same_bits(size: tuple[int, int], tmp_path: Path) -> None:
    for array in (draw_noise(*size, 3), draw_noise(*size)):
        content = encode(array)
        (tmp_path / "a.png").write_bytes(content)
        image = Image.fromarray(array)
        expected = CLIP.preprocessing.prepare_image(image)
        assert expected.shape == (3, 24, 24)
        turned = np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)  # the same values in another memory order
        forms = [image, tmp_path / "a.png", str(tmp_path / "a.png"), content, bytearray(content), memoryview(content)]
        forms += [array, turned, torch.from_numpy(array), torch.from_numpy(turned)]
        for form in forms:
            assert torch.equal(CLIP(form), expected), type(form)
        batch = CLIP(forms)
        assert torch.equal(batch, expected.expand(len(forms), -1, -1, -1))
        assert torch.equal(CLIP(tuple(forms)), batch)


def test_lists_may_mix_sizes_and_arrays_of_four_dimensions_are_lists() -> None:
    arrays = [draw_noise(*size, 3) for size in SIZES]
    expected = torch.stack([CLIP(array) for array in arrays])
    assert torch.equal(CLIP([arrays[0], Image.fromarray(arrays[1]), encode(arrays[2])]), expected)
    batch = draw_noise(3, 40, 31, 3)
    assert torch.equal(CLIP(batch), CLIP(list(batch)))
    assert torch.equal(CLIP(torch.from_numpy(batch)), CLIP(list(batch)))
    assert CLIP([arrays[0]]).shape == (1, 3, 24, 24)


def test_content_is_opened_as_files_are(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    clear = np.concatenate([draw_noise(30, 40, 3), draw_noise(30, 40, 1)], axis=2)
    deep = (draw_noise(30, 40).astype(np.uint16) * 257).astype(np.uint16)
    for content in (encode(draw_noise(30, 40, 3), exif=exif), encode(clear), encode(deep)):
        (tmp_path / "a.png").write_bytes(content)
        assert torch.equal(CLIP(content), CLIP(open_image(tmp_path / "a.png")))
        assert torch.equal(CLIP(content), CLIP(tmp_path / "a.png"))
    assert not torch.equal(CLIP(encode(clear)), CLIP(Image.fromarray(clear)))  # whose transparency is dropped


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"Expected a PIL image, the path of .*got NoneType\."),
        (3.5, r"got float\."),
        ([[b""]], r"Image 0 of the list .*got list\."),
        ([], "Expected at least one image, got an empty list"),
        (np.zeros((0, 5, 5, 3), np.uint8), "Expected at least one image"),
        (np.zeros((5, 5, 3)), "uint8 values from 0 to 255, got one of float64"),
        (torch.zeros(5, 5, 3), "uint8 values from 0 to 255, got one of torch.float32"),
        (np.zeros((3, 5, 5), np.uint8), r"got \[3, 5, 5\]; move the channels to the end"),
        (np.zeros((5, 5, 4), np.uint8), r"got \[5, 5, 4\]; .*drop an alpha channel"),
        (np.zeros(5, np.uint8), r"got \[5\]"),
        (np.zeros((2, 2, 5, 5, 3), np.uint8), r"got \[2, 2, 5, 5, 3\]"),
        (torch.zeros(2, 3, 5, 5, dtype=torch.uint8), r"Image 0 of the list .*got \[3, 5, 5\]"),
        (np.zeros((0, 5, 3), np.uint8), r"with pixels, got an array \[0, 5, 3\]"),
        ("missing.png", r"Cannot read 'missing\.png': there is no such file"),
        (b"", "Cannot read the image in 0 bytes: the file is empty"),
        (b"no image", "Cannot read the image in 8 bytes: it is not an image or has an unknown format"),
        (
            [np.zeros((5, 5, 3), np.uint8), b"no image"],
            r"Image 1 of the list \(the first is 0\): Cannot read the image",
        ),
    ],
)
def test_what_is_no_image_gets_a_message(given: Any, words: str) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        CLIP(given)


def test_single_file_raises_the_error_of_files() -> None:
    with pytest.raises(UnreadableImage):
        CLIP("missing.png")
    with pytest.raises(UnreadableImage, match="Image 1 of the list"):
        CLIP([draw_noise(5, 5, 3), "missing.png"])


@pytest.mark.parametrize("name", ["pocket", "photo"])
def test_backbone_gives_it_without_the_model(name: str) -> None:
    backbone = lmr.load(name)
    kept = pickle.dumps(backbone.preprocess)
    assert len(kept) < 2000
    again = pickle.loads(kept)
    assert again == backbone.preprocess
    array = draw_noise(50, 40, 3)
    assert torch.equal(again(array), backbone.preprocessing.prepare_image(Image.fromarray(array)))
    backbone.to(torch.bfloat16)
    assert backbone.preprocess(array).dtype == torch.bfloat16
    assert torch.equal(backbone.preprocess(array), again(array).to(torch.bfloat16))


class Files(Dataset):
    """What a user writes: paths, and the function that turns one into an input."""

    def __init__(self, paths: list[Path], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.transform(self.paths[place])


def test_worker_of_a_data_loader_gives_the_same_batches(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(encode(draw_noise(20 + number, 30, 3)))
    preprocess = lmr.load("pocket").preprocess
    # With its own transform the loader pickles a class of the package only; `Files` cannot be imported in a worker.
    loader: Any = DataLoader(
        paths,
        batch_size=2,
        num_workers=1,
        collate_fn=preprocess,
        multiprocessing_context="spawn",  # type: ignore[arg-type]
    )
    spawned = torch.cat(list(loader))
    here = torch.cat(list(DataLoader(Files(paths, preprocess), batch_size=2)))
    assert torch.equal(spawned, here)
    assert torch.equal(here, preprocess(paths))
