"""ImageNet and the sets made after it, in folders of a few images laid out like the official ones."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import set_maker as maker
from lmr.data.corruptions.apply import corrupt
from lmr.data.corruptions.constants import GROUPS
from lmr.data.imagenet import (
    ImageNetC,
    open_imagenet,
    open_imagenet_c,
)
from lmr.data.names import read_imagenet, read_list
from lmr.data.provenance import write_archive_note

LISTED = read_list("imagenet_c_5000")


def write_classes(folder: Path, names: dict[str, int], count: int = 2) -> None:
    """``count`` images in each class folder; the colour tells the class, the size the image."""
    for name, colour in names.items():
        for number in range(count):
            maker.write_image(folder / name / f"{name}_{number}.JPEG", colour, (20 + number, 16))


def test_lists_are_those_of_the_papers() -> None:
    names = read_imagenet()
    assert len(names) == 1000
    assert list(names) == sorted(names)
    assert (names["n01440764"], names["n15075141"]) == ("tench", "toilet paper")
    assert sorted(name for name, times in Counter(names.values()).items() if times > 1) == ["missile", "sunglasses"]
    for subset in ("imagenet_a", "imagenet_r"):
        assert len(set(read_list(subset))) == 200
        assert set(read_list(subset)) < set(names)
    assert len(set(read_list("imagenet_a")) & set(read_list("imagenet_r"))) < 200
    assert (len(read_list("cifar10")), len(set(read_list("cifar100")))) == (10, 100)
    assert not any("_" in name for name in read_list("cifar100"))


def test_the_list_of_5000_is_the_published_one() -> None:
    whole = hashlib.sha256("\n".join(sorted(LISTED)).encode()).hexdigest()
    assert whole == "2f1fd0aa050d2393d0d1ff5aa3da5cf25831254f1cb59266e3162a1e2c61adc8"
    assert len(LISTED) == len(set(LISTED)) == 5000
    assert LISTED[0] == "n09468604/ILSVRC2012_val_00015253.JPEG"  # its own order, not sorted
    per_class = Counter(line.partition("/")[0] for line in LISTED)
    assert (len(per_class), min(per_class.values()), max(per_class.values())) == (997, 1, 12)


@pytest.mark.parametrize(("name", "folder"), [("imagenet", "imagenet/val"), ("imagenet-sketch", "sketch")])
def test_thousand_classes(name: str, folder: str, tmp_path: Path) -> None:
    write_classes(tmp_path / folder, {"n15075141": 90, "n01440764": 30, "n01443537": 60})
    (tmp_path / folder / "README.txt").write_text("beside the classes")
    (tmp_path / folder / "n01440764" / "notes.txt").write_text("no image")
    found = open_imagenet(name, tmp_path)
    assert len(found.classes) == 1000
    np.testing.assert_array_equal(found.labels("clean"), [0, 0, 1, 1, 999, 999])
    images = found.read("clean", 0, range(6))
    assert [maker.read_colour(image) for image in images] == [30, 30, 60, 60, 90, 90]
    assert [image.shape[1] for image in images] == [20, 21] * 3
    assert found.protocol["candidates"] == "1000 classes"


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-r"])
def test_subsets_have_200_candidates(name: str, tmp_path: Path) -> None:
    subset = read_list(name.replace("-", "_"))
    write_classes(tmp_path / name, {subset[199]: 120, subset[3]: 40}, 1)
    found = open_imagenet(name, tmp_path)
    assert found.classes == tuple(read_imagenet()[wnid] for wnid in subset)
    np.testing.assert_array_equal(found.labels("clean"), [3, 199])
    assert found.classes[199] == read_imagenet()[subset[199]]
    assert "200 classes of ImageNet's 1000" in found.protocol["candidates"]
    outside = next(wnid for wnid in read_imagenet() if wnid not in subset)
    write_classes(tmp_path / name, {outside: 10}, 1)
    with pytest.raises(ValueError, match=f"'{outside}' is not a class of this set"):
        open_imagenet(name, tmp_path)
    (tmp_path / "empty" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="no image"):
        open_imagenet(name, tmp_path / "empty")


def test_v2_folders_are_numbers(tmp_path: Path) -> None:
    write_classes(tmp_path / "imagenetv2-matched-frequency-format-val", {"10": 100, "9": 90, "999": 200}, 1)
    found = open_imagenet("imagenet-v2", tmp_path)
    np.testing.assert_array_equal(found.labels("clean"), [9, 10, 999])
    assert [maker.read_colour(image) for image in found.read("clean", 0, [0, 1, 2])] == [90, 100, 200]


def test_images_are_not_turned(tmp_path: Path) -> None:
    """Published numbers were made without looking at the orientation a camera stored."""
    path = tmp_path / "imagenet" / "val" / "n01440764" / "ILSVRC2012_val_00000293.JPEG"
    path.parent.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(path, exif=exif)
    assert open_imagenet("imagenet", tmp_path).read("clean", 0, [0])[0].shape == (20, 30, 3)


def write_corrupted(folder: Path, files: dict[str, int], grouped: bool = False) -> None:
    """Fog and blur at severities 4 and 5; the colour tells the file, the severity and the corruption."""
    for shift, domain in ((0, "fog"), (100, "zoom_blur")):
        group = next(group for group, members in GROUPS.items() if domain in members)
        for severity in (4, 5):
            for file, colour in files.items():
                place = folder / group / domain if grouped else folder / domain
                maker.write_image(place / str(severity) / file, colour + shift + 4 * severity)


@pytest.mark.parametrize("grouped", [False, True])
def test_official_corrupted_folders(grouped: bool, tmp_path: Path) -> None:
    files = {"n01443537/ILSVRC2012_val_00000236.JPEG": 60, "n01440764/ILSVRC2012_val_00000293.JPEG": 30}
    write_corrupted(tmp_path / "ImageNet-C", files, grouped)
    found = open_imagenet_c("imagenet-c", tmp_path)
    assert isinstance(found, ImageNetC)
    assert (len(found.classes), len(found.domains), found.severities) == (1000, 15, (1, 2, 3, 4, 5))
    for shift, domain in ((0, "fog"), (100, "zoom_blur")):
        assert found.count(domain) == 2
        np.testing.assert_array_equal(found.labels(domain), [0, 1])
        for severity in (4, 5):
            colours = [maker.read_colour(image) for image in found.read(domain, severity, [1, 0])]
            assert colours == [60 + shift + 4 * severity, 30 + shift + 4 * severity]
    assert found.protocol["corruptions"] == "files in the layout of ImageNet-C, not checked"
    with pytest.raises(ValueError, match="no such file"):
        found.read("fog", 1, [0])
    with pytest.raises(ValueError, match="imagenet"):
        found.labels("snow")
    with pytest.raises(ValueError, match="found none"):
        ImageNetC("imagenet-c", tmp_path)
    first = found.digest
    assert ImageNetC("imagenet-c", found.folder).digest == first
    maker.write_image(found.locate("fog") / "5" / "n01440764/ILSVRC2012_val_00000293.JPEG", 30, (90, 90))
    assert ImageNetC("imagenet-c", found.folder).digest != first


def test_files_are_official_if_they_were_fetched(tmp_path: Path) -> None:
    folder = tmp_path / "imagenet-c"
    write_corrupted(folder, {"n01440764/ILSVRC2012_val_00000293.JPEG": 30})
    found = ImageNetC("imagenet-c", folder)
    assert found.describe_part(["fog"]) == found.protocol
    write_archive_note(tmp_path, "weather.tar", "md5:0", False)
    assert found.describe_part(["fog"])["corruptions"] == "the official files of ImageNet-C"
    assert found.describe_part(["fog", "zoom_blur"]) == found.protocol  # which is in another archive
    assert found.describe_part(["clean"]) == found.protocol


def test_list_of_5000_keeps_its_order(tmp_path: Path) -> None:
    write_corrupted(tmp_path / "imagenet-c", {LISTED[0]: 10, LISTED[2]: 50})
    found = open_imagenet_c("imagenet-c-5000", tmp_path)
    assert found.count("fog") == 5000
    classes = list(read_imagenet())
    np.testing.assert_array_equal(found.labels("fog"), [classes.index(line.partition("/")[0]) for line in LISTED])
    assert [maker.read_colour(image) for image in found.read("fog", 5, [2, 0])] == [70, 30]
    with pytest.raises(ValueError, match="no such file"):
        found.read("fog", 5, [1])
    assert "5,000-image list" in found.protocol["images"]


def make_photo(path: Path, size: tuple[int, int], seed: int) -> None:
    """Smooth random colours, stored without loss under a name that says JPEG: Pillow goes by the content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue())


