from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmr
from lmr.data.catalogue import open_dataset
from real_data import FOLDER, needs


def make_set(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    """Write images of one colour each: 10 times the number of the class, 1 more for each image."""
    classes = sorted({name for own in counts.values() for name in own})
    for domain, own in counts.items():
        for name, count in own.items():
            (root / domain / name).mkdir(parents=True)
            for k in range(count):
                value = 10 * classes.index(name) + k
                Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(root / domain / name / f"{k}.png")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_set(tmp_path / "pacs", {"photo": {"big_cat": 2, "dog": 3}, "sketch": {"dog": 1, "horse": 2}})
    (tmp_path / "pacs" / "splits").mkdir()
    (tmp_path / "pacs" / "splits" / "list.txt").write_text("no images")
    return tmp_path


def test_domains_share_the_classes_of_all(root: Path) -> None:
    dataset = open_dataset("pacs", root)
    assert dataset.domains == ("photo", "sketch")
    assert dataset.classes == ("big cat", "dog", "horse")
    assert dataset.labels("photo").tolist() == [0, 0, 1, 1, 1]
    assert dataset.labels("sketch").tolist() == [1, 2, 2]
    assert [int(image[0, 0, 0]) for image in dataset.read("sketch", 0, [2, 0])] == [21, 10]
    assert dataset.protocol["images"].endswith("8 images in 2 domains and 3 classes, the first of 6x4 pixels")
    with pytest.raises(lmr.LmrError, match="no domain 'clean'; choose one of: photo, sketch"):
        dataset.labels("clean")
    with pytest.raises(lmr.LmrError, match="has the images 0 to 2"):
        dataset.read("sketch", 0, [3])


def test_digest_of_a_domain_depends_on_its_own_files(root: Path) -> None:
    before = open_dataset("pacs", root)
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(root / "pacs" / "sketch" / "dog" / "1.png")
    after = open_dataset("pacs", root)
    assert before.digest != after.digest
    assert before.digest_part(["photo"], 0) == after.digest_part(["photo"], 0)
    assert before.digest_part(["sketch"], 0) != after.digest_part(["sketch"], 0)


def test_names_beside_the_domains_name_the_classes(root: Path) -> None:
    (root / "pacs" / "names.tsv").write_text("horse\tpony\ndog\thound\nbig_cat\tlion\nemu\temu\n")
    dataset = open_dataset(f"domains:{root / 'pacs'}")
    assert dataset.classes == ("pony", "hound", "lion", "emu")
    assert dataset.labels("sketch").tolist() == [1, 0, 0]


def test_classes_are_chosen_by_name(root: Path) -> None:
    part = open_dataset("pacs@horse+dog", root)
    assert part.classes == ("dog", "horse")
    assert part.labels("photo").tolist() == [0, 0, 0]
    assert [int(image[0, 0, 0]) for image in part.read("photo", 0, [1])] == [11]
    assert part.digest != open_dataset("pacs", root).digest
    for choice in ("dog+emu", "dog", "dog+dog"):
        with pytest.raises(lmr.LmrError, match=r"two by name pacs@big cat\+dog. Its classes: big cat, dog, horse"):
            open_dataset(f"pacs@{choice}", root)


def test_folder_without_domains_is_refused(tmp_path: Path) -> None:
    make_set(tmp_path / "flat", {".": {"dog": 1, "cat": 1}})
    with pytest.raises(lmr.LmrError, match="domain"):
        open_dataset(f"domains:{tmp_path / 'flat'}")
    make_set(tmp_path / "one", {"photo": {"dog": 2}})
    with pytest.raises(lmr.LmrError, match="at least two classes"):
        open_dataset(f"domains:{tmp_path / 'one'}")


@needs("pacs-64")
def test_pacs_is_read() -> None:
    dataset = open_dataset(f"domains:{FOLDER / 'pacs-64'}")
    assert dataset.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert dataset.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert sum(map(dataset.count, dataset.domains)) == 9991
    assert dataset.read("sketch", 0, [0])[0].shape == (64, 64, 3)
