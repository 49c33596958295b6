"""The photo model: its towers against plain formulas in float64, its words, its preprocessing, its file."""

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
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.models.facts import ModelFormat
from lmr.models.embedded import WEIGHTS, Photo
from lmr.models.towers.stem import PhotoConfig, PhotoModel
from lmr.models.towers.stem import ConvStem, fold_norms
from tower_reference import normalise, run_block

CLASSES = read_list("cifar10")


def read_metadata() -> dict[str, str]:
    with safe_open(str(WEIGHTS), framework="pt") as file:
        return dict(file.metadata())


@pytest.fixture(scope="module")
def backbone() -> Photo:
    return Photo()


@pytest.fixture(scope="module")
def images(backbone: Photo) -> Tensor:
    return backbone.preprocess_pixels(torch.from_numpy(np.stack(Photographs().read("clean", 0, range(7)))))


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


def test_image_tower_is_the_plain_formula(backbone: Photo, images: Tensor) -> None:
    tower: Any = copy.deepcopy(backbone.encoder).double()
    images = images[:3].double()
    with torch.no_grad():
        expected = torch.stack([encode(image, tower) for image in images])
        torch.testing.assert_close(tower(images), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("memory", ["fast", "lean"])
@pytest.mark.parametrize("per_image", [False, True])
def test_gradient_to_the_norms_is_that_of_the_plain_formula(
    memory: Any, per_image: bool, backbone: Photo, images: Tensor
) -> None:
    tower: Any = copy.deepcopy(backbone.encoder).double()
    tower.set_mode(memory)
    images = images[:4].double()
    toward = torch.randn(4, tower.config.features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    toward[1] = 0  # an image that receives no gradient is skipped
    norms = [module for module in tower.modules() if isinstance(module, nn.LayerNorm)]
    plain = [parameter.requires_grad_() for norm in norms for parameter in (norm.weight, norm.bias)]
    features = torch.stack([encode(image, tower) for image in images])
    expected = torch.autograd.grad((features * toward).sum(), plain)
    if per_image:  # as with one stream per image
        for norm in norms:
            for name in ("weight", "bias"):
                rows = getattr(norm, name).detach().expand(4, -1).clone().requires_grad_()
                delattr(norm, name)
                setattr(norm, name, rows)
    own = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
    found = torch.autograd.grad((tower(images) * toward).sum(), own)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.sum(0) if per_image else one, other, rtol=0, atol=1e-9)


def test_folded_stem_is_the_trained_one() -> None:
    torch.manual_seed(0)
    trained = ConvStem((4, 6, 8), 10, normed=True).double()
    for _ in range(5):  # moves the running statistics
        trained(torch.randn(8, 3, 16, 16, dtype=torch.float64) * 2 + 1)
    for parameter in trained.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    folded = ConvStem((4, 6, 8), 10, normed=False).double()
    folded.load_state_dict(fold_norms(trained))
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(folded(images), trained.eval()(images), rtol=0, atol=1e-12)
    assert folded(images).shape == (3, 10, 2, 2)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())


def test_features_do_not_depend_on_the_batch(backbone: Photo, images: Tensor) -> None:
    with torch.no_grad():
        whole = backbone.encoder(images)
        for first, last in ((0, 1), (3, 4), (2, 7)):
            torch.testing.assert_close(backbone.encoder(images[first:last]), whole[first:last], rtol=0, atol=2e-5)


# Tokens in place of images.


