"""The embedded model: its towers against plain formulas in float64, its prompts, its preprocessing, its file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import lmr
from lmr.data.sets.pocket_world import CLASSES, COLOURS, SHAPES, draw
from lmr.models.towers.text import TextTower
from lmr.models.facts import ModelFormat
from lmr.models.embedded import WEIGHTS, Pocket
from lmr.models.embedded import PocketConfig
from lmr.models.embedded import WORDS, tokenize
from lmr.models.tokenizers import END, START, split_words
from tower_reference import normalise, run_block

NAMES = ["red star", "striped blue ring", "green heart"]


def read_metadata() -> dict[str, str]:
    with safe_open(str(WEIGHTS), framework="pt") as file:
        return dict(file.metadata())


@pytest.fixture(scope="module")
def backbone() -> Pocket:
    return Pocket()


@pytest.fixture(scope="module")
def images(backbone: Pocket) -> Tensor:
    return backbone.preprocess_pixels(torch.from_numpy(draw(range(7), seed=4)[0]))


# The towers.


def test_image_tower_is_the_plain_formula(backbone: Pocket, images: Tensor) -> None:
    tower: Any = copy.deepcopy(backbone.encoder).double()
    torch.manual_seed(0)
    for parameter in tower.parameters():  # norms and biases of a fresh model would be ones and zeros
        parameter += 0.05 * torch.randn_like(parameter)
    images = images[:3].double()
    with torch.no_grad():
        features = tower(images)
        side = tower.patches.kernel_size[0]
        count = images.shape[-1] // side
        for image, feature in zip(images, features, strict=True):
            tokens = [tower.class_token]
            for row in range(count):
                for column in range(count):
                    patch = image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
                    tokens.append((tower.patches.weight * patch).sum((1, 2, 3)))
            x = normalise(torch.stack(tokens) + tower.positions, tower.ln_pre)
            for block in tower.blocks:
                x = run_block(x, block, causal=False)
            expected = normalise(x[0], tower.ln_post) @ tower.projection
            torch.testing.assert_close(feature, expected, rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def text_tower() -> TextTower:
    torch.manual_seed(1)
    tower = TextTower(PocketConfig(vocabulary=len(WORDS)).text).double().eval().requires_grad_(False)
    for parameter in tower.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return tower


def test_text_tower_is_the_plain_formula(text_tower: TextTower) -> None:
    tokens, end = tokenize(["a photo of a red star", "striped blue ring", "a"], 20)
    features = text_tower(tokens, end)
    for row in range(3):
        length = int(end[row]) + 1  # what comes after the end does not exist
        x = text_tower.words.weight[tokens[row, :length]] + text_tower.positions[:length]
        for block in text_tower.blocks:
            x = run_block(x, block, causal=True)
        expected = normalise(x[-1], text_tower.ln_final) @ text_tower.projection
        torch.testing.assert_close(features[row], expected, rtol=0, atol=1e-10)


def test_nothing_after_the_end_of_a_text_matters(text_tower: TextTower) -> None:
    tokens, end = tokenize(["a photo of a red star", "one blue ring"], 20)
    features = text_tower(tokens, end)
    padded = torch.cat([tokens, torch.zeros(2, 5, dtype=torch.int64)], 1)
    torch.testing.assert_close(text_tower(padded, end), features, rtol=0, atol=1e-12)
    scribbled = padded.clone()
    for row in range(2):
        scribbled[row, end[row] + 1 :] = torch.randint(3, len(WORDS), scribbled[row, end[row] + 1 :].shape)
    torch.testing.assert_close(text_tower(scribbled, end), features, rtol=0, atol=1e-12)
    scribbled[:, 2] = 5
    assert not torch.allclose(text_tower(scribbled, end), features, atol=1e-3)


def test_features_do_not_depend_on_the_batch(backbone: Pocket, images: Tensor) -> None:
    with torch.no_grad():
        whole = backbone.encoder(images)
        for first, last in ((0, 1), (3, 4), (2, 7), (0, 3)):
            part = backbone.encoder(images[first:last])
            assert (part - whole[first:last]).abs().max() < 1e-5 * whole.abs().max()
    assert (whole[0] - whole[1]).abs().max() > 1e-3


def test_text_features_do_not_depend_on_the_set(backbone: Pocket) -> None:
    texts = ["red star", "a blurry photo of a large striped blue ring on the left", "heart"]
    together = backbone.encode_text(texts)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(3))
    for row, text in enumerate(texts):
        torch.testing.assert_close(backbone.encode_text([text])[0], together[row], rtol=0, atol=1e-5)
    assert not together.requires_grad


# Words.


def test_vocabulary_speaks_of_the_pocket_world() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert WORDS[:3] == ("<pad>", START, END)
    needed = {*SHAPES, *COLOURS, "small", "large", "left", "right", "top", "bottom", *" ".join(CLASSES).split()}
    assert needed <= set(WORDS)
    tokenize([f"a photo of a {name}." for name in CLASSES], 20)


def test_tokens_are_start_words_end_and_padding() -> None:
    tokens, end = tokenize(["A photo, of a RED-star!", "ring", ""], 20)
    words = [[WORDS[token] for token in row] for row in tokens]
    assert words[0] == [START, "a", "photo", "of", "a", "red", "star", END]
    assert words[1] == [START, "ring", END, *["<pad>"] * 5]
    assert words[2] == [START, END, *["<pad>"] * 6]
    assert end.tolist() == [7, 2, 1]
    assert tokens.dtype == end.dtype == torch.int64


@pytest.mark.parametrize("text", ["red star", "Red_Star", "red-star", " red  star. ", "(red) 'star'?", "red\nstar"])
def test_punctuation_only_separates(text: str) -> None:
    assert split_words(text) == ["red", "star"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a photo of a re star", r"'re' in 'a photo of a re star'\. Did you mean 'red'\? Its vocabulary: a, an, the"),
        ("strr", "Did you mean 'star'"),
        ("a zebra", "does not know the word 'zebra'"),
        ("star5", "'star5'.* Did you mean 'star'"),
        ("<end>x", "'endx'|'end'"),
        ("красный star", "'красный'"),
    ],
)
def test_unknown_word_gets_the_vocabulary(text: str, words: str, backbone: Pocket) -> None:
    with pytest.raises(lmr.LmrError, match=words) as caught:
        backbone.encode_text(["red star", text])
    assert "crescent" in str(caught.value)
    assert "<" not in str(caught.value).partition("Its vocabulary")[2]


def test_long_text_gets_a_sentence(backbone: Pocket) -> None:
    longest = " ".join(["red"] * 18)
    assert backbone.encode_text([longest]).isfinite().all()
    with pytest.raises(lmr.LmrError, match="has 19 words; the pocket model reads at most 18"):
        backbone.encode_text(["star", longest + " star"])
    with pytest.raises(lmr.LmrError, match="at least one text"):
        backbone.encode_text([])


# The classifier.


def test_ensemble_is_the_mean_of_unit_features(backbone: Pocket) -> None:
    templates = ["a photo of a {}.", "a dark picture of the {}", "{}, a {}"]
    clip = backbone.classifier(NAMES, templates)
    for c, name in enumerate(NAMES):
        total = torch.zeros(clip.prototypes.shape[1])
        for template in templates:
            feature = backbone.encode_text([template.replace("{}", name)])[0]
            total += feature / feature.norm()
        torch.testing.assert_close(clip.prototypes[c], total / total.norm(), rtol=0, atol=1e-5)
    assert clip.names == tuple(NAMES)
    assert clip.logit_scale == backbone.logit_scale
    assert clip.input_shape == backbone.input_shape == (3, 32, 32)
    assert clip.encoder is backbone.encoder


def test_default_template_is_clips(backbone: Pocket) -> None:
    expected = backbone.encode_text([f"a photo of a {name}." for name in NAMES])
    torch.testing.assert_close(backbone.classifier(NAMES).prototypes, expected, rtol=0, atol=1e-6)


def test_underscores_read_as_spaces(backbone: Pocket) -> None:
    clip = backbone.classifier(["red_star", "striped_blue_ring", " green_heart "])
    assert torch.equal(clip.prototypes, backbone.classifier(NAMES).prototypes)
    assert clip.names == ("red_star", "striped_blue_ring", " green_heart ")


@pytest.mark.parametrize("form", [tuple, list, iter, dict.fromkeys, np.array])
def test_names_and_templates_may_come_in_any_form(form: Any, backbone: Pocket) -> None:
    templates = ["a photo of a {}.", "a {}"]
    if form != dict.fromkeys:  # a mapping gives every class sentences of its own
        templates = form(templates)
    clip = backbone.classifier(form(NAMES), templates)
    assert clip.names == tuple(NAMES)
    assert torch.equal(clip.prototypes, backbone.classifier(NAMES, ["a photo of a {}.", "a {}"]).prototypes)


@pytest.mark.parametrize(
    ("names", "templates", "words"),
    [
        ("red star", ["a {}"], "single text; put it in a list"),
        (NAMES, "a photo of a {}.", "single text; put it in a list"),
        (NAMES, ["a photo of a {}.", "a photo"], r"templates with \{\}"),
        (NAMES, ["a photo of a {name}"], r"templates with \{\}"),
        (NAMES, [], r"templates with \{\}"),
        (["red star"], ["a {}"], "at least two class names"),
        ([], ["a {}"], "at least two class names"),
        (["red star", ""], ["a {}"], "none of them empty"),
        (["red star", "_ "], ["a {}"], "none of them empty"),
        (["red star", "blue zebra"], ["a {}"], "does not know the word 'zebra'"),
        ([3, 4], ["a {}"], "class names"),
        (["red star", None], ["a {}"], "class names"),
        (NAMES, [None], r"templates with \{\}"),
    ],
)
def test_bad_names_and_templates_get_a_sentence(names: Any, templates: Any, words: str, backbone: Pocket) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        backbone.classifier(names, templates)


# Preprocessing.


def test_picture_of_the_models_size_is_its_pixels(backbone: Pocket) -> None:
    pictures, _ = draw(range(4), seed=8)
    expected = backbone.preprocess_pixels(torch.from_numpy(pictures))
    assert expected.shape == (4, 3, 32, 32)
    assert expected.dtype == torch.float32
    for picture, pixels in zip(pictures, expected, strict=True):
        assert torch.equal(backbone.preprocess(Image.fromarray(picture)), pixels)
    mean, std = float(read_metadata()["mean"]), float(read_metadata()["std"])
    by_hand = (pictures[2, 5, 9].astype(float) / 255 - mean) / std
    assert expected[2, :, 5, 9].tolist() == pytest.approx(by_hand.tolist(), abs=1e-6)


EDGES = [(32, 32), (33, 32), (32, 33), (31, 64), (1, 1), (1, 50), (50, 1), (2, 3), (640, 31), (31, 640), (224, 224)]


@pytest.mark.parametrize("size", EDGES, ids=str)
def test_any_size_is_scaled_and_cropped(size: tuple[int, int], backbone: Pocket) -> None:
    """A plain picture stays plain; a ramp stays a ramp about the centre, whatever the shape of the picture."""
    plain = backbone.preprocess(Image.new("RGB", size, (200, 100, 50)))
    expected = backbone.preprocess_pixels(torch.tensor([200, 100, 50], dtype=torch.uint8).expand(1, 32, 32, 3))[0]
    assert torch.equal(plain, expected)
    width, height = size
    across = np.tile(np.linspace(0, 255, width)[None, :, None], (height, 1, 3)).round().astype(np.uint8)
    ramp = backbone.preprocess(Image.fromarray(across))
    assert ramp.shape == (3, 32, 32)
    middle = backbone.preprocess_pixels(torch.full((1, 32, 32, 3), 127, dtype=torch.uint8))[0, 0, 0, 0]
    if width > 1:
        assert (ramp[0].diff(dim=1) >= -0.04).all()
        assert abs(float(ramp[0, 16].mean() - middle)) < 0.25
    assert (ramp[0].diff(dim=0).abs() < 0.04).all()


@pytest.mark.parametrize("turned", [False, True])
def test_crop_is_the_centre(turned: bool, backbone: Pocket) -> None:
    bands = np.zeros((20, 60, 3), np.uint8)
    bands[:, :20], bands[:, 20:40], bands[:, 40:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    picture = Image.fromarray(bands.transpose(1, 0, 2).copy() if turned else bands)
    centre = backbone.preprocess(picture)[:, 4:28, 4:28]
    green = backbone.preprocess(Image.new("RGB", (5, 5), (0, 255, 0)))[:, 4:28, 4:28]
    assert torch.equal(centre, green)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_any_mode_becomes_rgb(mode: str, backbone: Pocket) -> None:
    picture = Image.fromarray(draw([3], seed=8)[0][0]).resize((45, 40)).convert("L" if mode == "1" else "RGB")
    converted = picture.convert(mode)
    expected = backbone.preprocess(converted.convert("RGB"))
    assert torch.equal(backbone.preprocess(converted), expected)
    assert expected.shape == (3, 32, 32)
    assert expected.isfinite().all()


def test_preprocess_leaves_the_picture_alone(backbone: Pocket) -> None:
    picture = Image.fromarray(draw([3], seed=8)[0][0]).resize((45, 40)).convert("L")
    before = picture.tobytes()
    backbone.preprocess(picture)
    assert picture.mode == "L"
    assert picture.size == (45, 40)
    assert picture.tobytes() == before


# The file.


def test_file_says_what_it_holds(backbone: Pocket) -> None:
    written = read_metadata()
    assert written["words"].split() == list(WORDS)
    assert PocketConfig(**json.loads(written["config"])).vocabulary == len(WORDS)
    assert backbone.model_facts.format is ModelFormat.POCKET
    assert backbone.facts["clean accuracy"] == written["clean_accuracy"]
    assert backbone.logit_scale > 0
    assert not any(parameter.requires_grad for parameter in backbone.encoder.parameters())
    assert not any(module.training for module in backbone.encoder.modules())


def test_load_finds_it_by_name(backbone: Pocket) -> None:
    assert "pocket" in lmr.list_models()
    loaded = lmr.load("pocket")
    assert isinstance(loaded, Pocket)
    assert isinstance(loaded, lmr.Backbone)
    assert loaded.name == "pocket"
    own, other = backbone.encoder.state_dict(), loaded.encoder.state_dict()
    assert all(torch.equal(own[key], other[key]) for key in own)
    with pytest.raises(lmr.LmrError, match=r"There is no model 'poket'\. Did you mean 'pocket'\? There are: "):
        lmr.load("poket")


def test_file_that_is_not_whole_gets_a_sentence(tmp_path: Path) -> None:
    content = WEIGHTS.read_bytes()
    for number, part in enumerate((b"", content[:5], content[:300], content[:100_000], content[:-1], b"noise" * 50)):
        path = tmp_path / f"part {number}"
        path.write_bytes(part)
        with pytest.raises(lmr.LmrError, match=f"part {number}' does not hold the pocket model; reinstall lmr"):
            Pocket(path)
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(lmr.LmrError, match="does not hold the pocket model"):
            Pocket(path)


FAULTS = ["no facts", "no config", "bad config", "odd config", "no mean", "bad scale", "no tensor", "shape"]


@pytest.mark.parametrize("fault", FAULTS)
def test_foreign_file_gets_a_sentence(fault: str, tmp_path: Path) -> None:
    facts = read_metadata()
    weights = load_file(WEIGHTS)
    changes: dict[str, Any] = {
        "no facts": lambda: facts.clear(),
        "no config": lambda: facts.pop("config"),
        "bad config": lambda: facts.update(config="{"),
        "odd config": lambda: facts.update(config='{"colour": 3}'),
        "no mean": lambda: facts.pop("mean"),
        "bad scale": lambda: facts.update(logit_scale="much"),
        "no tensor": lambda: weights.pop("image.class_token"),
        "shape": lambda: weights.update({"image.class_token": torch.zeros(3)}),
    }
    changes[fault]()
    save_file(weights, tmp_path / "foreign", metadata=facts)
    with pytest.raises(lmr.LmrError, match="foreign' does not hold the pocket model; reinstall lmr"):
        Pocket(tmp_path / "foreign")
