"""The embedded models pocket and photo: their towers by hand, their words, their files."""

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
from torch import Tensor, nn

import lmr
from few_views import create
from lab.train.photo import PhotoRecipe
from lab.train.pocket import WORDS, tokenize
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.data.pocket_world import CLASSES, COLOURS, SHAPES, draw
from lmr.models.embedded import ASSETS, Embedded, EmbeddedConfig, EmbeddedTowers
from lmr.models.facts import ModelFormat
from lmr.models.tokenizers import END, START, split_words
from lmr.models.towers.text import TextTower
from tiny_models import load_tiny
from tower_reference import normalise, run_block

POCKET_WEIGHTS, PHOTO_WEIGHTS = (ASSETS / f"{name}.safetensors" for name in ("pocket", "photo"))
NAMES = ["red star", "striped blue ring", "green heart"]


def read_metadata(path: Path) -> dict[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return dict(file.metadata())


@pytest.fixture(scope="module")
def pocket() -> Embedded:
    return Embedded("pocket")


@pytest.fixture(scope="module")
def drawings(pocket: Embedded) -> Tensor:
    return pocket.preprocess(torch.from_numpy(draw(range(7), seed=4)[0]))


# The towers.


def test_pocket_image_tower_is_the_plain_formula(pocket: Embedded, drawings: Tensor) -> None:
    tower: Any = copy.deepcopy(pocket.encoder).double()
    torch.manual_seed(0)
    for parameter in tower.parameters():  # norms and biases of a fresh model would be ones and zeros
        parameter += 0.05 * torch.randn_like(parameter)
    drawings = drawings[:3].double()
    with torch.no_grad():
        features = tower(drawings)
        side = tower.patches.kernel_size[0]
        count = drawings.shape[-1] // side
        for image, feature in zip(drawings, features, strict=True):
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
    tower = TextTower(EmbeddedConfig(vocabulary=len(WORDS)).text).double().eval().requires_grad_(False)
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


def test_pocket_features_do_not_depend_on_the_batch(pocket: Embedded, drawings: Tensor) -> None:
    with torch.no_grad():
        whole = pocket.encoder(drawings)
        for first, last in ((0, 1), (3, 4), (2, 7), (0, 3)):
            part = pocket.encoder(drawings[first:last])
            assert (part - whole[first:last]).abs().max() < 1e-5 * whole.abs().max()
    assert (whole[0] - whole[1]).abs().max() > 1e-3


def test_text_features_do_not_depend_on_the_set(pocket: Embedded) -> None:
    texts = ["red star", "a blurry photo of a large striped blue ring on the left", "heart"]
    together = pocket.encode_text(texts)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(3))
    for row, text in enumerate(texts):
        torch.testing.assert_close(pocket.encode_text([text])[0], together[row], rtol=0, atol=1e-5)
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
def test_unknown_word_gets_the_vocabulary(text: str, words: str, pocket: Embedded) -> None:
    with pytest.raises(lmr.LmrError, match=words) as caught:
        pocket.encode_text(["red star", text])
    assert "crescent" in str(caught.value)
    assert "<" not in str(caught.value).partition("Its vocabulary")[2]


def test_long_text_gets_a_message(pocket: Embedded) -> None:
    longest = " ".join(["red"] * 18)
    assert pocket.encode_text([longest]).isfinite().all()
    with pytest.raises(lmr.LmrError, match="has 19 words; the pocket model reads at most 18"):
        pocket.encode_text(["star", longest + " star"])
    with pytest.raises(lmr.LmrError, match="at least one text"):
        pocket.encode_text([])


# The classifier.


def test_ensemble_is_the_mean_of_unit_features(pocket: Embedded) -> None:
    templates = ["a photo of a {}.", "a dark picture of the {}", "{}, a {}"]
    clip = pocket.classifier(NAMES, templates)
    for c, name in enumerate(NAMES):
        total = torch.zeros(clip.prototypes.shape[1])
        for template in templates:
            feature = pocket.encode_text([template.replace("{}", name)])[0]
            total += feature / feature.norm()
        torch.testing.assert_close(clip.prototypes[c], total / total.norm(), rtol=0, atol=1e-5)
    assert clip.names == tuple(NAMES)
    assert clip.logit_scale == pocket.logit_scale
    assert clip.input_shape == pocket.input_shape == (3, 32, 32)
    assert clip.encoder is pocket.encoder


