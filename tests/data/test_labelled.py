"""Labelled folders and tables: which image has which class, and a sentence for what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from lmr.data.labelled import Labelled, list_labelled, read_class_names


def make_folder(root: Path, classes: dict[str, int]) -> Path:
    """Sub-folders with so many images each; their names end in numbers, so that order shows."""
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8)).save(root / name / f"img{number + 1}.png")
    return root


def show(found: Labelled, root: Path) -> list[tuple[str, str]]:
    return [
        (path.relative_to(root).as_posix(), found.names[label])
        for path, label in zip(found.paths, found.labels, strict=True)
    ]


def test_sub_folders_are_classes_and_searched_to_the_bottom(tmp_path: Path) -> None:
    make_folder(tmp_path, {"dog": 1, "cat": 11, "cow/brown": 1, ".thumbs": 1})
    (tmp_path / "notes.txt").write_text("not a class")
    found = list_labelled(tmp_path)
    assert found.names == ("cat", "cow", "dog")
    assert show(found, tmp_path) == [
        *((f"cat/img{number}.png", "cat") for number in range(1, 12)),
        ("cow/brown/img1.png", "cow"),
        ("dog/img1.png", "dog"),
    ]


def test_list_of_names_goes_by_sorted_order(tmp_path: Path) -> None:
    make_folder(tmp_path, {"n03": 1, "n01": 1, "n02": 1})
    found = list_labelled(tmp_path, ["tench", "missile", "missile"])
    assert show(found, tmp_path) == [
        ("n01/img1.png", "tench"),
        ("n02/img1.png", "missile"),
        ("n03/img1.png", "missile"),
    ]
    assert found.labels == (0, 1, 2)  # two classes of one name stay two classes


def test_list_of_names_goes_by_name_where_it_can(tmp_path: Path) -> None:
    make_folder(tmp_path, {"great_white_shark": 1, "Hen": 1})
    found = list_labelled(tmp_path, ["hen", "ostrich", "great white shark"])
    assert found.names == ("hen", "ostrich", "great white shark")
    assert show(found, tmp_path) == [
        ("Hen/img1.png", "hen"),
        ("great_white_shark/img1.png", "great white shark"),
    ]


def test_numbered_sub_folders_are_places_in_the_list(tmp_path: Path) -> None:
    """Sorted as text, 10 comes before 2: by order nearly every image would get a wrong name."""
    make_folder(tmp_path, {"2": 1, "10": 1, "0": 1})
    found = list_labelled(tmp_path, [f"class {number}" for number in range(11)])
    assert show(found, tmp_path) == [
        ("0/img1.png", "class 0"),
        ("10/img1.png", "class 10"),
        ("2/img1.png", "class 2"),
    ]


def test_mapping_may_hold_more_classes_than_the_images(tmp_path: Path) -> None:
    make_folder(tmp_path, {"n02": 1, "n01": 1})
    found = list_labelled(tmp_path, {"n03": "hen", "n02": "shark", "n01": "tench"})
    assert found.names == ("hen", "shark", "tench")
    assert found.labels == (2, 1)


def test_table_of_paths_and_labels(tmp_path: Path) -> None:
    make_folder(tmp_path / "images", {"a": 2})
    table = tmp_path / "set.csv"
    lines = ["label,path,camera", "red ball,images/a/img2.png,1", '"hat, blue",images/a/img1.png,2']
    table.write_text("\ufeff" + "\n".join(lines), "utf-8")
    found = list_labelled(table)
    assert found.names == ("hat, blue", "red ball")
    assert show(found, tmp_path) == [("images/a/img1.png", "hat, blue"), ("images/a/img2.png", "red ball")]
    assert list_labelled(table, ["other", "red ball", "hat, blue"]).labels == (2, 1)


@pytest.mark.parametrize(
    ("classes", "names", "sentence"),
    [
        ({}, None, "has no sub-folders"),
        ({"a": 1}, None, "at least two classes"),
        ({"a": 0, "b": 0}, None, "no image in the sub-folders"),
        ({"a": 1, "b": 1}, ["one", "two", "three"], "a name for each of the 2 classes"),
        ({"a": 1, "b": 1}, {"a": "one"}, "lack 1 of the images' 2 classes: 'b'"),
    ],
)
def test_names_that_do_not_fit_get_a_sentence(
    tmp_path: Path, classes: dict[str, int], names: object, sentence: str
) -> None:
    make_folder(tmp_path, classes)
    with pytest.raises(ValueError, match=sentence):
        list_labelled(tmp_path, names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("names.txt", "\ufefftench\n\n  hen \r\nmissile\nmissile\n", ["tench", "hen", "missile", "missile"]),
        ("names.tsv", "n01\ttench, Tinca tinca\nn02\then\n", {"n01": "tench, Tinca tinca", "n02": "hen"}),
        ("names.json", json.dumps(["tench", "hen"]), ["tench", "hen"]),
        ("map.json", json.dumps({"n01": "tench", "n02": "hen"}), {"n01": "tench", "n02": "hen"}),
    ],
)
def test_class_names_from_a_file(tmp_path: Path, name: str, text: str, expected: object) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    assert read_class_names(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("empty.txt", "\n \n", "is empty"),
        ("half.txt", "n01\ttench\nn02 hen\n", "sub-folder<TAB>name"),
        ("cut.json", '["tench", "he', "is not JSON"),
        ("number.json", '["tench", 3]', "JSON list of class names"),
        ("latin.txt", "caf\udce9\n", "not text in UTF-8"),
    ],
)
def test_bad_class_names_get_a_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=sentence):
        read_class_names(tmp_path / name)
