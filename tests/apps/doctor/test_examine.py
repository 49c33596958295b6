"""`lmr doctor`: it describes what was loaded, every check can fail, and accuracy stands beside the published one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import checkpoint_maker as maker
import lmr
from lmr.apps.doctor import examine as examine_file
from lmr.apps.doctor.checks import Check, CheckKind, choose_texts
from lmr.apps.doctor.examine import Accuracy, DoctorReport, choose_places, describe_model, format_facts
from lmr.apps.options import DoctorOptions, ModelOptions
from lmr.cli import main
from lmr.core.classifier import digest_tensors
from lmr.data.photographs import Photographs
from lmr.data.pocket_world import CLASSES, draw
from lmr.models.catalog import PublishedAccuracy
from lmr.models.embedded import Embedded
from lmr.models.towers.architectures import ARCHITECTURES

CIFAR = Path(__file__).parents[4] / "shared" / "data" / "cifar10_test.npz"
NAMES = ["red star", "blue ring", "green circle"]


class Tower(nn.Module):
    """A sound little image tower: mean colours of 4x4 fields, a norm, a projection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(192)
        self.head = nn.Linear(192, 16)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(F.avg_pool2d(images, 4).flatten(1)))


class Whole(lmr.Backbone):
    """A sound model; the others below break one thing each."""

    name, input_shape, logit_scale = "whole", (3, 32, 32), 50.0
    keeps_prototypes = False

    def __init__(self) -> None:
        self.encoder = Tower()
        self._text = nn.Linear(1, 1)

    def preprocess(self, image: Image.Image) -> Tensor:
        square = image.convert("RGB").resize((32, 32))
        return torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(32, 32, 3).permute(2, 0, 1) / 255

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return F.normalize(torch.stack([self.encode_one(text) for text in texts]), dim=-1)

    def encode_one(self, text: str) -> Tensor:
        return torch.tensor([text.count(letter) + 0.1 for letter in "abcdefghilnorstu"])