def test_default_template_is_clips(pocket: Embedded) -> None:
    expected = pocket.encode_text([f"a photo of a {name}." for name in NAMES])
    torch.testing.assert_close(pocket.classifier(NAMES).prototypes, expected, rtol=0, atol=1e-6)


def test_underscores_read_as_spaces(pocket: Embedded) -> None:
    clip = pocket.classifier(["red_star", "striped_blue_ring", " green_heart "])
    assert torch.equal(clip.prototypes, pocket.classifier(NAMES).prototypes)
    assert clip.names == ("red_star", "striped_blue_ring", " green_heart ")


@pytest.mark.parametrize("form", [tuple, list, iter, dict.fromkeys, np.array])
def test_names_and_templates_may_come_in_any_form(form: Any, pocket: Embedded) -> None:
    templates = ["a photo of a {}.", "a {}"]
    if form != dict.fromkeys:  # a mapping gives every class sentences of its own
        templates = form(templates)
    clip = pocket.classifier(form(NAMES), templates)
    assert clip.names == tuple(NAMES)
    assert torch.equal(clip.prototypes, pocket.classifier(NAMES, ["a photo of a {}.", "a {}"]).prototypes)


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
def test_bad_names_and_templates_get_a_message(names: Any, templates: Any, words: str, pocket: Embedded) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        pocket.classifier(names, templates)


# Preprocessing.


def test_image_of_the_models_size_is_its_pixels(pocket: Embedded) -> None:
    images, _ = draw(range(4), seed=8)
    expected = pocket.preprocess(torch.from_numpy(images))
    assert expected.shape == (4, 3, 32, 32)
    assert expected.dtype == torch.float32
    for image, pixels in zip(images, expected, strict=True):
        assert torch.equal(pocket.preprocess(Image.fromarray(image)), pixels)
    mean, std = float(read_metadata(POCKET_WEIGHTS)["mean"]), float(read_metadata(POCKET_WEIGHTS)["std"])
    by_hand = (images[2, 5, 9].astype(float) / 255 - mean) / std
    assert expected[2, :, 5, 9].tolist() == pytest.approx(by_hand.tolist(), abs=1e-6)


EDGES = [(32, 32), (33, 32), (32, 33), (31, 64), (1, 1), (1, 50), (50, 1), (2, 3), (640, 31), (31, 640), (224, 224)]


@pytest.mark.parametrize("size", EDGES, ids=str)
def test_any_size_is_scaled_and_cropped(size: tuple[int, int], pocket: Embedded) -> None:
    """A plain image stays plain; a ramp stays a ramp about the centre, whatever the shape of the image."""
    plain = pocket.preprocess(Image.new("RGB", size, (200, 100, 50)))
    expected = pocket.preprocess(torch.tensor([200, 100, 50], dtype=torch.uint8).expand(1, 32, 32, 3))[0]
    assert torch.equal(plain, expected)
    width, height = size
    across = np.tile(np.linspace(0, 255, width)[None, :, None], (height, 1, 3)).round().astype(np.uint8)
    ramp = pocket.preprocess(Image.fromarray(across))
    assert ramp.shape == (3, 32, 32)
    middle = pocket.preprocess(torch.full((1, 32, 32, 3), 127, dtype=torch.uint8))[0, 0, 0, 0]
    if width > 1:
        assert (ramp[0].diff(dim=1) >= -0.04).all()
        assert abs(float(ramp[0, 16].mean() - middle)) < 0.25
    assert (ramp[0].diff(dim=0).abs() < 0.04).all()


