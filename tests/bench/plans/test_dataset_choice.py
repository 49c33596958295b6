"""Datasets that a plan may choose from: the first that is there, and only a missing one is passed over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lmr
from lmr.bench.inputs import find_dataset
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import choose_dataset, choose_datasets, list_tasks, split_datasets
from lmr.cli.parser import parse
from lmr.data.dataset import MissingData
from set_maker import make_cifar


@pytest.fixture(autouse=True)
def fresh() -> None:
    find_dataset.cache_clear()


def write_test_set(root: Path, classes: int = 10) -> None:
    images, labels = make_cifar(10_000, classes)
    np.savez(root / f"cifar{classes}_test.npz", images=images, labels=labels)


@pytest.mark.parametrize(
    ("entry", "names", "optional"),
    [
        ("cifar10-c", ["cifar10-c"], False),
        ("cifar10-c|photo-c", ["cifar10-c", "photo-c"], False),
        ("cifar10-c | photo-c", ["cifar10-c", "photo-c"], False),
        ("cifar100-c|", ["cifar100-c"], True),
        ("cifar10-c|cifar100-c|", ["cifar10-c", "cifar100-c"], True),
        ("folder:a|b", ["folder:a|b"], False),  # a path may hold any character
        ("cifar10-c|folder:a|b|", ["cifar10-c", "folder:a|b|"], False),
    ],
)
def test_entries_are_split(entry: str, names: list[str], optional: bool) -> None:
    assert split_datasets(entry) == (names, optional)


@pytest.mark.parametrize("entry", ["|", "|photo-c", "cifar10-c||photo-c", "", " "])
def test_an_entry_without_a_name_gets_a_sentence(entry: str) -> None:
    with pytest.raises(lmr.LmrError, match="Cannot read the datasets"):
        split_datasets(entry)


def test_the_first_that_is_there_is_used(tmp_path: Path) -> None:
    instead = choose_dataset("cifar10-c|photo-c", str(tmp_path))
    assert instead.name == "photo-c"
    assert f"'cifar10-c' is not in {str(tmp_path)!r}: 'photo-c' is used instead, 2,000 images." in instead.message
    assert "`lmr fetch cifar10-c` gets it." in instead.message
    assert "`lmr fetch cifar10`" in instead.message  # the clean images are sufficient
    write_test_set(tmp_path)
    whole = choose_dataset("cifar10-c|photo-c", str(tmp_path))
    assert (whole.name, whole.message) == ("cifar10-c", "")


def test_one_that_may_be_missing_is_left_out(tmp_path: Path) -> None:
    left = choose_dataset("cifar100-c|", str(tmp_path))
    assert left.name is None
    assert "it is left out. `lmr fetch cifar100-c` gets it." in left.message
    write_test_set(tmp_path, 100)
    assert choose_dataset("cifar100-c|", str(tmp_path)).name == "cifar100-c"


def test_without_a_choice_a_missing_set_stays_an_error(tmp_path: Path) -> None:
    for entry in ("cifar10-c", "cifar10-c|cifar100-c"):
        with pytest.raises(MissingData, match="Run `lmr fetch cifar10-c`"):
            choose_dataset(entry, str(tmp_path))
    with pytest.raises(lmr.LmrError, match="no dataset 'cifar11-c'"):  # a wrong name is no missing set
        choose_dataset("cifar11-c|photo-c", str(tmp_path))


def test_a_damaged_set_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cifar10_test.npz").write_bytes(b"not an archive")
    with pytest.raises(lmr.LmrError, match="damaged or incomplete") as caught:
        choose_dataset("cifar10-c|photo-c", str(tmp_path))
    assert not isinstance(caught.value, MissingData)
    (tmp_path / "CIFAR-100-C").mkdir()
    with pytest.raises(lmr.LmrError, match=r"no file .*labels\.npy"):
        choose_dataset("cifar100-c|", str(tmp_path))


def test_parts_without_data_go_and_a_plan_without_parts_is_an_error(tmp_path: Path) -> None:
    text = "methods = 'lmr'\n[[runs]]\ndatasets = 'cifar100-c|'\n[[runs]]\ndatasets = ['cifar10-c|photo-c', 'photo-c']"
    (plan,), choices = choose_datasets([parse_plan("mine", text, Path())], str(tmp_path))
    assert [part.datasets for part in plan.parts] == [("photo-c",)]
    assert [choice.name for choice in choices] == [None, "photo-c", "photo-c"]
    nothing = parse_plan("mine", "methods = 'lmr'\ndatasets = ['cifar100-c|', 'imagenet-c|']", Path())
    with pytest.raises(lmr.LmrError, match=r"'mine' has nothing left to run.*fetch cifar100-c.*fetch imagenet-c"):
        list_tasks([nothing], str(tmp_path))


def test_runs_are_those_of_the_set_that_was_used(tmp_path: Path) -> None:
    """Under its own name: the same hash and the same command as without a choice; each entry is told once."""
    table = {"methods": "lmr", "corruptions": ["fog", "snow"], "images": 10}
    text = "[[runs]]\nseeds = 1\n[[runs]]\nseeds = 2"
    said: list[str] = []
    chosen = parse_plan("test", text, Path(), table | {"datasets": "cifar10-c|photo-c"})
    tasks = list_tasks([chosen], str(tmp_path), said.append)
    plain = list_tasks([parse_plan("test", text, Path(), table | {"datasets": "photo-c"})], str(tmp_path), said.append)
    assert [task.run for task in tasks] == [task.run for task in plain]
    assert [task.command for task in tasks] == [task.command for task in plain]
    assert {task.dataset for task in tasks} == {"photo-c"}
    assert len(said) == 1


def test_the_command_says_what_it_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[list[str], str]:
        options = parse(["bench", "--dry-run", "--root", str(tmp_path), *words])
        assert options.run(options) is None
        shown = capsys.readouterr()
        return shown.out.splitlines(), shown.err

    data = ["--datasets", "cifar10-c|photo-c", "cifar100-c|"]
    lines, said = run("--methods", "lmr", "--corruptions", "fog", "--images", "10", *data)
    assert lines[-1].startswith("Runs: 1, images: 10, passes of an image: 30 ")
    assert "--datasets photo-c " in lines[0]
    assert said.count("lmr: The dataset 'cifar10-c'") == said.count("lmr: The dataset 'cifar100-c'") == 1