class Broken(Tower):
    """Spoils the features with a function of them and of the images."""

    def __init__(self, spoil: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.spoil = spoil

    def forward(self, images: Tensor) -> Tensor:
        return self.spoil(super().forward(images))


class Padded(Whole):
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        longest = max(map(len, texts))
        return F.normalize(
            torch.stack([self.encode_one(text) + 0.01 * (longest - len(text)) for text in texts]), dim=-1
        )


class Deaf(Whole):
    def encode_one(self, text: str) -> Tensor:
        return torch.ones(16)


class Mute(Whole):
    def encode_one(self, text: str) -> Tensor:
        return torch.full((16,), float("nan")) if "dog" in text else super().encode_one(text)


class Silent(Whole):
    def encode_one(self, text: str) -> Tensor:
        return torch.zeros(16) if "dog" in text else super().encode_one(text)


class Normless(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return F.avg_pool2d(images, 16).flatten(1).repeat(1, 2)[:, :16]


class Adrift(Tower):
    """Writes into itself whenever gradients are on."""

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            with torch.no_grad():
                self.head.bias += 0.01
        return super().forward(images)


def examine(model: str | lmr.Backbone, **options: Any) -> DoctorReport:
    return examine_file.examine(model, DoctorOptions(**options))


def examine_tower(tower: nn.Module) -> DoctorReport:
    backbone = Whole()
    backbone.encoder = tower
    return examine(backbone)


def add_noise(features: Tensor) -> Tensor:
    return features + 1e-3 * torch.randn_like(features)


def lean_on_batch(features: Tensor) -> Tensor:
    return features - 0.1 * features.mean(0)


def lose_one(features: Tensor) -> Tensor:
    spoilt = features.clone()
    spoilt[-1] = float("nan")
    return spoilt


# ------------------------------------------------------------------------------------------------------ the self-check


def test_a_sound_model_passes() -> None:
    report = examine(Whole())
    assert report.ok
    assert report.failed == []
    assert report.complaint is None
    (skipped,) = [check for check in report.checks if check.passed is not True]
    assert skipped == Check(CheckKind.AGREEMENT, None, "not compared, transformers has no model of this kind")
    assert "  -       agreement with transformers: not compared, transformers has no model of this kind" in str(report)


@pytest.mark.parametrize(
    ("make", "failed"),
    [
        (lambda: examine_tower(Broken(lose_one)), CheckKind.IMAGES_FINITE),
        (lambda: examine_tower(Broken(lambda f: f * 0)), CheckKind.IMAGES_UNIT),
        (
            lambda: examine_tower(Broken(lambda f: torch.ones_like(f) + 0 * f)),
            CheckKind.IMAGES_DIFFER,
        ),
        (lambda: examine_tower(Broken(lean_on_batch)), CheckKind.BATCH_SIZE),
        (lambda: examine_tower(Broken(add_noise)), CheckKind.DETERMINISTIC),
        (lambda: examine(Mute()), CheckKind.TEXTS_FINITE),
        (lambda: examine(Silent()), CheckKind.TEXTS_UNIT),
        (lambda: examine(Deaf()), CheckKind.STEP_ADAPTS),
        (lambda: examine(Deaf()), CheckKind.TEXTS_DIFFER),
        (lambda: examine(Padded()), CheckKind.PADDING),
        (lambda: examine_tower(Broken(lambda f: f.detach().requires_grad_())), CheckKind.GRADIENT_STEP),
        (lambda: examine_tower(Normless()), CheckKind.GRADIENT_STEP),
        (lambda: examine_tower(Adrift()), CheckKind.STEP_LEAVES_MODEL),
    ],
)
def test_every_check_can_fail(make: Callable[[], DoctorReport], failed: CheckKind) -> None:
    report = make()
    assert not report.ok
    assert failed in report.failed, str(report)
    assert f"  FAILED  {failed.value}: " in str(report)


def test_class_names_that_read_alike_are_one_text() -> None:
    """Or two classes of one name would look like a text tower that cannot tell words apart."""
    backbone = lmr.load("pocket")
    assert choose_texts(backbone, ["Red_star", "red star", "blue ring"]) == ["red star", "blue ring"]
    assert choose_texts(backbone, ["red star", "red star"]) == choose_texts(backbone)
    assert len(choose_texts(backbone, CLASSES)) == 8


def test_model_without_a_tokenizer_is_checked_as_far_as_possible(tmp_path: Path) -> None:
    """A CLIP with a vocabulary of its own works with text features of its owner's."""
    maker.write_huggingface(maker.make_model(), tmp_path)
    for labels in (None, ["cat", "dog"]):
        report = examine(str(tmp_path), labels=labels)
        assert report.ok, str(report)
        passed = {check.kind: check.passed for check in report.checks}
        skipped = [kind for kind, result in passed.items() if result is None]
        assert skipped == [CheckKind.TEXT_SIDE, CheckKind.AGREEMENT]
        assert passed[CheckKind.STEP_ADAPTS]
    assert "  -       text features: not checked, the model has no tokenizer" in str(report)


# ---------------------------------------------------------------------------------------------------------- the screen


def describe_activation(backbone: lmr.Backbone) -> str:
    return describe_model(backbone, ["cat", "dog"])["activation"]


def test_activation_that_only_a_name_tells_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In OpenAI's sizes, a named architecture is GELU, and OpenAI's weights want QuickGELU."""
    from safetensors.torch import save_file

    model = maker.make_model("gelu", words=49408)
    whole = lmr.load(maker.write_huggingface(model, tmp_path / "whole"))
    bare = tmp_path / "bare.safetensors"
    save_file(maker.rename_to_openai(model), bare)
    monkeypatch.setitem(ARCHITECTURES, "ViT-B-16", (whole.encoder.config, whole.text.config))  # type: ignore[attr-defined]
    said = {}
    for name in ("ViT-B-16", "ViT-B-16-quickgelu"):
        said[name] = describe_activation(lmr.load(bare, architecture=name))
    advice = "as the name ViT-B-16 says; weights tuned from OpenAI's need --architecture ViT-B-16-quickgelu"
    assert said == {"ViT-B-16": f"gelu, {advice}", "ViT-B-16-quickgelu": "quick_gelu"}
    assert describe_activation(whole) == "gelu"  # its config says so


def test_screen_of_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pocket"]) == 0
    said = capsys.readouterr()
    backbone = lmr.load("pocket")
    text = said.out
    assert said.err == ""
    assert "FAILED" not in text
    assert f"adapted         {lmr.NormBank(backbone.encoder).size:,} parameters of layer norms\n" in text
    assert digest_tensors(backbone.encoder.state_dict())[:12] in text
    assert f"image {sum(p.numel() for p in backbone.encoder.parameters()):,}" in text
    assert "3 x 32 x 32, float32 on cpu" in text
    assert "logit scale     100\n" in text
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) <= 120


def test_screen_of_the_default_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["doctor", "--images", "40"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "FAILED" not in said.out
    backbone = lmr.load()
    assert isinstance(backbone, Embedded)
    sizes = backbone.encoder.config
    side = sizes.resolution // sizes.patch
    towers = f"{sizes.resolution} pixels, by convolutions to {side} x {side} tokens, {sizes.depth} blocks, "
    lines = said.out.splitlines()
    assert lines[1].split() == ["name", "photo"]
    assert towers in said.out
    # The long list is wrapped under its title, and every name is there.
    start = next(k for k, line in enumerate(lines) if line.startswith("  class names "))
    end = next(k for k, line in enumerate(lines) if line.startswith("  image tower "))
    indent = lines[start].index(backbone.tokenizer.names[0])
    assert max(map(len, lines[start:end])) <= 100
    assert all(line[:indent].isspace() and line[indent] != " " for line in lines[start + 1 : end])
    listed = " ".join(line[indent:] for line in lines[start:end]).split(", ")
    assert listed == list(backbone.tokenizer.names)
    assert len(listed) == 110
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(("columns", "widest"), [("70", 70), ("20", 60), ("500", 110)])
def test_facts_are_wrapped_at_the_width_of_the_screen(
    columns: str, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = format_facts({"name": "x", "class names": ", ".join(["pine tree"] * 60)}).splitlines()
    assert widest - 12 < max(map(len, lines)) <= widest


def test_failed_check_is_exit_code_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelOptions, "load", lambda self, model: Deaf())
    assert main(["doctor", "deaf"]) == 1
    said = capsys.readouterr()
    assert "FAILED  different texts have different features: largest cosine 1.0000" in said.out
    assert said.err.startswith("lmr: 2 of the checks failed: different texts have different features; ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pockets"], "There is no model 'pockets'"),
        (["pocket", "--dataset", "imagenet"], "give its images with --data"),
        (["pocket", "--data", "nowhere"], "'nowhere' does not exist"),
        (["pocket", "--images", "0"], "number of images of at least 1, got 0"),
        (["pocket", "--batch-size", "0"], "batch size of at least 1, got 0"),
        (["pocket", "--labels", "nowhere.txt"], "got 'nowhere.txt', and there is no such file"),
        (["pocket", "--labels", "cat,dog"], "give --labels with words it knows"),
        (["--labels", "red star,blue ring"], "The photo model does not know 'red star'"),
        (["--images", "0"], "number of images of at least 1, got 0"),
        (["pocket", "--prompts", "nowhere.json"], "no file of prompts 'nowhere.json'"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lmr: ")
    assert sentence in said.err


# -------------------------------------------------------------------------------------------------------- the accuracy


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety drawings of the pocket world in a folder per class, and their true classes in a second form, a table."""
    root = tmp_path_factory.mktemp("drawings")
    pixels, scene = draw(range(90))
    rows = ["path,label"]
    for number, (picture, label) in enumerate(zip(pixels, scene.label, strict=True)):
        folder = root / "set" / CLASSES[label].replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")
        rows.append(f"set/{folder.name}/{number}.png,{CLASSES[label]}")
    (root / "set.csv").write_text("\n".join(rows))
    return root


def count_right(drawings: Path, names: Sequence[str]) -> int:
    """The same, one picture at a time, with nothing but a backbone's public surface."""
    backbone = lmr.load("pocket")
    clip = backbone.classifier(names)
    right = 0
    for path in sorted((drawings / "set").rglob("*.png")):
        feature = F.normalize(clip.encoder(backbone.preprocess(Image.open(path))[None]), dim=-1)
        right += names[int((feature @ clip.prototypes.T).argmax())] == path.parent.name.replace("_", " ")
    return right


def test_accuracy_of_a_folder_and_of_a_table(drawings: Path) -> None:
    names = sorted({path.name.replace("_", " ") for path in (drawings / "set").iterdir()})
    expected = count_right(drawings, names)
    assert 60 < expected <= 90
    folder = examine("pocket", data=drawings / "set", batch_size=32).accuracy
    table = examine("pocket", data=drawings / "set.csv", batch_size=7).accuracy
    assert folder is not None
    assert table is not None
    assert (folder.right, folder.images, folder.unreadable, folder.classes) == (expected, 90, 0, len(names))
    assert (table.right, table.images) == (expected, 90)


def test_all_classes_are_candidates_where_the_labels_say_so(drawings: Path) -> None:
    report = examine("pocket", data=drawings / "set", labels=list(CLASSES))
    assert report.accuracy is not None
    assert report.accuracy.classes == len(CLASSES)
    assert report.accuracy.right == count_right(drawings, list(CLASSES))


def test_default_model_is_measured_on_the_photographs_of_the_package() -> None:
    """Against files of the same images, and against its features by hand."""
    photographs, backbone = Photographs(), lmr.load("photo")
    accuracy = examine(backbone, images=60, batch_size=16).accuracy
    assert accuracy is not None
    assert (accuracy.images, accuracy.unreadable, accuracy.classes) == (60, 0, 10)
    assert accuracy.images_of == photographs.protocol["images"]
    places = choose_places(2000, 60)
    clip = backbone.classifier(photographs.classes)
    pixels = torch.stack([torch.from_numpy(image) for image in photographs.read("clean", 0, places)])
    answers = lmr.create("zeroshot", clip).step(backbone.preprocess(pixels)).labels
    assert accuracy.right == int((answers.numpy() == photographs.labels("clean")[places]).sum())
    assert f"({accuracy.right} of 60 images, 10 classes, the default prompt)\n" in str(accuracy)
    assert "  from the 2000 images of the test set of CIFAR-10 that come with lmr" in str(accuracy)
    other = examine(backbone, images=60, templates=["a blurry photo of a {}."]).accuracy
    assert other is not None
    assert other.prompts == ["a blurry photo of a {}."]


def test_all_photographs_are_the_default_and_own_images_replace_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def note(*words: Any) -> Accuracy:
        asked.append(words[2].name)
        return measure(*words[:3], 64, 2)

    measure = examine_file.measure_accuracy
    monkeypatch.setattr(examine_file, "measure_accuracy", note)
    assert examine("photo").accuracy is not None
    assert asked == ["photo"]
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 30)).save(tmp_path / name / "0.png")
    own = examine("photo", data=tmp_path).accuracy
    assert own is not None
    assert (own.images, own.classes, own.images_of) == (2, 2, "")
    assert examine("pocket").accuracy is None
    assert asked == ["photo", "data"]