@pytest.mark.parametrize("turned", [False, True])
def test_crop_is_the_centre(turned: bool, pocket: Embedded) -> None:
    bands = np.zeros((20, 60, 3), np.uint8)
    bands[:, :20], bands[:, 20:40], bands[:, 40:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    image = Image.fromarray(bands.transpose(1, 0, 2).copy() if turned else bands)
    centre = pocket.preprocess(image)[:, 4:28, 4:28]
    green = pocket.preprocess(Image.new("RGB", (5, 5), (0, 255, 0)))[:, 4:28, 4:28]
    assert torch.equal(centre, green)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_any_mode_becomes_rgb(mode: str, pocket: Embedded) -> None:
    image = Image.fromarray(draw([3], seed=8)[0][0]).resize((45, 40)).convert("L" if mode == "1" else "RGB")
    converted = image.convert(mode)
    expected = pocket.preprocess(converted.convert("RGB"))
    assert torch.equal(pocket.preprocess(converted), expected)
    assert expected.shape == (3, 32, 32)
    assert expected.isfinite().all()


def test_preprocess_leaves_the_image_alone(pocket: Embedded) -> None:
    image = Image.fromarray(draw([3], seed=8)[0][0]).resize((45, 40)).convert("L")
    before = image.tobytes()
    pocket.preprocess(image)
    assert image.mode == "L"
    assert image.size == (45, 40)
    assert image.tobytes() == before


# The file.


def test_pocket_file_says_what_it_holds(pocket: Embedded) -> None:
    written = read_metadata(POCKET_WEIGHTS)
    assert written["words"].split() == list(WORDS)
    assert EmbeddedConfig(**json.loads(written["config"])).vocabulary == len(WORDS)
    assert pocket.model_facts.format is ModelFormat.POCKET
    assert pocket.facts["clean accuracy"] == written["clean_accuracy"]
    assert pocket.logit_scale > 0
    assert not any(parameter.requires_grad for parameter in pocket.encoder.parameters())
    assert not any(module.training for module in pocket.encoder.modules())


def test_load_finds_it_by_name(pocket: Embedded) -> None:
    assert "pocket" in lmr.list_models()
    loaded = lmr.load("pocket")
    assert isinstance(loaded, Embedded)
    assert isinstance(loaded, lmr.Backbone)
    assert loaded.name == "pocket"
    own, other = pocket.encoder.state_dict(), loaded.encoder.state_dict()
    assert all(torch.equal(own[key], other[key]) for key in own)
    with pytest.raises(lmr.LmrError, match=r"There is no model 'poket'\. Did you mean 'pocket'\? There are: "):
        lmr.load("poket")


def test_damaged_pocket_file_gets_a_message(tmp_path: Path) -> None:
    content = POCKET_WEIGHTS.read_bytes()
    for number, part in enumerate((b"", content[:5], content[:300], content[:100_000], content[:-1], b"noise" * 50)):
        path = tmp_path / f"part {number}"
        path.write_bytes(part)
        with pytest.raises(lmr.LmrError, match=f"part {number}' does not hold the pocket model; reinstall lmr"):
            Embedded("pocket", path)
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(lmr.LmrError, match="does not hold the pocket model"):
            Embedded("pocket", path)


FAULTS = ["no facts", "no config", "bad config", "odd config", "no mean", "bad scale", "no tensor", "shape"]


@pytest.mark.parametrize("fault", FAULTS)
def test_foreign_pocket_file_gets_a_message(fault: str, tmp_path: Path) -> None:
    facts = read_metadata(POCKET_WEIGHTS)
    weights = load_file(POCKET_WEIGHTS)
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
        Embedded("pocket", tmp_path / "foreign")


CIFAR10 = read_list("cifar10")


@pytest.fixture(scope="module")
def photo() -> Embedded:
    return Embedded("photo")


@pytest.fixture(scope="module")
def photographs(photo: Embedded) -> Tensor:
    return photo.preprocess(torch.from_numpy(np.stack(Photographs().read("clean", 0, range(7)))))


# The image tower, by hand.


def convolve(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """A 3x3 convolution of one image [c, h, w] with a border of zeros, as a sum over the nine places of its kernel."""
    _, height, width = x.shape
    framed = torch.zeros(len(x), height + 2, width + 2, dtype=x.dtype)
    framed[:, 1:-1, 1:-1] = x
    out = bias[:, None, None].repeat(1, height, width)
    for row in range(3):
        for column in range(3):
            seen = framed[:, row : row + height, column : column + width]
            out = out + torch.einsum("oc,chw->ohw", weight[:, :, row, column], seen)
    return out[:, ::stride, ::stride]


def embed(image: Tensor, stem: Any) -> Tensor:
    """The tokens [16, width] of one image."""
    plan = [(1, "relu"), (2, "relu"), (1, "residual"), (2, "relu"), (1, "residual"), (2, "plain")]
    x = image
    for layer, (stride, ending) in zip(stem, plan, strict=True):
        y = convolve(x, layer.conv.weight, layer.conv.bias, stride)
        x = y if ending == "plain" else y.clamp(min=0) + (x if ending == "residual" else 0)
    return torch.stack([x[:, row, column] for row in range(x.shape[1]) for column in range(x.shape[2])])


def encode(image: Tensor, tower: Any) -> Tensor:
    x = torch.cat([tower.class_token[None], embed(image, tower.patches)]) + tower.positions
    x = normalise(x, tower.ln_pre)
    for block in tower.blocks:
        x = run_block(x, block, causal=False)
    return normalise(x[0], tower.ln_post) @ tower.projection


def test_photo_image_tower_is_the_plain_formula(photo: Embedded, photographs: Tensor) -> None:
    tower: Any = copy.deepcopy(photo.encoder).double()
    photographs = photographs[:3].double()
    with torch.no_grad():
        expected = torch.stack([encode(image, tower) for image in photographs])
        torch.testing.assert_close(tower(photographs), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("memory", ["fast", "lean"])
@pytest.mark.parametrize("per_image", [False, True])
def test_gradient_to_the_norms_is_that_of_the_plain_formula(
    memory: Any, per_image: bool, photo: Embedded, photographs: Tensor
) -> None:
    tower: Any = copy.deepcopy(photo.encoder).double()
    tower.set_memory(memory)
    photographs = photographs[:4].double()
    toward = torch.randn(4, tower.config.features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    toward[1] = 0  # an image that receives no gradient is skipped
    norms = [module for module in tower.modules() if isinstance(module, nn.LayerNorm)]
    plain = [parameter.requires_grad_() for norm in norms for parameter in (norm.weight, norm.bias)]
    features = torch.stack([encode(image, tower) for image in photographs])
    expected = torch.autograd.grad((features * toward).sum(), plain)
    if per_image:  # as with one stream per image
        for norm in norms:
            for name in ("weight", "bias"):
                rows = getattr(norm, name).detach().expand(4, -1).clone().requires_grad_()
                delattr(norm, name)
                setattr(norm, name, rows)
    own = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
    found = torch.autograd.grad((tower(photographs) * toward).sum(), own)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.sum(0) if per_image else one, other, rtol=0, atol=1e-9)


def test_photo_features_do_not_depend_on_the_batch(photo: Embedded, photographs: Tensor) -> None:
    with torch.no_grad():
        whole = photo.encoder(photographs)
        for first, last in ((0, 1), (3, 4), (2, 7)):
            torch.testing.assert_close(photo.encoder(photographs[first:last]), whole[first:last], rtol=0, atol=2e-5)


# Tokens in place of images.


def test_tokens_do_not_depend_on_the_batch(photo: Embedded) -> None:
    images = torch.randn(33, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    whole = photo.encoder.embed(images)
    for count in (2, 16, 17, 33):
        assert torch.equal(photo.encoder.embed(images[:count]), whole[:count])
    torch.testing.assert_close(photo.encoder.embed(images[:1]), whole[:1], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def tiny_photo() -> lmr.Backbone:
    return load_tiny("photo")


@pytest.mark.parametrize("name", [name for name in lmr.list_methods() if not lmr.find_method(name).needs_images])
def test_a_step_embeds_once_and_answers_the_same(
    name: str, tiny_photo: Any, photographs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    hook = tiny_photo.encoder.stem.register_forward_hook(lambda *_: calls.append(1))
    clip = tiny_photo.classifier(CIFAR10)
    clip.logit_scale *= 3  # so that every method finds photographs it trusts enough
    from_images, from_tokens, every_pass = (create(name, clip) for _ in range(3))
    monkeypatch.setattr(every_pass, "needs_images", True)  # embeds the photographs in every pass
    try:
        for batch in (photographs[:4], photographs[3:]):
            before = len(calls)
            answer = from_images.step(batch)
            assert len(calls) == before + 1
            tokens = clip.embed(batch)
            assert torch.equal(from_tokens.step(tokens).logits, answer.logits)
            torch.testing.assert_close(every_pass.step(batch).logits, answer.logits, rtol=0, atol=1e-3)
            assert torch.equal(from_images.predict(tokens).logits, from_images.predict(batch).logits)
            before = len(calls)
            from_images.predict(tokens)
            assert len(calls) == before
    finally:
        hook.remove()
    start = create(name, clip).state
    learnt = [key for key in start if key != "predicted" and not torch.equal(start[key], from_images.state[key])]
    assert bool(learnt) == (start.keys() > {"predicted"}), "no photograph was trusted"


def test_steps_of_several_streams_take_tokens(photo: Embedded, photographs: Tensor) -> None:
    clip = photo.classifier(CIFAR10)
    for spec in ("lmr", "mint"):
        one, other = (lmr.create(spec, clip, streams=2) for _ in range(2))
        for streams in ([0, 1, 1, 0, 1, 0, 0], [1] * 7):
            answer = one.step(clip.embed(photographs), streams=streams)
            assert torch.equal(other.step(photographs, streams=streams).logits, answer.logits)


def test_tokens_are_refused_where_images_are_needed(photo: Embedded, photographs: Tensor) -> None:
    clip = photo.classifier(CIFAR10)
    method = lmr.create("lmr", clip)
    method.needs_images = True  # type: ignore[misc]
    for given in (method, lmr.Watched(method)):
        with pytest.raises(lmr.LmrError, match=r"lmr needs the images themselves, got their tokens \[7, 17, 192\]"):
            given.step(clip.embed(photographs))
    with pytest.raises(lmr.LmrError, match=r"Expected images of shape \['B', 3, 32, 32\], got \[2, 17, 191\]"):
        lmr.create("lmr", clip).step(torch.zeros(2, 17, 191))
    plain = lmr.load("pocket").classifier(["red ring", "blue star"])
    with pytest.raises(lmr.LmrError, match="Expected images of shape"):
        lmr.create("lmr", plain).step(torch.zeros(2, *plain.encoder.get_parameter("positions").shape))
    assert plain.embed(photographs) is photographs


def test_canaries_are_tokens_also_of_a_state_that_has_images(photo: Embedded, photographs: Tensor) -> None:
    clip = photo.classifier(CIFAR10)
    clip.logit_scale *= 100  # the frozen model is sure of every image
    watched = lmr.Watched(lmr.create("zeroshot", clip), lmr.WatchSettings(every=1))
    watched.step(photographs)
    state = watched.state_dict()
    tokens = state["tensors"]["watch/0/canaries"]
    assert clip.is_embedded(tokens)
    embedded = clip.embed(photographs).to(tokens.dtype)  # they are kept in half precision
    kept = [k for k, one in enumerate(embedded) if (one == tokens).flatten(1).all(1).any()]
    assert len(kept) == len(tokens) > 1
    state["tensors"]["watch/0/canaries"] = photographs[kept].to(tokens.dtype)
    watched.load_state_dict(state)
    rounded = clip.embed(photographs[kept].to(tokens.dtype).to(clip.dtype))
    torch.testing.assert_close(watched.state["watch/0/canaries"], rounded.to(tokens.dtype), rtol=0, atol=1e-3)
    state["tensors"]["watch/0/canaries"] = photographs[kept, :, :16].to(tokens.dtype)
    with pytest.raises(lmr.LmrError, match="canaries have another shape"):
        watched.load_state_dict(state)


# What it knows.


def test_it_knows_the_names_of_both_sets(photo: Embedded) -> None:
    assert photo.tokenizer.names == (*read_list("cifar10"), *read_list("cifar100"))
    features = photo.encode_text([f"a photo of a {name}." for name in photo.tokenizer.names])
    cosines = features @ features.T - 2 * torch.eye(110)
    assert cosines.max() < 0.997  # no two names are read alike; boy and girl are nearest


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zebra", r"does not know the word 'zebra' in 'a photo of a zebra\.'"),
        ("fish", r"knows no class 'fish', .* Near ones: aquarium fish, flatfish"),
        ("tree", r"knows no class 'tree', .* Near ones: maple tree, oak tree, palm tree, pine tree, willow tree"),
        ("cat dog", r"knows no class 'cat dog', .* Near ones: cat, dog"),
        ("trucks", r"does not know the word 'trucks'.* Near ones: truck"),
        ("good", r"needs a class name in 'a photo of a good\.'"),
    ],
)
def test_other_names_get_an_error_with_near_ones(name: str, words: str, photo: Embedded) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        photo.classifier(["cat", name])
    with pytest.raises(lmr.LmrError, match=r"110 class names and .* words around them; 'lmr doctor photo' lists both"):
        photo.classifier(["cat", name])


def test_it_recognises_photographs_it_was_not_trained_on(photo: Embedded) -> None:
    photos = Photographs()
    classifier = photo.classifier(CIFAR10)
    pixels = torch.from_numpy(np.stack(photos.read("clean", 0, range(0, 2000, 4))))
    labels = torch.from_numpy(photos.labels("clean")[::4])
    with torch.no_grad():
        answers = classifier.cosines(classifier.features(photo.preprocess(pixels))).argmax(1)
    assert (answers == labels).float().mean() > 0.85


@pytest.mark.parametrize("size", [(32, 32), (500, 375), (20, 64), (1, 1)])
def test_photographs_of_any_size_go_in(size: tuple[int, int], photo: Embedded) -> None:
    image = Image.effect_noise(size, 50).convert("RGB")
    features = photo.classifier(["cat", "dog"]).features(photo.preprocess(image)[None])
    assert features.shape == (1, 128)
    assert features.isfinite().all()


# Its file.


def test_photo_file_says_what_it_holds(photo: Embedded) -> None:
    written = read_metadata(PHOTO_WEIGHTS)
    assert PHOTO_WEIGHTS.stat().st_size <= 8_000_000
    assert photo.logit_scale == 100.0
    assert photo.model_facts.format is ModelFormat.PHOTO
    assert photo.facts["clean accuracy"] == written["clean_accuracy"]
    assert "aquarium fish" in photo.facts["class names"]
    assert "photo" in photo.facts["words"]
    assert not any(parameter.requires_grad for parameter in photo.encoder.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in photo.encoder.modules())


def test_it_is_the_default_of_load(photo: Embedded) -> None:
    loaded = lmr.load()
    assert isinstance(loaded, Embedded)
    own, other = photo.encoder.state_dict(), lmr.load("photo").encoder.state_dict()
    assert all(torch.equal(own[key], other[key]) for key in own)
    with pytest.raises(lmr.LmrError, match="'photo' has its own architecture"):
        lmr.load("photo", architecture="ViT-B-32")


def test_damaged_photo_file_gets_a_message(tmp_path: Path) -> None:
    content = PHOTO_WEIGHTS.read_bytes()
    for number, part in enumerate((b"", content[:300], content[:-1], b"noise" * 50)):
        path = tmp_path / f"part {number}"
        path.write_bytes(part)
        with pytest.raises(lmr.LmrError, match=f"part {number}' does not hold the photo model; reinstall lmr"):
            Embedded("photo", path)


@pytest.mark.parametrize("fault", ["no names", "no words", "no stem", "bad stem", "bad mean", "shape"])
def test_foreign_photo_file_gets_a_message(fault: str, tmp_path: Path) -> None:
    facts, weights = read_metadata(PHOTO_WEIGHTS), load_file(PHOTO_WEIGHTS)
    config = json.loads(facts["config"])
    changes: dict[str, Any] = {
        "no names": lambda: facts.pop("names"),
        "no words": lambda: facts.pop("words"),
        "no stem": lambda: facts.update(config=json.dumps({k: v for k, v in config.items() if k != "stem"})),
        "bad stem": lambda: facts.update(config=json.dumps(config | {"stem": [3, 4]})),
        "bad mean": lambda: facts.update(mean="0.4 0.4"),
        "shape": lambda: weights.update({"image.patches.0.conv.weight": torch.zeros(3)}),
    }
    changes[fault]()
    save_file(weights, tmp_path / "foreign", metadata=facts)
    with pytest.raises(lmr.LmrError, match="foreign' does not hold the photo model; reinstall lmr"):
        Embedded("photo", tmp_path / "foreign")


def test_sizes_are_those_of_the_documentation() -> None:
    model = EmbeddedTowers(PhotoRecipe().sizes)
    assert sum(parameter.numel() for parameter in model.image.parameters()) == 2_307_392
    assert (
        sum(module.weight.numel() * 2 for module in model.image.modules() if isinstance(module, nn.LayerNorm)) == 3840
    )


def test_file_of_an_embedded_form_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(PHOTO_WEIGHTS.read_bytes())
    loaded = lmr.load(path)
    assert loaded.name == str(path)
    assert torch.equal(loaded.encode_text(["a photo of a cat."]), lmr.load("photo").encode_text(["a photo of a cat."]))
