"""Sets by name: what every one of them promises, where they are looked for, and what is said when one is missing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import set_maker as maker
from lmr.data.catalogue import EMBEDDED_SETS, NAMES, open_dataset
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.corruptions.apply import corrupt
from lmr.data.dataset import MissingData, find_root
from lmr.data.domains import DOMAIN_SETS
from lmr.data.names import ORDERS
from lmr.data.photographs import Photographs


def test_corrupted_photographs() -> None:
    found = open_dataset("photo-c")
    assert (found.name, found.domains, found.severities) == ("photo-c", CORRUPTIONS, (1, 2, 3, 4, 5))
    clean = Photographs().read("clean", 0, [40, 2])
    numbers = Photographs().numbers
    for domain in ("impulse_noise", "pixelate", "saturate"):
        for index, one, image in zip([40, 2], clean, found.read(domain, 4, [40, 2]), strict=True):
            expected = corrupt(one, domain, 4, seed=0, index=numbers[index], constants="cifar")
            np.testing.assert_array_equal(image, expected)
    np.testing.assert_array_equal(found.read("clean", 0, [40, 2]), clean)
    np.testing.assert_array_equal(found.labels("fog"), open_dataset("photo").labels("clean"))
    assert found.protocol["corruptions"] == "made by lmr with the cifar constants, seed 0"
    assert found.digest != open_dataset("photo").digest


def test_unknown_names_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cifar10c"):
        open_dataset("cifar10c")
    with pytest.raises(ValueError, match="domains"):
        open_dataset("nothing like it")
    for name in ("csv:/dev/zero", f"folder:{tmp_path / 'no'}", f"csv:{tmp_path / 'no.csv'}"):
        with pytest.raises(ValueError, match="Expected a folder"):
            open_dataset(name)
    for bad in ([-1], [2_000]):
        with pytest.raises(ValueError, match="has the images 0 to 1999"):
            open_dataset("photo").read("clean", 0, bad)


def test_every_name_opens_or_says_how(tmp_path: Path) -> None:
    for name in NAMES:
        if name in EMBEDDED_SETS:
            assert open_dataset(name, tmp_path).name == name
            continue
        advice = f"{name}/DOMAIN/CLASS" if name in DOMAIN_SETS else f"`lmr fetch {name}`"
        with pytest.raises(MissingData, match=advice) as caught:
            open_dataset(name, tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert caught.value.root == tmp_path
        assert advice in caught.value.advice


def test_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LMR_DATA", raising=False)
    assert find_root() == tmp_path / "home/.cache/lmr/data"
    monkeypatch.setenv("LMR_DATA", "~/sets")
    assert find_root() == tmp_path / "home/sets"
    assert find_root("/elsewhere") == Path("/elsewhere")
    images, labels = maker.make_cifar(10_000, 10)
    (tmp_path / "home/sets").mkdir(parents=True)
    np.savez(tmp_path / "home/sets/cifar10_test.npz", images=images, labels=labels)
    np.testing.assert_array_equal(open_dataset("cifar10").labels("clean"), labels)


def write_folder(folder: Path) -> None:
    for name, colour in (("red_fox", 10), ("owl", 200)):
        for number in (10, 9):
            maker.write_image(folder / name / f"img{number}.png", colour + number)


def test_folder_of_classes(tmp_path: Path) -> None:
    write_folder(tmp_path)
    name = f"folder:{tmp_path}"
    found = open_dataset(name)
    assert (found.name, found.classes, found.domains) == (name, ("owl", "red fox"), ("clean",))
    np.testing.assert_array_equal(found.labels("clean"), [0, 0, 1, 1])
    assert [maker.read_colour(p) for p in found.read("clean", 0, range(4))] == [209, 210, 19, 20]
    first = found.digest
    assert open_dataset(name).digest == first
    maker.write_image(tmp_path / "owl" / "img9.png", 3, (50, 60))
    assert open_dataset(name).digest != first


PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_page_runs_and_names_every_set_and_order(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, {})
    shown = capsys.readouterr().out
    assert "4 batches, order" in shown
    assert "contrast 36 (32, 32, 3)" in shown
    for name in (*NAMES, *ORDERS):
        assert f"`{name}`" in PAGE
