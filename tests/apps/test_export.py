"""An exported folder answers as the method does, through transformers alone; what cannot be exported leaves nothing."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers import CLIPModel, CLIPProcessor, SiglipModel, SiglipProcessor

import checkpoint_maker as maker
import lmr
import siglip_maker as siglip
from lmr.apps import export as export_file
from lmr.apps.export import CLASSES_JSON, CLASSES_TENSORS, ExportSummary
from lmr.apps.options import ExportOptions
from lmr.cli import main
from lmr.core.state import read_state, write_state
from predict_runs import predict_images

NAMES = ["cat", "dog", "bird", "house", "table"]
PROMPTS = {  # of several lengths, so that a model with random weights does not give every image the same class
    "cat": ["cat"],
    "dog": ["a photo of a dog"],
    "bird": ["two birds, high above the red house"],
    "house": ["the house on the left, 2024!"],
    "table": ["red table"],
}
TEMPLATES = ["a photo of a {}.", "the {} on the left"]
LMR = "lmr(lr=0.01, tau=0.0, delta=0.0, gamma0=40.0)"  # every sample has a margin to restore
SPECS = ["zeroshot", "tent(lr=0.01)", "eta(lr=0.01, diversity=2.0, margin=2.0)", LMR,
         "lmr(pmr=False)", "mint", "batclip", "bitta"]  # fmt: skip
PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def export_state(state: Path, out: Path, labels: Any = None, **options: Any) -> ExportSummary:
    return export_file.export_state(state, out, ExportOptions(labels=labels, **options))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two CLIP models, and two SigLIP models."""
    root = tmp_path_factory.mktemp("models")
    maker.write_huggingface(maker.make_model("quick_gelu"), root / "huggingface")
    maker.write_huggingface(maker.make_model("gelu"), root / "gelu", "bin")
    siglip.save_siglip(root / "siglip")
    siglip.save_siglip2(root / "siglip2")
    return root


@pytest.fixture(scope="module")
def backbone(root: Path) -> lmr.Backbone:
    return lmr.load(root / "huggingface")


def make_images(seed: int, count: int = 6) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def teach(spec: str, clip: lmr.ZeroShot, streams: int = 1) -> lmr.Method:
    """A method after three steps."""
    method = lmr.create(spec, clip, streams=streams)
    for seed in range(3):
        method.step(make_images(seed), torch.arange(6) % streams if streams > 1 else None)
    return method


def answer(folder: Path, images: Tensor) -> Tensor:
    """Logits of an exported folder, with the classes that ``classes.json`` names and nothing of lmr."""
    classes, tensors = json.loads((folder / CLASSES_JSON).read_text()), load_file(folder / CLASSES_TENSORS)
    assert torch.tensor(classes["bias"]).equal(tensors["bias"])
    with torch.no_grad():
        if json.loads((folder / "config.json").read_text())["model_type"] == "siglip":
            features = SiglipModel.from_pretrained(folder).vision_model(images).pooler_output
        else:
            model = CLIPModel.from_pretrained(folder)
            features = model.visual_projection(model.vision_model(images).pooler_output)
    cosines = F.normalize(features, dim=-1) @ tensors["prototypes"].T
    return classes["logit_scale"] * cosines + classes["logit_bias"] + tensors["bias"]


def read_again(folder: Path) -> Tensor:
    """Prototypes from the prompts in ``classes.json`` by the folder's own text tower and tokenizer."""
    prompts = json.loads((folder / CLASSES_JSON).read_text())["prompts"]
    if json.loads((folder / "config.json").read_text())["model_type"] == "siglip":
        model, tokenizer = SiglipModel.from_pretrained(folder), SiglipProcessor.from_pretrained(folder).tokenizer
        settings: dict[str, Any] = {"padding": "max_length", "max_length": siglip.CONTEXT}
    else:
        model, tokenizer = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder).tokenizer
        settings = {"padding": True}
    rows = []
    with torch.no_grad():
        for own in prompts:
            texts = [text.lower() for text in own]
            tokens = tokenizer(texts, return_tensors="pt", truncation=True, **settings)["input_ids"]
            read = model.text_model(input_ids=tokens).pooler_output
            read = read if isinstance(model, SiglipModel) else model.text_projection(read)
            rows.append(F.normalize(F.normalize(read, dim=-1).mean(0), dim=-1))
    return torch.stack(rows)


