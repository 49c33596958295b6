"""Models in the layout of the hub and in memory: transformers' own pixels, features, logits and streams; refusals."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from logging import StreamHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoProcessor, BertConfig

import checkpoint_maker as clips
import lmr
import siglip_maker as siglips

NAMES = ["cat", "red_bird", "small ship"]
TEMPLATES = ["a photo of the {}"]
TEXTS = ["a photo of the cat", "a photo of the red bird", "a photo of the small ship"]


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def write_openai(folder: Path) -> None:
    """As openai/clip-vit-base-patch16: a pickle, and the end token and processor of early versions."""
    clips.write_huggingface(clips.make_model("quick_gelu"), folder, "bin")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    early = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    change_json(folder / "config.json", text_config=text | early, text_config_dict=None, vision_config_dict=None)


def write_laion(folder: Path) -> None:
    """As laion/CLIP-ViT-B-32-laion2B-s34B-b79K: GELU, the sizes twice, and open_clip's files beside those needed."""
    processor = clips.PREPROCESSOR | {
        "crop_size": {"height": clips.SIDE, "width": clips.SIDE},
        "do_convert_rgb": True,
        "do_rescale": True,
        "image_processor_type": "CLIPImageProcessor",
        "rescale_factor": 1 / 255,
        "size": {"shortest_edge": clips.SIDE},
    }
    clips.write_huggingface(clips.make_model("gelu"), folder, preprocessor=processor)
    config = json.loads((folder / "config.json").read_text())
    parts = {f"{part}_config_dict": config[f"{part}_config"] for part in ("text", "vision")}
    change_json(folder / "config.json", **parts)
    (folder / "open_clip_model.safetensors").write_bytes(b"not read")
    (folder / "open_clip_config.json").write_text("{}")


LAYOUTS: dict[str, Callable[[Path], Any]] = {
    "openai": write_openai,
    "laion": write_laion,
    "siglip": siglips.save_siglip,
    "siglip2": siglips.save_siglip2,
}


class Case:
    """A folder in the layout of the hub, and the model and the processor that transformers reads from it."""

    def __init__(self, layout: str, folder: Path) -> None:
        self.layout, self.folder = layout, folder
        LAYOUTS[layout](folder)
        self.model: Any = AutoModel.from_pretrained(folder).eval().requires_grad_(False)
        self.processor: Any = AutoProcessor.from_pretrained(folder)

    def give(self, photos: list[Image.Image], texts: list[str] = TEXTS) -> dict[str, Tensor]:
        """What transformers' processor gives for photos and texts."""
        context = self.model.config.text_config.max_position_embeddings
        options = {"padding": "max_length", "max_length": context, "truncation": True, "return_tensors": "pt"}
        given = self.processor(images=photos, text=texts, **options)
        return {name: given[name] for name in ("pixel_values", "input_ids")}


