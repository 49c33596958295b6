"""Models of transformers in memory: transformers' own logits, streams of the same model in a folder, and refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, CLIPTextModel, CLIPTokenizer, SiglipProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

import checkpoint_maker as clips
import lmr
import processor_maker as maker
import siglip_maker as siglips
from lmr.models.clip import Clip
from lmr.models.from_transformers import wrap_transformers
from lmr.models.tokenizers import SPECIAL, list_words, read_merges

NAMES = ["cat", "red_bird", "small ship"]
TEMPLATES = ["a photo of the {}"]
TEXTS = ["a photo of the cat", "a photo of the red bird", "a photo of the small ship"]
KINDS = ("clip", "siglip", "naflex")


def make_photos(count: int = 5) -> list[Image.Image]:
    """Coloured clouds of several aspect ratios."""
    sizes = [(40, 40), (70, 21), (20, 64), (33, 47), (90, 11)]
    draw = np.random.default_rng(0)
    clouds = [Image.fromarray(draw.integers(40, 216, (4, 4, 3)).astype(np.uint8)) for _ in range(count)]
    return [cloud.resize(sizes[k % 5], Image.Resampling.BICUBIC) for k, cloud in enumerate(clouds)]


class Case:
    """A model, its processor, the folder both were saved in, and their inputs for some photos and texts."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        if kind == "clip":
            self.processor: Any = maker.make_clip_processor(clips.SIDE)
            words = len(self.processor.tokenizer)
            self.model: Any = clips.make_model(words=words)
            clips.write_huggingface(self.model, folder)
            self.processor.tokenizer.save_pretrained(folder)
        elif kind == "siglip":
            self.model = siglips.save_siglip(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            image = SiglipImageProcessorPil.from_pretrained(folder)
            self.processor = SiglipProcessor(image_processor=image, tokenizer=tokenizer)
        else:
            self.model, self.processor = maker.save_naflex(folder)

    def give(self, photos: list[Image.Image]) -> dict[str, Tensor]:
        """What transformers' processor gives for the photos and the texts."""
        images = self.processor.image_processor(photos, return_tensors="pt")
        context = self.model.config.text_config.max_position_embeddings
        words = {"padding": "max_length", "max_length": context, "truncation": True, "return_tensors": "pt"}
        return dict(images) | {"input_ids": self.processor.tokenizer(TEXTS, **words)["input_ids"]}

    def expect(self, photos: list[Image.Image]) -> Tensor:
        with torch.no_grad():
            return self.model(**self.give(photos)).logits_per_image  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case("clip", tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))


def prepare(backbone: lmr.Backbone, photos: list[Image.Image]) -> Tensor:
    return torch.stack([backbone.preprocess(photo) for photo in photos])


def test_logits_are_those_of_transformers(case: Case) -> None:
    photos = make_photos()
    classifier = lmr.from_transformers(case.model, case.processor, NAMES, TEMPLATES)
    images = prepare(wrap_transformers(case.model, case.processor), photos)
    if case.kind != "naflex":
        images = case.give(photos)["pixel_values"]
    logits = lmr.create("zeroshot", classifier).step(images).logits
    torch.testing.assert_close(logits, case.expect(photos), rtol=0, atol=1e-4)
    assert classifier.names == tuple(NAMES)
    assert logits.std(1).min() > 0.01


def test_images_are_those_of_the_processor(case: Case) -> None:
    photos = make_photos()
    images = prepare(wrap_transformers(case.model, case.processor), photos)
    expected = case.give(photos)["pixel_values"]
    if case.kind == "naflex":
        torch.testing.assert_close(images[..., :-2], expected, rtol=0, atol=1e-6)
    apart = (images[..., : expected.shape[-1]] - expected).abs()
    assert apart.max() < 1.01 / 255 / 0.25  # one level: lmr and PIL resize rows and columns in their own order
    assert (apart > 1e-5).double().mean() < 0.05


@pytest.mark.parametrize("spec", ["tent(lr=0.02)", "batclip(lr=0.01,chunk=2)"])
def test_streams_are_those_of_the_folder(case: Case, spec: str) -> None:
    loaded, wrapped = lmr.load(case.folder), wrap_transformers(case.model, case.processor)
    twins = [lmr.create(spec, backbone.classifier(NAMES, TEMPLATES)) for backbone in (loaded, wrapped)]
    for seed in range(3):
        images = prepare(wrapped, [photo.rotate(90 * seed, expand=True) for photo in make_photos()])
        one, other = (method.step(images).logits for method in twins)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    first, last = twins[1].predict(images).logits, lmr.create(spec, twins[1].classifier).predict(images).logits
    assert (first - last).abs().max() > 1e-3  # it did adapt
    twins[0].load_state_dict(twins[1].state_dict())


def test_streams_mix_in_one_batch(case: Case) -> None:
    """Each stream gets the answers it would get alone."""
    classifier = lmr.from_transformers(case.model, case.processor, NAMES, TEMPLATES)
    images = prepare(wrap_transformers(case.model, case.processor), make_photos(4))
    both = lmr.create("tent(lr=0.02)", classifier, streams=2)
    alone = lmr.create("tent(lr=0.02)", classifier)
    for _ in range(2):
        mixed = both.step(images, streams=[0, 0, 1, 1]).logits
        torch.testing.assert_close(mixed[:2], alone.step(images[:2]).logits, rtol=0, atol=1e-4)