@pytest.mark.parametrize("spec", SPECS)
def test_logits_through_transformers_are_those_of_predict(spec: str, backbone: lmr.Backbone, tmp_path: Path) -> None:
    method = teach(spec, backbone.classifier(NAMES, PROMPTS))
    before = {key: value.clone() for key, value in backbone.encoder.state_dict().items()}
    summary = lmr.export(method, backbone, tmp_path / "out")
    images = make_images(50)
    torch.testing.assert_close(answer(tmp_path / "out", images), method.predict(images).logits, atol=1e-4, rtol=0)
    assert summary.difference < 1e-4
    assert all(before[key].equal(value) for key, value in backbone.encoder.state_dict().items())
    classes = json.loads((tmp_path / "out" / CLASSES_JSON).read_text())
    gap = (read_again(tmp_path / "out") - load_file(tmp_path / "out" / CLASSES_TENSORS)["prototypes"]).abs().max()
    assert classes["prototypes_from_prompts"] is (spec != "mint")
    assert (gap < 1e-5) == classes["prototypes_from_prompts"]
    own = load_file(tmp_path / "out" / "model.safetensors")
    start = load_file(Path(backbone.name) / "model.safetensors")
    changed = {key.partition("_model.")[0] for key in own if not torch.allclose(own[key], start[key], atol=1e-6)}
    towers = {"image": "vision", "text": "text"}
    assert changed == {towers[tower] for tower in classes["adapted_towers"]}
    assert classes["made_by"]["method"] == method.spec
    assert classes["made_by"]["images"] == 18
    assert classes["made_by"]["digests"] == method.classifier.fingerprint