def crop_slowly(path: Path) -> np.ndarray:
    """Resize(256) and CenterCrop(224) from their documentation, without our code."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    size = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    whole = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    top, left = round((whole.shape[0] - 224) / 2.0), round((whole.shape[1] - 224) / 2.0)
    return whole[top : top + 224, left : left + 224]


@pytest.mark.parametrize("flat", [False, True])
def test_validation_images_are_corrupted_on_the_fly(flat: bool, tmp_path: Path) -> None:
    """The 5,000 come from class folders or, labels being in the list, from a flat folder without truths."""
    folder = tmp_path / "imagenet" / "val"
    paths = [folder / (line.partition("/")[2] if flat else line) for line in LISTED[:2]]
    make_photo(paths[0], (300, 260), 0)
    make_photo(paths[1], (224, 500), 1)
    found = open_imagenet_c("imagenet-c-5000", tmp_path)
    assert found.count("fog") == 5000
    assert found.protocol["corruptions"] == (
        "made by lmr with the imagenet constants, seed 0, stored as JPEG of quality 85"
    )
    clean = found.read("clean", 0, [0, 1])
    for path, image in zip(paths, clean, strict=True):
        np.testing.assert_array_equal(image, crop_slowly(path))
    corrupted = found.read("gaussian_noise", 3, [1, 0])
    for place, line, image in ((1, LISTED[1], corrupted[0]), (0, LISTED[0], corrupted[1])):
        number = int(line[-13:-5])
        noisy = corrupt(clean[place], "gaussian_noise", 3, seed=0, index=number, constants="imagenet")
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=85, optimize=True)
        np.testing.assert_array_equal(image, np.asarray(Image.open(buffer)))


def test_image_has_the_same_noise_in_both_lists(tmp_path: Path) -> None:
    folder = tmp_path / "imagenet" / "val"
    for seed, line in enumerate(LISTED[:3]):
        make_photo(folder / line, (256, 256), seed)
    small, whole = open_imagenet_c("imagenet-c-5000", tmp_path), open_imagenet_c("imagenet-c", tmp_path)
    assert whole.count("fog") == 3
    order = sorted(LISTED[:3])
    for place, line in enumerate(LISTED[:3]):
        one, other = small.read("shot_noise", 5, [place]), whole.read("shot_noise", 5, [order.index(line)])
        np.testing.assert_array_equal(one, other)
    assert small.digest != whole.digest
