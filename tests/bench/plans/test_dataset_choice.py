"""Datasets of a plan that may be missing: only a missing one is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmr
from lmr.bench.inputs import find_dataset
from lmr.bench.plans.plan import Plan, parse_plan
from lmr.bench.plans.task import leave_out_missing, list_tasks
from lmr.data.dataset import MissingData


@pytest.fixture(autouse=True)
def fresh() -> None:
    find_dataset.cache_clear()


def make_plan(*datasets: str) -> Plan:
    given = {"methods": "lmr", "corruptions": "fog", "images": 10, "datasets": list(datasets)}
    return parse_plan("mine", "[[runs]]\nseeds = 1\n[[runs]]\nseeds = 2", Path(), given)


def test_one_that_may_be_missing_is_left_out_with_a_message(tmp_path: Path) -> None:
    said: list[str] = []
    tasks = list_tasks([make_plan("cifar100-c|", "photo-c|", "photo-c")], str(tmp_path), said.append)
    assert [(task.dataset, task.seed) for task in tasks] == [("photo-c", 1), ("photo-c", 2)]
    assert [task.run for task in tasks] == [task.run for task in list_tasks([make_plan("photo-c")])]
    (message,) = said
    assert "'cifar100-c' is not in" in message
    assert "`lmr fetch cifar100-c`" in message


def test_what_is_needed_wrong_or_damaged_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="Run `lmr fetch cifar10-c`"):
        leave_out_missing([make_plan("cifar10-c", "photo-c")], str(tmp_path))
    with pytest.raises(lmr.LmrError, match="no dataset 'cifar11-c'"):
        leave_out_missing([make_plan("cifar11-c|")], str(tmp_path))
    with pytest.raises(lmr.LmrError, match=r"'mine' has nothing left to run.*fetch cifar100-c.*fetch imagenet-c"):
        leave_out_missing([make_plan("cifar100-c|", "imagenet-c|")], str(tmp_path))
    (tmp_path / "CIFAR-100-C").mkdir()
    with pytest.raises(lmr.LmrError, match=r"no file .*labels\.npy"):
        leave_out_missing([make_plan("cifar100-c|")], str(tmp_path))