def test_choice_is_random_the_same_again_and_in_order() -> None:
    chosen = choose_places(60, 20)
    assert chosen == choose_places(60, 20) == sorted(set(chosen))
    assert len(chosen) == 20
    assert max(chosen) >= 30  # not the first ones, which are of one class
    assert choose_places(60, 60) == choose_places(60, 1000) == list(range(60))


def test_names_beside_the_images_are_used(drawings: Path, tmp_path: Path) -> None:
    """As in ``lmr bench``: a folder of codes with a file of names."""
    first, second, *_ = sorted((drawings / "set").iterdir())
    shutil.copytree(first, tmp_path / "n1")
    shutil.copytree(second, tmp_path / "n2")
    (tmp_path / "names.tsv").write_text(f"n1\t{first.name}\nn2\t{second.name}\n")
    own = examine("pocket", data=tmp_path).accuracy
    assert own is not None
    assert own.classes == 2
    assert own == examine("pocket", data=tmp_path, labels=[first.name, second.name]).accuracy


def test_chosen_images_templates_and_prompts(drawings: Path, tmp_path: Path) -> None:
    templates = ["a photo of a {}.", "a drawing of a {}."]
    (tmp_path / "templates.json").write_text(json.dumps(templates))
    one = examine("pocket", data=drawings / "set", templates=templates, images=40).accuracy
    other = examine("pocket", data=drawings / "set", prompts=tmp_path / "templates.json", images=40).accuracy
    assert one is not None
    assert one == other
    assert one.images == 40
    assert one.prompts == templates
    assert ", 2 prompts)" in str(one)


