from pathlib import Path

import pytest

from lmr import LmrError
from lmr.apps.truth import read_truth, write_truth

NAMES = ["cat", "pickup truck", "dog"]


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "photos" / name for name in ("a.jpg", "b.jpg", "sub/c.jpg", "sub/a2.jpg")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def read(images: list[Path], text: str, **options: object) -> dict[int, int | None]:
    file = images[0].parent.parent / "labels.csv"
    file.write_text(text)
    return read_truth(file, images, NAMES, [images[0].parent]).classes


@pytest.mark.parametrize(
    "text",
    [
        "path,label\nphotos/a.jpg,cat\nphotos/sub/c.jpg,pickup_truck\n",  # relative to the file
        "a.jpg,Cat\nsub/c.jpg,pickup truck\n",  # relative to the folder of images, without a header
        "id,image,choice\n1,/data/upload/3/0123abcd-a.jpg,cat\n2,/data/local-files/?d=sub%2Fc.jpg,pickup_truck",
        "\ufefffile_name , label\r\n photos\\a.jpg, cat\r\n\r\nc.jpg,pickup truck\r\n",
        "a.jpg,cat\na.jpg,cat\nc.jpg,pickup truck\n",
        "path;label\r\na.jpg;cat\r\nc.jpg;pickup truck\r\n",  # of a spreadsheet where the comma is decimal
        "\ufeffid;path;label\n1;a.jpg;cat\n2;c.jpg;pickup truck\n",
        "a.jpg\tcat\nsub/c.jpg\tpickup truck\n",
    ],
)
def test_labels_from_elsewhere_are_read(images: list[Path], text: str) -> None:
    assert read(images, text) == {0: 0, 2: 1}


def test_absolute_paths_and_links_are_found(images: list[Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    assert read(images, f"{images[1]},dog\n{tmp_path}/link/a.jpg,cat\n") == {0: 0, 1: 2}


def test_files_that_are_gone_are_counted(images: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("a.jpg,cat\ngone.jpg,dog\n")
    truth = read_truth(file, images, NAMES, [tmp_path / "photos"])
    assert truth.classes == {0: 0}
    assert [row.line for row in truth.missing] == [2]
    assert "gone.jpg" in str(truth)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no labels"),
        ("path,label\n", "no labels"),
        ("a.jpg,cat\nb.jpg,dgo\n", "Line 2"),
        ("a.jpg,cat\n\nb.jpg,dog\na.jpg,dog\n", "Lines 1 and 4"),
        ("gone.jpg,cat\n", "None of the 1 labels"),
        ("a,b,c\n1,2,3\n", "path and label"),
        ("path,label\na.jpg\n", "line 2"),
        ("path,label\n,cat\n", "line 2"),
        ("a\0.jpg,cat\n", "line 1"),
    ],
)
def test_other_files_are_refused(images: list[Path], text: str, words: str) -> None:
    with pytest.raises(LmrError, match=words):
        read(images, text)


def test_written_labels_are_read_again(images: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    link = tmp_path / "link.csv"
    link.symlink_to(file)
    write_truth(link, [("photos/a.jpg", "dog")])
    assert link.is_symlink()
    assert "a.jpg,dog" in file.read_text()
    write_truth(file, [("photos/a.jpg", "cat"), ('photos/sub/"c".jpg', None), ("photos/b.jpg", "dog")])
    truth = read_truth(file, images, NAMES)
    assert truth.classes == {0: 0, 1: 2}
    assert len(truth.missing) == 1


def test_sub_folders_are_labels(tmp_path: Path) -> None:
    for name in ("cat", "pickup_truck"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").touch()
    paths = [tmp_path / "pickup_truck" / "a.png", tmp_path / "cat" / "a.png", tmp_path / "b.png"]
    truth = read_truth(tmp_path, paths, ["cat", "dog", "pickup truck"])
    assert truth.classes == {0: 2, 1: 0}
    with pytest.raises(LmrError, match=r"sub-folders of .*: there is no class 'pickup_truck'") as caught:
        read_truth(tmp_path, paths, ["cat", "dog"])
    assert "Line" not in str(caught.value)