def test_model_is_not_changed(case: Case) -> None:
    case.model.train().requires_grad_(True)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    modules = [type(module) for module in case.model.modules()]
    classifier = lmr.from_transformers(case.model, case.processor, NAMES, TEMPLATES, dtype=torch.bfloat16)
    images = prepare(wrap_transformers(case.model, case.processor), make_photos(2)).bfloat16()
    lmr.create("tent", classifier).step(images)
    after = case.model.state_dict()
    assert all(torch.equal(after[key], value) and after[key].dtype == value.dtype for key, value in before.items())
    assert modules == [type(module) for module in case.model.modules()]
    assert all(module.training for module in case.model.modules())
    assert all(parameter.requires_grad for parameter in case.model.parameters())
    case.model.eval().requires_grad_(False)


def test_type_follows_the_model(clip: Case) -> None:
    model = clips.make_model(words=len(clip.processor.tokenizer)).to(torch.bfloat16)
    backbone = wrap_transformers(model, clip.processor)
    assert backbone.dtype == torch.bfloat16
    assert {norm.weight.dtype for norm in backbone.encoder.modules() if isinstance(norm, torch.nn.LayerNorm)} == {
        torch.float32
    }
    assert wrap_transformers(model, clip.processor, dtype=torch.float64).dtype == torch.float64


def test_facts_name_the_tokenizer(clip: Case) -> None:
    backbone = wrap_transformers(clip.model, clip.processor)
    assert isinstance(backbone, Clip)
    assert f"{len(clip.processor.tokenizer)} tokens" in backbone.facts["tokenizer"]
    assert backbone.facts["format"] == "transformers, in memory"


def test_names_that_are_not_names_are_refused(clip: Case) -> None:
    for names, words in (
        ([], "at least two class names"),
        (["cat", " "], "none of them empty"),
        ("cat", "Expected lists of class names"),
        (None, "Expected a list of class names"),
    ):
        with pytest.raises(lmr.LmrError, match=words):
            lmr.from_transformers(clip.model, clip.processor, names)  # type: ignore[arg-type]


def test_another_model_is_refused(clip: Case) -> None:
    text = CLIPTextModel(clip.model.config.text_config)
    for model in (text, torch.nn.Linear(2, 2), None):
        with pytest.raises(lmr.LmrError, match=r"Expected a CLIPModel, SiglipModel or Siglip2Model.*from_open_clip"):
            lmr.from_transformers(model, clip.processor, NAMES)
    with torch.device("meta"):
        empty = type(clip.model)(clip.model.config)
    with pytest.raises(lmr.LmrError, match="without values"):
        lmr.from_transformers(empty, clip.processor, NAMES)
    with pytest.raises(lmr.LmrError, match="cannot be used here"):
        lmr.from_transformers(clip.model, clip.processor, NAMES, device="meta")


def test_processor_of_another_model_is_refused(clip: Case, tmp_path: Path) -> None:
    image, words = clip.processor.image_processor, clip.processor.tokenizer
    siglips.save_siglip(tmp_path)
    other = AutoTokenizer.from_pretrained(tmp_path)
    naflex = maker.make_naflex_processor(words)
    cases = {
        "has no tokenizer": SimpleNamespace(image_processor=image),
        "has no tokenizer and no image_processor": words,
        "A SiglipTokenizer does not belong to a CLIPModel": SimpleNamespace(image_processor=image, tokenizer=other),
        "A Siglip2Processor does not belong to a CLIPModel": naflex,
        "size": maker.make_clip_processor(clips.SIDE * 2, words),
        "the model knows only": maker.make_clip_processor(clips.SIDE, maker.make_tokenizer(extra=9)),
    }
    for message, processor in cases.items():
        with pytest.raises(lmr.LmrError, match=message):
            lmr.from_transformers(clip.model, processor, NAMES)
    fixed = siglips.make_siglip(len(words))
    with pytest.raises(lmr.LmrError, match="Siglip2ImageProcessorPil does not belong to a SiglipModel"):
        lmr.from_transformers(fixed, naflex, NAMES)


def test_tokenizer_without_the_end_token_is_refused(clip: Case) -> None:
    """As transformers itself would take the first token of such a text for its end."""
    words = maker.make_tokenizer()
    words.backend_tokenizer.post_processor = None
    with pytest.raises(lmr.LmrError, match="does not end texts with the token"):
        lmr.from_transformers(clip.model, maker.make_clip_processor(clips.SIDE, words), NAMES)


def test_tokenizer_of_clip_with_another_end_token_is_refused(tmp_path: Path) -> None:
    """lmr's own tokenizer ends texts with CLIP's token, so the model would be read at another place."""
    vocabulary = {word: number for number, word in enumerate((*list_words(), *SPECIAL))}
    clips.write_json(vocabulary, tmp_path / "vocab.json")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in read_merges())]
    (tmp_path / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
    processor = maker.make_clip_processor(clips.SIDE, CLIPTokenizer.from_pretrained(tmp_path))
    model = clips.make_model(words=len(vocabulary))
    assert wrap_transformers(model, processor).facts["tokenizer"] == "CLIP's byte-pair encoding"
    model.config.text_config.eos_token_id = 7
    with pytest.raises(lmr.LmrError, match="ends texts with the token 7, which is not CLIP's tokenizer"):
        wrap_transformers(model, processor)