def test_unreadable_pictures_are_counted_and_left_out(drawings: Path, tmp_path: Path) -> None:
    for name in ("red star", "blue ring"):
        (tmp_path / "set" / name).mkdir(parents=True)
    picture = next((drawings / "set").rglob("*.png"))
    for name in ("a", "b"):
        (tmp_path / "set" / "red star" / f"{name}.png").write_bytes(picture.read_bytes())
    (tmp_path / "set" / "blue ring" / "cut.png").write_bytes(picture.read_bytes()[:100])
    (tmp_path / "set" / "blue ring" / "text.jpg").write_text("not a picture")
    report = examine("pocket", data=tmp_path / "set", batch_size=1)
    assert report.accuracy is not None
    assert (report.accuracy.images, report.accuracy.unreadable) == (2, 2)
    assert "2 images could not be read" in str(report)
    assert "cut.png" in str(report)
    for path in (tmp_path / "set" / "red star").iterdir():
        path.unlink()
    with pytest.raises(lmr.LmrError, match="None of the 2 images can be read"):
        examine("pocket", data=tmp_path / "set")


def published(value: float) -> PublishedAccuracy:
    return PublishedAccuracy("some/model", "imagenet", value, "80 prompts", "a table")


def test_interval_is_wilsons() -> None:
    """Against the roots of (p - x)² = z² x (1 - x) / n, found by bisection."""
    for right, images in ((0, 10), (7, 10), (10, 10), (683, 1000), (34170, 50000)):
        share = right / images

        def excess(x: float, share: float = share, images: int = images) -> float:
            return (share - x) ** 2 - 1.959964**2 * x * (1 - x) / images

        def bisect(inside: float, outside: float) -> float:
            for _ in range(60):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if excess(middle) <= 0 else (inside, middle)
            return inside

        low, high = Accuracy(right, images, 0, 10).interval
        assert low == pytest.approx(100 * bisect(share, 0.0), abs=1e-6)
        assert high == pytest.approx(100 * bisect(share, 1.0), abs=1e-6)