@pytest.mark.parametrize(("form", "spec"), [("gelu", "bitta"), ("siglip", "bitta"), ("siglip2", LMR)])
def test_every_kind_of_model(form: str, spec: str, root: Path, tmp_path: Path) -> None:
    backbone = lmr.load(root / form)
    several = TEMPLATES if spec.startswith("lmr") else TEMPLATES[:1]  # text towers that adapt read one prompt per class
    method = teach(spec, backbone.classifier(NAMES, several))
    lmr.export(method, backbone, tmp_path / "out")
    images = make_images(51)
    torch.testing.assert_close(answer(tmp_path / "out", images), method.predict(images).logits, atol=1e-4, rtol=0)
    prototypes = load_file(tmp_path / "out" / CLASSES_TENSORS)["prototypes"]
    torch.testing.assert_close(read_again(tmp_path / "out"), prototypes, atol=1e-5, rtol=0)
    kind = SiglipProcessor if form.startswith("siglip") else CLIPProcessor
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (45, 60, 3), dtype=np.uint8))
    pixels = kind.from_pretrained(tmp_path / "out")(images=picture, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(pixels, backbone.preprocess(picture), atol=1e-6, rtol=0)
    again = lmr.load(tmp_path / "out")
    assert again.preprocessing == backbone.preprocessing
    assert (again.logit_scale, again.logit_bias) == pytest.approx((backbone.logit_scale, backbone.logit_bias))


@pytest.mark.slow
def test_the_lines_of_the_page_run_without_lmr(backbone: lmr.Backbone, tmp_path: Path) -> None:
    method = teach(LMR, backbone.classifier(NAMES))
    method.save(tmp_path / "camera.state")
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    words = ["--labels", str(tmp_path / "names.txt"), "--model", backbone.name, "--out", str(tmp_path / "camera")]
    assert main(["export", str(tmp_path / "camera.state"), *words]) == 0
    pixels = np.random.default_rng(0).integers(0, 256, (45, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = (
        f"import sys\nsys.modules['lmr'] = None\n{first}\nprint(logits.tolist())\n{second}\nprint(logits.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    label, one, other = done.stdout.splitlines()
    expected = method.predict(backbone.preprocess(Image.open(tmp_path / "photo.png"))[None])
    assert label == NAMES[int(expected.labels)]
    for logits in (one, other):
        torch.testing.assert_close(torch.tensor(json.loads(logits)), expected.logits, atol=1e-4, rtol=0)


def test_one_of_several_streams(backbone: lmr.Backbone, root: Path, tmp_path: Path) -> None:
    method = teach(LMR, backbone.classifier(NAMES), streams=3)
    method.save(tmp_path / "cameras.state")
    images = make_images(52)
    logits = [method.predict(images, [stream] * 6).logits for stream in range(3)]
    assert (logits[1] - logits[2]).abs().max() > 0.1
    export_state(tmp_path / "cameras.state", tmp_path / "one", NAMES, model=str(root / "huggingface"), stream=1)
    lmr.export(method, backbone, tmp_path / "two", stream=2)
    for stream, name in ((1, "one"), (2, "two")):
        torch.testing.assert_close(answer(tmp_path / name, images), logits[stream], atol=1e-4, rtol=0)
        assert json.loads((tmp_path / name / CLASSES_JSON).read_text())["made_by"]["stream"] == stream
    before = sorted(tmp_path.iterdir())
    with pytest.raises(lmr.LmrError, match="choose"):
        lmr.export(method, backbone, tmp_path / "none")
    for stream, words in ((None, "holds 3 streams; choose"), (3, "a stream from 0 to 2"), (-1, "a stream from 0 to 2")):
        with pytest.raises(lmr.LmrError, match=words):
            export_state(tmp_path / "cameras.state", tmp_path / "none", NAMES, model="photo", stream=stream)
    assert sorted(tmp_path.iterdir()) == before


def test_state_with_labels(backbone: lmr.Backbone, root: Path, tmp_path: Path) -> None:
    """Its offset is exported, as from a service."""
    method = lmr.Labelled(lmr.Watched(teach(LMR, backbone.classifier(NAMES), streams=2)))
    images = make_images(53)
    method.step(images, [1] * 6)
    plain = method.predict(images, [1] * 6).logits
    method.learn_labels([0, 1, 2], [2, 2, 2], [1, 1, 1])
    method.save(tmp_path / "labelled.state")
    model = str(root / "huggingface")
    export_state(tmp_path / "labelled.state", tmp_path / "out", NAMES, model=model, stream=1)
    expected = method.predict(images, [1] * 6).logits
    assert (expected - plain).abs().max() > 0.1
    torch.testing.assert_close(answer(tmp_path / "out", images), expected, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def state(backbone: lmr.Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "camera.state"
    teach("tent", backbone.classifier(NAMES)).save(path)
    return path


@pytest.mark.parametrize(
    ("labels", "model", "words"),
    [
        ("cat,dog", "huggingface", "other classes or prompts"),
        ("dog,cat,bird,house,table", "huggingface", "other classes or prompts"),
        (",".join(NAMES), "gelu", "other weights"),
        (",".join(NAMES), "nowhere", "no folder"),
    ],
)
def test_a_state_of_something_else_writes_nothing(
    labels: str, model: str, words: str, state: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--labels", labels, "--model", str(root / model), "--out", str(tmp_path / "out")]
    assert main(["export", str(state), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spec", ["tda", "ecalp"])
def test_methods_with_caches_say_why_not(spec: str, backbone: lmr.Backbone, tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match=f"{spec} cannot be exported: its answer depends on"):
        lmr.export(teach(spec, backbone.classifier(NAMES)), backbone, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


OWN = """
import lmr

@lmr.register("doubled")
class Doubled(lmr.Method):
    def answer(self, images, state, streams):
        return 2 * self.classifier.logits(self.classifier.cosines(self.classifier.features(images)))
    def adapt(self, images, state, streams):
        return lmr.Step(self.answer(images, state, streams))
    def export(self, state):
        return lmr.AdaptedParameters(self.classifier.prototypes)

@lmr.register("shifted")
class Shifted(Doubled):
    def answer(self, images, state, streams):
        return super().answer(images, state, streams) / 2 + 3
    def export(self, state):
        prototypes = self.classifier.prototypes
        return lmr.AdaptedParameters(prototypes, prototypes.new_full([len(prototypes)], 3.0))
"""


@pytest.mark.usefixtures("own_methods")
def test_a_method_of_a_file(backbone: lmr.Backbone, root: Path, tmp_path: Path) -> None:
    """Its state does not name the file; and one whose ``export`` is not its answer is found out."""
    (tmp_path / "mine.py").write_text(OWN)
    clip = backbone.classifier(NAMES)
    for name in ("doubled", "shifted"):
        lmr.create(f"{tmp_path}/mine.py:{name}", clip).save(tmp_path / f"{name}.state")
    arguments: dict[str, Any] = {"labels": NAMES, "out": tmp_path / "out", "model": str(root / "huggingface")}
    with pytest.raises(lmr.LmrError, match="would not answer as doubled"):
        export_state(tmp_path / "doubled.state", method=f"{tmp_path}/mine.py:doubled", **arguments)
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}  # Python's own cache of mine.py
    assert left == {"doubled.state", "mine.py", "shifted.state"}
    export_state(tmp_path / "shifted.state", method=f"{tmp_path}/mine.py:shifted", **arguments)
    assert load_file(tmp_path / "out" / CLASSES_TENSORS)["bias"].tolist() == [3.0] * 5
    with pytest.raises(lmr.LmrError, match="The state belongs to shifted"):
        export_state(tmp_path / "shifted.state", method="tent", **arguments | {"out": tmp_path / "other"})


def test_folders_that_exist(backbone: lmr.Backbone, tmp_path: Path) -> None:
    method = lmr.create("tent", backbone.classifier(NAMES))
    (tmp_path / "out").mkdir()
    for folder, words in ((tmp_path / "out", "exists"), (tmp_path / "nowhere" / "out", "no folder"), ("", "exists")):
        with pytest.raises(lmr.LmrError, match=words):
            lmr.export(method, backbone, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


def test_a_full_disk_leaves_nothing(backbone: lmr.Backbone, tmp_path: Path) -> None:
    """A limit on the size of a file, which every writer meets as it meets a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(lmr.LmrError, match="Nothing"):
            lmr.export(lmr.create("tent", backbone.classifier(NAMES)), backbone, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_half_precision_is_written_in_float32(root: Path, tmp_path: Path) -> None:
    backbone = lmr.load(root / "huggingface", dtype=torch.bfloat16)
    method = lmr.create("tent(lr=0.01)", backbone.classifier(NAMES))
    method.step(make_images(0).bfloat16())
    method.save(tmp_path / "half.state")
    summary = export_state(
        tmp_path / "half.state", tmp_path / "out", NAMES, model=str(root / "huggingface"), dtype="bfloat16"
    )
    assert 1e-3 < summary.difference < 2
    assert {value.dtype for value in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.float32}
    norm = load_file(tmp_path / "out" / "model.safetensors")["vision_model.post_layernorm.weight"]
    assert norm.equal(method.export_parameters().norms[lmr.Tower.IMAGE]["ln_post.weight"])


def test_a_state_of_predict_notes_its_classes(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command needs the state, the model and the folder."""
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.effect_noise((40, 30), 60 + number).save(tmp_path / "photos" / f"{number}.png")
    model, state = str(root / "huggingface"), tmp_path / "camera.state"
    arguments = {"model": model, "templates": ["a sketch of a {}.", "{}"], "method": "tent", "state": state}
    predict_images(tmp_path / "photos", NAMES, out=tmp_path / "lines.jsonl", **arguments)
    assert main(["export", str(state), "--model", model, "--out", str(tmp_path / "out")]) == 0
    content = json.loads((tmp_path / "out" / "classes.json").read_text())
    assert content["names"] == NAMES
    assert content["prompts"][0] == [f"a sketch of a {NAMES[0]}.", NAMES[0]]


def test_a_state_never_names_a_file_of_code(state: Path, root: Path, tmp_path: Path) -> None:
    tensors, facts = read_state(state)
    (tmp_path / "mine.py").write_text("raise SystemExit('the code ran')")
    for spec in (f"{tmp_path}/mine.py:tent", "unheard(of=1)", "("):
        write_state(tmp_path / "other.state", tensors, facts | {"spec": spec})
        with pytest.raises(lmr.LmrError, match=r"--method FILE\.py:NAME"):
            export_state(tmp_path / "other.state", tmp_path / "out", NAMES, model=str(root / "huggingface"))