@pytest.fixture(scope="module", params=LAYOUTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case("laion", tmp_path_factory.mktemp("laion"))


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case("siglip", tmp_path_factory.mktemp("siglip"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))


def make_photos(count: int = 6) -> list[Image.Image]:
    """Coloured clouds of several aspect ratios, of odd and even margins, with alpha and in grey."""
    sizes = [(40, 40), (70, 21), (20, 64), (33, 47), (90, 11), (35, 32)]
    draw = np.random.default_rng(0)
    clouds = [Image.fromarray(draw.integers(40, 216, (4, 4, 3)).astype(np.uint8)) for _ in range(count)]
    photos = [cloud.resize(sizes[k % 6], Image.Resampling.BICUBIC) for k, cloud in enumerate(clouds)]
    photos[0] = photos[0].convert("L")
    return photos


def prepare(case: Case, photos: list[Image.Image]) -> Tensor:
    return lmr.wrap_transformers(case.model, case.processor).preprocess(photos)


# The layouts of the hub, read as transformers reads them.


def test_answers_are_those_of_transformers(case: Case) -> None:
    backbone, given = lmr.load(case.folder), case.give(make_photos())
    images = backbone.preprocess(make_photos())
    torch.testing.assert_close(images, given["pixel_values"], rtol=0, atol=1e-5)
    with torch.no_grad():
        expected = case.model(**given)
        features = F.normalize(backbone.encoder(images), dim=-1)
    torch.testing.assert_close(features, F.normalize(expected.image_embeds, dim=-1), rtol=0, atol=1e-5)
    texts = F.normalize(expected.text_embeds, dim=-1)
    torch.testing.assert_close(backbone.encode_text(TEXTS), texts, rtol=0, atol=1e-5)
    answer = lmr.create("zeroshot", backbone.classifier(NAMES, TEMPLATES)).step(images)
    torch.testing.assert_close(answer.logits, expected.logits_per_image, rtol=1e-5, atol=1e-5)
    assert answer.logits.std(1).min() > 0.01
    assert backbone.name == str(case.folder)


def test_capitals_and_long_texts_are_read(case: Case) -> None:
    """SigLIP 2 was trained on lower case, which its tokenizer leaves to the user."""
    backbone, texts = lmr.load(case.folder), ["A Photo OF the Red CAT", "a photo of the red cat", "cat " * 40]
    features = backbone.encode_text(texts)
    assert torch.equal(features[0], features[1])
    lower = [text.lower() for text in texts]
    with torch.no_grad():
        expected = F.normalize(case.model(**case.give(make_photos(), lower)).text_embeds, dim=-1)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


def test_screen_stays_clean(case: Case, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Neither bars nor remarks: by default transformers finds the end token of SigLIP's own config odd."""
    from transformers.utils import logging

    remarks = io.StringIO()
    handler = StreamHandler(remarks)
    logging.add_handler(handler)
    logging.set_verbosity_info()
    try:
        capfd.readouterr()
        lmr.load(case.folder).classifier(NAMES)
        assert capfd.readouterr() == ("", "")
        assert remarks.getvalue() == ""
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()
        logging.remove_handler(handler)


# The cache of the hub, and a machine without a network.


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub that cannot be reached, at once."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


def put_into_cache(hub: Path, name: str, folder: Path) -> Path:
    place = hub / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0123abc")
    return Path(shutil.copytree(folder, place / "snapshots" / "0123abc"))


@pytest.mark.parametrize("name", ["openai/clip-vit-base-patch16", "ViT-B-16", "ViT-B/16"])
def test_cached_model_loads_without_a_network(name: str, hub: Path, clip: Case) -> None:
    put_into_cache(hub, "openai/clip-vit-base-patch16", clip.folder)
    backbone = lmr.load(name)
    assert backbone.name == name
    assert torch.equal(backbone.encode_text(TEXTS), lmr.load(clip.folder).encode_text(TEXTS))


@pytest.mark.parametrize("missing", ["config.json", "spiece.model"])
def test_what_is_missing_without_a_network_gets_a_message(missing: str, hub: Path, siglip: Case) -> None:
    (put_into_cache(hub, "google/siglip-base-patch16-224", siglip.folder) / missing).unlink()
    with pytest.raises(lmr.LmrError, match="complete"):
        lmr.load("google/siglip-base-patch16-224")


def test_unknown_name_without_a_network_gets_a_message(hub: Path) -> None:
    with pytest.raises(lmr.LmrError, match="complete"):
        lmr.load("nobody/nothing")


# Folders that are not whole.


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


WEIGHTS, PROCESSOR = "model.safetensors", "preprocessor_config.json"
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (remove("config.json"), "config.json"),
    "BERT": (lambda folder: BertConfig().save_pretrained(folder), "its type is 'bert', not clip or siglip"),
    "truncated": (lambda folder: truncate(folder / WEIGHTS), "Cannot load the model"),
    "missing weight": (
        lambda folder: change_weights(folder, lambda w: w.pop("logit_scale")),
        "1 of its weights are miss",
    ),
    "NaN": (
        lambda folder: change_weights(folder, lambda w: w["text_projection.weight"].fill_(np.nan)),
        "text_projection.weight",
    ),
    "other step": (lambda folder: change_json(folder / PROCESSOR, do_normalize=False), "without do_normalize"),
    "no tokenizer": (remove("tokenizer.json", "vocab.json", "merges.txt"), "it has no tokenizer.json, vocab.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folder_that_is_not_whole_gets_a_message(fault: str, clip: Case, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(clip.folder, tmp_path / "copy"))
    spoil, words = FAULTS[fault]
    spoil(folder)
    with pytest.raises(lmr.LmrError, match=words):
        lmr.load(folder)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickle_that_runs_code_is_refused(clip: Case, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(clip.folder, tmp_path / "copy"))
    (folder / WEIGHTS).unlink()
    torch.save({"logit_scale": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    with pytest.raises(lmr.LmrError, match="Weights only load failed"):
        lmr.load(folder)
    assert not (tmp_path / "sprung").exists()


def test_code_beside_the_weights_never_runs(clip: Case, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(clip.folder, tmp_path / "copy"))
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'sprung')!r}).touch()\n")
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    change_json(folder / "config.json", auto_map={"AutoConfig": "own.Own"})
    lmr.load(folder)
    assert not (tmp_path / "sprung").exists()


# Models in memory.


def test_model_is_not_changed(case: Case) -> None:
    case.model.train().requires_grad_(True)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    modules = [type(module) for module in case.model.modules()]
    classifier = lmr.from_transformers(case.model, case.processor, NAMES, TEMPLATES, dtype=torch.bfloat16)
    lmr.create("tent", classifier).step(prepare(case, make_photos(2)).bfloat16())
    after = case.model.state_dict()
    assert all(torch.equal(after[key], value) and after[key].dtype == value.dtype for key, value in before.items())
    assert modules == [type(module) for module in case.model.modules()]
    assert all(module.training for module in case.model.modules())
    assert all(parameter.requires_grad for parameter in case.model.parameters())
    case.model.eval().requires_grad_(False)


def test_type_follows_the_model(clip: Case) -> None:
    model = clips.make_model().to(torch.bfloat16)
    backbone = lmr.wrap_transformers(model, clip.processor)
    assert backbone.dtype == torch.bfloat16
    assert {norm.weight.dtype for norm in backbone.encoder.modules() if isinstance(norm, torch.nn.LayerNorm)} == {
        torch.float32
    }
    assert lmr.wrap_transformers(model, clip.processor, dtype=torch.float64).dtype == torch.float64


def test_adapters_and_quantised_weights_are_refused(clip: Case) -> None:
    model = clips.make_model()
    model.vision_model.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(lmr.LmrError, match="adapters"):
        lmr.from_transformers(model, clip.processor, NAMES)
    model = clips.make_model()
    model.text_projection.weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(lmr.LmrError, match="floating-point weights"):
        lmr.from_transformers(model, clip.processor, NAMES)


def test_processor_of_another_model_is_refused(clip: Case) -> None:
    image, words = clip.processor.image_processor, clip.processor.tokenizer
    larger = type(image)(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    cases = {
        "has no tokenizer": SimpleNamespace(image_processor=image),
        "has no tokenizer and no image_processor": words,
        "the model's resolution": SimpleNamespace(image_processor=larger, tokenizer=words),
    }
    for message, processor in cases.items():
        with pytest.raises(lmr.LmrError, match=message):
            lmr.from_transformers(clip.model, processor, NAMES)
    with pytest.raises(lmr.LmrError, match="the model knows only 100 tokens"):
        lmr.from_transformers(clips.make_model(words=100), clip.processor, NAMES)


def test_tokenizer_without_the_end_token_is_refused(clip: Case) -> None:
    """As transformers itself would take the first token of such a text for its end."""
    model = clips.make_model(text={"eos_token_id": 7})
    with pytest.raises(lmr.LmrError, match="tokenizer"):
        lmr.from_transformers(model, clip.processor, NAMES)