def test_published_value_in_and_outside_the_interval() -> None:
    near = Accuracy(683, 1000, 0, 1000, dataset="imagenet", published=published(68.34))
    far = Accuracy(583, 1000, 0, 1000, dataset="imagenet", published=published(68.34))
    none = Accuracy(583, 1000, 0, 1000, dataset="pets")
    assert (near.is_as_published, far.is_as_published, none.is_as_published) == (True, False, None)
    assert "68.34 % for some/model on imagenet" in str(near)
    assert "80 prompts (a table)" in str(near)
    assert "WARNING" not in str(near)
    assert "WARNING: the published value is outside" in str(far)
    assert "no value is known for this model on 'pets'" in str(none)
    assert DoctorReport({"name": "x"}, (), far).ok  # a warning is not a failure


def test_dataset_finds_the_published_value(drawings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(examine_file, "find_published_accuracy", lambda *words: asked.append(words) or published(1.0))
    text = str(examine("pocket", data=drawings / "set", dataset="imagenet"))
    assert asked == [("pocket", "imagenet")]
    assert "published: 1.00 % for some/model" in text
    assert "WARNING" in text


@pytest.mark.skipif(not CIFAR.exists(), reason="the CIFAR-10 test pictures are not beside the repository")
def test_real_pictures_in_a_table(tmp_path: Path) -> None:
    import numpy as np

    with np.load(CIFAR) as content:
        images, labels = content["images"][:24], content["labels"][:24]
    rows = ["path,label"]
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{label}")
    (tmp_path / "cifar.csv").write_text("\n".join(rows))
    report = examine(Whole(), data=tmp_path / "cifar.csv", labels=[f"{word} thing" for word in "abcdefghij"])
    assert report.accuracy is not None
    assert (report.accuracy.images, report.accuracy.classes) == (24, 10)