def test_tokens_do_not_depend_on_the_batch(backbone: Photo) -> None:
    images = torch.randn(33, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    whole = backbone.encoder.embed(images)
    for count in (2, 16, 17, 33):
        assert torch.equal(backbone.encoder.embed(images[:count]), whole[:count])
    torch.testing.assert_close(backbone.encoder.embed(images[:1]), whole[:1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in lmr.list_methods() if not lmr.find_method(name).needs_images])
def test_a_step_embeds_once_and_answers_the_same(
    name: str, backbone: Photo, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    hook = backbone.encoder.stem.register_forward_hook(lambda *_: calls.append(1))
    clip = backbone.classifier(CLASSES)
    clip.logit_scale *= 3  # so that every method finds images it trusts enough
    from_images, from_tokens, every_pass = (create(name, clip) for _ in range(3))
    monkeypatch.setattr(every_pass, "needs_images", True)  # embeds the images in every pass
    try:
        for batch in (images[:4], images[3:]):
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


def test_steps_of_several_streams_and_of_the_last_blocks_take_tokens(backbone: Photo, images: Tensor) -> None:
    clip = backbone.classifier(CLASSES)
    for spec in ("lmr", "lmr(blocks=2)", "mint"):
        one, other = (lmr.create(spec, clip, streams=2) for _ in range(2))
        for streams in ([0, 1, 1, 0, 1, 0, 0], [1] * 7):
            answer = one.step(clip.embed(images), streams=streams)
            assert torch.equal(other.step(images, streams=streams).logits, answer.logits)


def test_tokens_are_refused_where_images_are_needed(backbone: Photo, images: Tensor) -> None:
    clip = backbone.classifier(CLASSES)
    method = lmr.create("lmr", clip)
    method.needs_images = True  # type: ignore[misc]
    for given in (method, lmr.watch(method)):
        with pytest.raises(lmr.LmrError, match=r"lmr needs the images themselves, got their tokens \[7, 17, 192\]"):
            given.step(clip.embed(images))
    with pytest.raises(lmr.LmrError, match=r"Expected images of shape \['B', 3, 32, 32\], got \[2, 17, 191\]"):
        lmr.create("lmr", clip).step(torch.zeros(2, 17, 191))
    plain = lmr.load("pocket").classifier(["red ring", "blue star"])
    with pytest.raises(lmr.LmrError, match="Expected images of shape"):
        lmr.create("lmr", plain).step(torch.zeros(2, *plain.encoder.get_parameter("positions").shape))
    assert plain.embed(images) is images


def test_canaries_are_tokens_also_of_a_state_that_has_images(backbone: Photo, images: Tensor) -> None:
    clip = backbone.classifier(CLASSES)
    clip.logit_scale *= 100  # the frozen model is sure of every image
    watched = lmr.watch(lmr.create("zeroshot", clip), every=1)
    watched.step(images)
    state = watched.state_dict()
    tokens = state["tensors"]["watch/0/canaries"]
    assert clip.is_embedded(tokens)
    embedded = clip.embed(images).to(tokens.dtype)  # they are kept in half precision
    kept = [k for k, one in enumerate(embedded) if (one == tokens).flatten(1).all(1).any()]
    assert len(kept) == len(tokens) > 1
    state["tensors"]["watch/0/canaries"] = images[kept]
    watched.load_state_dict(state)
    torch.testing.assert_close(watched.state["watch/0/canaries"], tokens, rtol=0, atol=4e-3)
    state["tensors"]["watch/0/canaries"] = images[kept, :, :16]
    with pytest.raises(lmr.LmrError, match="canaries have another shape"):
        watched.load_state_dict(state)


# What it knows.


def test_it_knows_the_names_of_both_sets(backbone: Photo) -> None:
    assert backbone.tokenizer.names == (*read_list("cifar10"), *read_list("cifar100"))
    features = backbone.encode_text([f"a photo of a {name}." for name in backbone.tokenizer.names])
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
def test_other_names_get_an_error_with_near_ones(name: str, words: str, backbone: Photo) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        backbone.classifier(["cat", name])
    with pytest.raises(lmr.LmrError, match=r"110 class names and .* words around them; 'lmr doctor photo' lists both"):
        backbone.classifier(["cat", name])


def test_it_recognises_photographs_it_was_not_trained_on(backbone: Photo) -> None:
    photos = Photographs()
    classifier = backbone.classifier(CLASSES)
    pixels = torch.from_numpy(np.stack(photos.read("clean", 0, range(0, 2000, 4))))
    labels = torch.from_numpy(photos.labels("clean")[::4])
    with torch.no_grad():
        answers = classifier.cosines(classifier.features(backbone.preprocess_pixels(pixels))).argmax(1)
    assert (answers == labels).float().mean() > 0.85


@pytest.mark.parametrize("size", [(32, 32), (500, 375), (20, 64), (1, 1)])
def test_photographs_of_any_size_go_in(size: tuple[int, int], backbone: Photo) -> None:
    image = Image.effect_noise(size, 50).convert("RGB")
    features = backbone.classifier(["cat", "dog"]).features(backbone.preprocess(image)[None])
    assert features.shape == (1, 128)
    assert features.isfinite().all()


# Its file.


def test_file_says_what_it_holds(backbone: Photo) -> None:
    written = read_metadata()
    assert WEIGHTS.stat().st_size <= 8_000_000
    assert backbone.logit_scale == 100.0
    assert backbone.model_facts.format is ModelFormat.PHOTO
    assert backbone.facts["clean accuracy"] == written["clean_accuracy"]
    assert "aquarium fish" in backbone.facts["class names"]
    assert "photo" in backbone.facts["words"]
    assert not any(parameter.requires_grad for parameter in backbone.encoder.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in backbone.encoder.modules())


def test_it_is_the_default_of_load(backbone: Photo) -> None:
    loaded = lmr.load()
    assert isinstance(loaded, Photo)
    own, other = backbone.encoder.state_dict(), lmr.load("photo").encoder.state_dict()
    assert all(torch.equal(own[key], other[key]) for key in own)
    with pytest.raises(lmr.LmrError, match="'photo' has its own architecture"):
        lmr.load("photo", architecture="ViT-B-32")


def test_file_that_is_not_whole_gets_an_error(tmp_path: Path) -> None:
    content = WEIGHTS.read_bytes()
    for number, part in enumerate((b"", content[:300], content[:-1], b"noise" * 50)):
        path = tmp_path / f"part {number}"
        path.write_bytes(part)
        with pytest.raises(lmr.LmrError, match=f"part {number}' does not hold the photo model; reinstall lmr"):
            Photo(path)


@pytest.mark.parametrize("fault", ["no names", "no words", "no stem", "bad stem", "bad mean", "shape"])
def test_foreign_file_gets_an_error(fault: str, tmp_path: Path) -> None:
    facts, weights = read_metadata(), load_file(WEIGHTS)
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
        Photo(tmp_path / "foreign")


def test_sizes_are_those_of_the_documentation() -> None:
    model = PhotoModel(PhotoConfig(vocabulary=10))
    assert sum(parameter.numel() for parameter in model.image.parameters()) == 2_307_392
    assert (
        sum(module.weight.numel() * 2 for module in model.image.modules() if isinstance(module, nn.LayerNorm)) == 3840
    )
