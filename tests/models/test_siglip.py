"""SigLIP against transformers itself: features, logits, adaptation; and folders that are not whole."""

from __future__ import annotations

import copy
import io
import json
import pickle
import shutil
import threading
from collections.abc import Callable
from logging import StreamHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

import lmr
import siglip_maker as maker
from lmr.core.norms import NormBank
from lmr.models.siglip import Siglip, load_siglip

CONTEXT, SIDE, WIDTH = maker.CONTEXT, maker.SIDE, maker.WIDTH
WEIGHTS = "model.safetensors"

TEXTS = ["a photo of a cat", "A Photo, of a RED bird!", "", "dog " * 30, "the blue star on the left  of a house"]
NAMES = ["cat", "red_bird", "blue star"]


class Case:
    """A folder, the model that was saved there, and transformers' own reading of what lies beside it."""

    def __init__(self, folder: Path, save: Callable[[Path], Any]) -> None:
        self.folder, self.model = folder, save(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.processor = SiglipImageProcessorPil.from_pretrained(folder)
        self.lower = save is maker.save_siglip2

    def tokenize(self, texts: list[str]) -> Tensor:
        texts = [text.lower() for text in texts] if self.lower else texts
        return self.tokenizer(
            texts, padding="max_length", max_length=CONTEXT, truncation=True, return_tensors="pt"
        ).input_ids  # type: ignore[no-any-return]

    def load(self, **options: Any) -> Siglip:
        return load_siglip(self.folder / WEIGHTS, "tiny", **options)


@pytest.fixture(scope="module", params=[maker.save_siglip, maker.save_siglip2], ids=["siglip", "siglip2"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("siglip"), maker.save_siglip)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def images() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(6, 3, SIDE, SIDE)


# The same features and logits.


def test_features_are_those_of_transformers(case: Case, images: Tensor) -> None:
    backbone = case.load()
    with torch.no_grad():
        expected = case.model.get_image_features(images).pooler_output
        torch.testing.assert_close(backbone.encoder(images), expected, rtol=0, atol=1e-5)
        expected = case.model.get_text_features(case.tokenize(TEXTS)).pooler_output
    expected = expected / expected.norm(dim=-1, keepdim=True)
    features = backbone.encode_text(TEXTS)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)
    assert not features.requires_grad
    assert (features[0] - features[1]).abs().max() > 1e-3


def test_logits_have_its_scale_and_bias(case: Case, images: Tensor) -> None:
    backbone = case.load()
    clip = backbone.classifier(NAMES, ["a photo of a {}"])
    prompts = case.tokenize(["a photo of a cat", "a photo of a red bird", "a photo of a blue star"])
    with torch.no_grad():
        expected = case.model(input_ids=prompts, pixel_values=images).logits_per_image
        logits = clip.logits(clip.cosines(clip.features(images)))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert backbone.logit_bias == -4.25
    assert backbone.logit_scale == pytest.approx(np.exp(2.5))
    torch.testing.assert_close(lmr.create("zeroshot", clip).step(images).logits, expected, rtol=0, atol=1e-4)


def test_preprocessing_is_that_of_its_file(case: Case) -> None:
    backbone = case.load()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 41, 3)).astype(np.uint8))
    expected = case.processor(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(backbone.preprocess(image), expected, rtol=0, atol=1e-5)
    assert backbone.input_shape == (3, SIDE, SIDE)
    assert backbone.preprocessing.resize == "squash"


def test_text_case_does_not_matter(case: Case) -> None:
    features = case.load().encode_text(["a photo of a red bird", "A Photo OF a Red BIRD"])
    assert torch.equal(features[0], features[1])


def test_facts_say_what_was_loaded(case: Case) -> None:
    backbone = case.load()
    assert "safetensors" in backbone.facts["format"]
    assert backbone.facts["files"] == str(case.folder / "model.safetensors")
    assert backbone.facts["context"] == str(CONTEXT)
    assert "gelu" in backbone.facts["activation"]
    assert all(isinstance(value, str) and value for value in backbone.facts.values())


def test_lmr_load_finds_it(case: Case, images: Tensor) -> None:
    backbone = lmr.load(case.folder)
    assert isinstance(backbone, Siglip)
    assert torch.equal(backbone.encoder(images), case.load().encoder(images))


def test_pickled_weights_are_the_same(case: Case, images: Tensor, tmp_path: Path) -> None:
    copied = shutil.copytree(case.folder, tmp_path / "copy")
    weights = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    weights["text_model.embeddings.position_ids"] = torch.arange(CONTEXT)[None]  # older versions saved these too
    torch.save(weights, copied / "pytorch_model.bin")
    assert torch.equal(load_siglip(copied / "pytorch_model.bin", "tiny").encoder(images), case.load().encoder(images))


def test_weights_file_is_the_one_that_was_named(siglip: Case, images: Tensor, tmp_path: Path) -> None:
    """Beside another one, and under a name of the user's own."""
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    other = {key: value * 1.1 if value.ndim > 1 else value for key, value in load_file(folder / WEIGHTS).items()}
    torch.save(other, folder / "pytorch_model.bin")
    named = lmr.load(folder / "pytorch_model.bin")
    assert named.facts["files"] == str(folder / "pytorch_model.bin")
    assert not torch.equal(named.encoder(images), siglip.load().encoder(images))
    (folder / "pytorch_model.bin").rename(folder / "tuned.pt")
    assert torch.equal(lmr.load(folder / "tuned.pt").encoder(images), named.encoder(images))
    (folder / WEIGHTS).unlink()
    assert torch.equal(lmr.load(folder).encoder(images), named.encoder(images))


def test_weights_saved_as_parameters_are_the_same(siglip: Case, images: Tensor, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    weights = {key: torch.nn.Parameter(value) for key, value in load_file(folder / WEIGHTS).items()}
    torch.save(weights, folder / "tuned.pt")
    backbone = lmr.load(folder / "tuned.pt")
    assert torch.equal(backbone.encoder(images), siglip.load().encoder(images))
    assert not any(parameter.requires_grad for parameter in backbone.encoder.parameters())


def test_weights_belong_to_the_model_not_to_the_file(siglip: Case, images: Tensor, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    backbone = lmr.load(folder)
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(20_000)
        file.write(b"\x77" * ((folder / WEIGHTS).stat().st_size - 20_000))
    assert torch.equal(backbone.encoder(images), siglip.load().encoder(images))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_norms_keep_the_numbers_of_the_file(dtype: torch.dtype, siglip: Case, images: Tensor) -> None:
    backbone = siglip.load(dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    parts = ((backbone.encoder, siglip.model.vision_model), (backbone.text_side(NAMES).tower, siglip.model.text_model))
    for tower, own in parts:
        expected = own.state_dict()
        for name, parameter in tower.model.named_parameters():
            kept = wide if "norm" in name else dtype
            assert parameter.dtype == kept, name
            assert torch.equal(parameter, expected[name].to(kept)), name
    with torch.no_grad():
        exact = siglip.model.get_image_features(images).pooler_output
    features = backbone.encoder(images.to(dtype))  # not served by any method
    assert features.dtype == dtype
    torch.testing.assert_close(features.float(), exact, rtol=0, atol=0.05)


def test_halved_weights_stay_near(siglip: Case, images: Tensor) -> None:
    backbone = siglip.load(dtype=torch.bfloat16)
    clip = backbone.classifier(NAMES)
    assert backbone.dtype == clip.dtype == torch.bfloat16
    assert clip.prototypes.dtype == torch.float32
    assert backbone.logit_bias == -4.25
    exact = siglip.load().classifier(NAMES)
    near = lmr.create("lmr", clip).step(images.bfloat16())
    torch.testing.assert_close(
        near.probabilities, lmr.create("lmr", exact).step(images).probabilities, rtol=0, atol=0.05
    )


# Adaptation takes the generic path.


def test_every_norm_is_found(siglip: Case) -> None:
    bank = NormBank(siglip.load().encoder)
    names = {norm.name for norm in bank.norms}
    assert len(names) == 2 * 2 + 2
    assert {"model.head.layernorm", "model.post_layernorm"} <= names
    assert bank.size == 6 * 2 * WIDTH


def test_step_moves_every_norm_as_autograd_does(siglip: Case, images: Tensor) -> None:
    """Entropy's gradient on the served norms is the one a plain copy of the model gets."""
    backbone = siglip.load()
    clip = backbone.classifier(NAMES)
    bank = NormBank(clip.encoder)
    rows = bank.start.unsqueeze(0).clone().requires_grad_()
    with bank.serve(rows):
        own = clip.logits(clip.cosines(clip.features(images))).log_softmax(1)
        (gradient,) = torch.autograd.grad(-(own.exp() * own).sum(), rows)
    model = copy.deepcopy(siglip.model).vision_model
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    for norm in norms:
        norm.requires_grad_(True)
    features = model(images).pooler_output
    features = features / features.norm(dim=1, keepdim=True)
    other = (np.exp(2.5) * features @ clip.prototypes.T - 4.25).log_softmax(1)
    (-(other.exp() * other).sum()).backward()
    expected = torch.cat([t for norm in norms for t in (norm.weight.grad, norm.bias.grad)])  # type: ignore[misc]
    torch.testing.assert_close(gradient[0], expected, rtol=1e-4, atol=1e-5)
    assert (expected.abs().view(12, WIDTH).sum(1) > 0).all()


@pytest.mark.parametrize("name", ["lmr", "tent", "batclip"])
def test_methods_adapt_it(name: str, case: Case, images: Tensor) -> None:
    backbone = case.load()
    before = copy.deepcopy(backbone.encoder.state_dict())
    method = lmr.create(name, backbone.classifier(NAMES))
    first = method.step(images)
    second = method.step(images)
    assert first.logits.isfinite().all()
    assert not torch.equal(first.logits, second.logits)
    after = backbone.encoder.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_streams_in_one_batch_are_those_one_by_one(siglip: Case, images: Tensor) -> None:
    clip = siglip.load().classifier(NAMES)
    both = lmr.create("lmr(lr=1e-2)", clip, streams=2)
    alone = [lmr.create("lmr(lr=1e-2)", clip) for _ in range(2)]
    for batch in (images[:4], images[2:]):
        answer = both.step(batch, streams=torch.tensor([0, 1, 0, 1]))
        for stream in range(2):
            expected = alone[stream].step(batch[stream::2])
            torch.testing.assert_close(answer.logits[stream::2], expected.logits, rtol=0, atol=1e-4)


def test_plain_calls_wait_while_another_thread_serves(siglip: Case, images: Tensor) -> None:
    backbone = siglip.load()
    bank = NormBank(backbone.encoder)
    answers: list[Tensor] = []

    def call() -> None:
        with torch.no_grad():
            answers.append(backbone.encoder(images))

    call()
    thread = threading.Thread(target=call, daemon=True)
    with bank.serve(bank.start[None] + 1):
        thread.start()
        thread.join(0.3)
        assert len(answers) == 1
    thread.join(60)
    assert torch.equal(*answers)


def test_text_side_gives_the_prototypes(case: Case) -> None:
    clip = case.load().classifier(NAMES)
    assert clip.text is not None
    torch.testing.assert_close(clip.text.all_prototypes(2), clip.prototypes, rtol=0, atol=1e-6)
    again = pickle.loads(pickle.dumps(clip.text))
    torch.testing.assert_close(again.all_prototypes(3), clip.prototypes, rtol=0, atol=1e-6)


def test_tokenizer_is_part_of_the_digest(siglip: Case, tmp_path: Path) -> None:
    copied = shutil.copytree(siglip.folder, tmp_path / "copy")
    assert load_siglip(copied / WEIGHTS, "tiny").text_digest() == siglip.load().text_digest()
    settings = json.loads((copied / "tokenizer_config.json").read_text())
    (copied / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    assert load_siglip(copied / WEIGHTS, "tiny").text_digest() != siglip.load().text_digest()


def test_screen_stays_clean(case: Case, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Neither bars nor remarks: by default transformers finds the end token of SigLIP's own config odd."""
    from transformers.utils import logging

    folder = shutil.copytree(case.folder, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].update(bos_token_id=49406, eos_token_id=49407)
    (folder / "config.json").write_text(json.dumps(config))
    remarks = io.StringIO()
    handler = StreamHandler(remarks)
    logging.add_handler(handler)
    logging.set_verbosity_info()
    try:
        capfd.readouterr()
        load_siglip(folder / WEIGHTS, "tiny").classifier(NAMES)
        assert capfd.readouterr() == ("", "")
        assert remarks.getvalue() == ""
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()
        logging.remove_handler(handler)


# Folders that are not whole.


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def narrow(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["hidden_size"] = 33
    (folder / "config.json").write_text(json.dumps(config))


def deepen(folder: Path, depth: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = depth
    (folder / "config.json").write_text(json.dumps(config))


HEAD = "vision_model.head.layernorm.weight"
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (
        lambda f: change_weights(f, lambda w: w.pop(HEAD)),
        rf"does not match: of \d+ keys 1 missing \({HEAD}\)\. Nothing was loaded",
    ),
    "odd": (lambda f: change_weights(f, lambda w: w.update(extra=torch.ones(2))), r"1 unexpected \(extra\)"),
    "half": (
        lambda f: change_weights(f, lambda w: [w.pop(key) for key in list(w) if key.startswith("text_model")]),
        r"missing \(text_model\.",
    ),
    "shape": (
        lambda f: change_weights(f, lambda w: w.update({HEAD: torch.ones(3)})),
        rf"another shape \({HEAD} \[3\] instead of \[{WIDTH}\]\)",
    ),
    "nan": (
        lambda f: change_weights(f, lambda w: w.update({HEAD: torch.full((WIDTH,), torch.nan)})),
        rf"NaN or infinite values in 1 tensors \({HEAD}\)",
    ),
    "quantised": (
        lambda f: change_weights(f, lambda w: w.update({HEAD: torch.ones(WIDTH, dtype=torch.int8)})),
        f"found torch.int8 in {HEAD}; quantised",
    ),
    "no scale": (lambda f: change_weights(f, lambda w: w.pop("logit_scale")), r"1 missing \(logit_scale\)"),
    "wild scale": (
        lambda f: change_weights(f, lambda w: w.update(logit_scale=torch.tensor([900.0]))),
        r"logit scale exp\(900.0\)",
    ),
    "cut short": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:5000]),
        "not a complete weights file",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "Expected a weights file at .* found nothing"),
    "no config": (lambda f: (f / "config.json").unlink(), "not a configuration of SigLIP"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "not a configuration of SigLIP"),
    "other config": (lambda f: change_json(f / "config.json", model_type="clip"), "of type 'clip'"),
    "any shape": (lambda f: change_json(f / "config.json", model_type="siglip2"), "has no vocabulary"),
    "endless": (lambda f: deepen(f, 100_000), "A tower of 100000 blocks cannot be filled from .* holds 88 tensors"),
    "odd sizes": (narrow, "do not match|does not describe a model"),
    "no tokenizer": (
        lambda f: [(f / name).unlink() for name in ("spiece.model", "tokenizer_config.json")],
        "no tokenizer in .*; put spiece.model or tokenizer.json",
    ),
    "no pieces": (lambda f: (f / "spiece.model").unlink(), "Cannot read the tokenizer"),
    "broken pieces": (lambda f: (f / "spiece.model").write_bytes(b"noise" * 20), "Cannot read the tokenizer"),
    "odd images": (lambda f: change_json(f / "preprocessor_config.json", do_normalize=False), "do_normalize"),
    "other size": (lambda f: change_json(f / "preprocessor_config.json", size={"height": 9, "width": 9}), "size"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folder_that_is_not_whole_gets_a_message(fault: str, siglip: Case, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    spoil, words = FAULTS[fault]
    spoil(folder)
    with pytest.raises(lmr.LmrError, match=words):
        load_siglip(folder / WEIGHTS, "tiny")


def test_pickle_that_runs_code_is_refused(siglip: Case, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    (folder / "model.safetensors").unlink()
    torch.save({"logit_scale": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    with pytest.raises(lmr.LmrError, match="holds Python objects"):
        load_siglip(folder / "pytorch_model.bin", "tiny")
    assert not (tmp_path / "sprung").exists()


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_folder_without_preprocessing_gets_siglips(siglip: Case, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    (folder / "preprocessor_config.json").unlink()
    backbone = load_siglip(folder / WEIGHTS, "tiny")
    assert backbone.preprocessing == siglip.load().preprocessing
    assert "SigLIP's own" in backbone.facts["preprocessing"]
    (folder / "processor_config.json").write_text('{"processor_class": "SiglipProcessor"}')
    assert lmr.load(folder).preprocessing == siglip.load().preprocessing


def test_settings_that_are_missing_are_siglips(siglip: Case, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    for settings in ({"image_processor_type": "SiglipImageProcessor"}, {}):
        size = {"size": {"height": SIDE, "width": SIDE}}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings | size))
        assert lmr.load(folder).preprocessing == siglip.load().preprocessing


def test_tokenizer_of_another_model_gets_a_message(siglip: Case, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip.folder, tmp_path / "copy")
    change_weights(
        folder, lambda w: w.update({(key := "text_model.embeddings.token_embedding.weight"): w[key][:3].clone()})
    )
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["vocab_size"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(lmr.LmrError, match="but the model knows only 3 tokens"):
        load_siglip(folder / WEIGHTS, "tiny").encode_text(["a photo of a cat"])


@pytest.mark.parametrize("texts", ["a cat", [], [None]], ids=str)
def test_what_is_not_texts_gets_a_message(texts: Any, siglip: Case) -> None:
    with pytest.raises(lmr.LmrError, match="text"):
        siglip.load().encode_text(texts)


def test_missing_package_names_the_extra(siglip: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(lmr.LmrError, match=r"needs transformers; install it with: pip install 'lmr\[siglip\]'"):
        siglip.load()
