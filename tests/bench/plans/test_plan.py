from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.bench.plans.plan import Plan, list_plans, parse_plan, read_plan
from lmr.core.spec import parse_spec

PAPER_SPECS = {  # what the appendix of the paper says of each method on each benchmark, and the batch sizes it states
    "tda": {"pos_alpha": 2.0, "pos_beta": 5.0, "neg_alpha": 0.117, "neg_beta": 1.0, "pos_capacity": 3, "batch": 1},
    "ecalp": {"k_text": 3, "k_image": 8, "gamma": 10.0, "alpha": 1.0, "iterations": 3, "batch": 1},
    "tent": {"lr": 2.5e-4, "weight_decay": 0.0},
    "eta": {"lr": 2.5e-4, "weight_decay": 0.0, "margin": 0.4, "diversity": 0.05},
    "batclip": {"weight_decay": 0.01},
    "mint": {"lr": 7e-3, "prior": 10000.0, "batch": 64},
    "bitta": {"optimizer": "adamw", "alpha": -3.8e-4, "beta": 0.83, "high": 0.1, "unlearn": 1.2},
    "lmr": {"delta": 0.03, "negatives": 5, "tau": 0.3, "eta": 0.05, "mu": 0.8, "batch": 64},
}
PAPER_CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "cifar10-c": {
        "tent": {"optimizer": "adam"}, "eta": {"optimizer": "adam"}, "bitta": {"lr": 1e-3, "batch": 200},
        "batclip": {"optimizer": "adamw", "lr": 1e-3, "batch": 200}, "lmr": {"lr": 1e-3, "beta": 3.0, "gamma0": 0.3},
    },
    "cifar100-c": {
        "tent": {"optimizer": "adam"}, "eta": {"optimizer": "adam"}, "bitta": {"lr": 5e-4, "batch": 200},
        "batclip": {"optimizer": "adam", "lr": 5e-4, "batch": 200}, "lmr": {"lr": 1e-3, "beta": 1.0, "gamma0": 4.0},
    },
    "imagenet-c": {
        "tent": {"optimizer": "sgd"}, "eta": {"optimizer": "sgd"}, "bitta": {"lr": 5e-4, "batch": 64},
        "batclip": {"optimizer": "adamw", "lr": 5e-4, "batch": 64}, "lmr": {"lr": 1e-3, "beta": 1.0, "gamma0": 4.0},
    },
    "imagenet-variants": {
        "tent": {"optimizer": "sgd"}, "eta": {"optimizer": "sgd"}, "bitta": {"lr": 5e-4, "batch": 64},
        "batclip": {"optimizer": "adamw", "lr": 5e-4, "batch": 64}, "lmr": {"lr": 1.5e-3, "beta": 1.0, "gamma0": 4.0},
    },
}  # fmt: skip


def write_cupl(folder: Path) -> list[str]:
    path = folder / "CuPL_image_prompts.json"
    path.write_text(json.dumps({"tench": ["A tench is a fish."], "goldfish": ["A goldfish is orange."]}))
    return [str(path)]


def open_plan(name: str, folder: Path) -> Plan:
    return read_plan(name, {"prompts": write_cupl(folder)} if name == "imagenet-c-cupl" else None)


@pytest.mark.parametrize("name", list_plans())
def test_every_plan_of_the_package_can_be_read(name: str, tmp_path: Path) -> None:
    plan = open_plan(name, tmp_path)
    assert plan.title
    assert plan.parts
    for part in plan.parts:
        assert set(part.severities) <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", PAPER_CHANGES)
def test_plans_have_the_values_of_the_paper(name: str) -> None:
    (part,) = read_plan(name).parts
    assert len(part.methods) == 9
    for entry in part.methods:
        method, values = parse_spec(entry.spec)
        expected = PAPER_SPECS.get(method, {}) | PAPER_CHANGES[name].get(method, {})
        assert {key: (values | {"batch": entry.batch_size})[key] for key in expected} == expected
    assert part.batch_sizes == ()
    assert part.severities == (5,)
    assert part.images is None


def test_tables_have_the_methods_of_the_paper(tmp_path: Path) -> None:
    def list_names(plan: str) -> list[str]:
        return [parse_spec(entry.spec)[0] for entry in open_plan(plan, tmp_path).parts[0].methods]

    everything = ["zeroshot", "tda", "ecalp", "tent", "eta", "batclip", "mint", "bitta", "lmr"]
    assert list_names("imagenet-c") == everything
    assert list_names("imagenet-c-vitl14") == [name for name in everything if name != "bitta"]
    assert list_names("imagenet-c-cupl") == [name for name in everything if name not in ("batclip", "bitta")]
    assert list_names("efficiency") == everything
    assert read_plan("efficiency").parts[0].batch_sizes == (1,)
    assert read_plan("imagenet-variants").parts[0].datasets == (
        "imagenet-a", "imagenet-r", "imagenet-sketch", "imagenet-v2",
    )  # fmt: skip


TOML = """
title = "Mine"
datasets = "photo-c"
severities = [1, 5]

[[runs]]
methods = ["zeroshot", "lmr(lr=2e-3)"]
batch_sizes = [16, 32]

[[runs]]
methods = ["tent", { "Ours" = "lmr" }]
preset = ["imagenet-variants", "imagenet"]
severities = 3
"""


def test_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    plan = read_plan(path)
    assert (plan.name, plan.title) == ("mine", "Mine")
    first, second = plan.parts
    assert [entry.label for entry in first.methods] == ["zero-shot", "LMR (lr=0.002)"]
    assert (first.severities, first.batch_sizes, first.seeds) == ((1, 5), (16, 32), (1,))
    assert second.severities == (3,)
    tent, entry = second.methods
    assert (tent.label, entry.label) == ("TENT", "Ours")
    assert parse_spec(entry.spec)[1]["lr"] == 1.5e-3


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"methods": "lmrr"}, "no method 'lmrr'.*Did you mean 'lmr'"),
        ({"methods": ["lmr", "lmr"]}, "Two methods are called 'LMR'"),
        ({"preset": "cifar-c"}, "No method has a preset 'cifar-c'.*Did you mean"),
        ({"timing": "late"}, "one of wait, live for timing"),
        ({"corruptions": ["fog", "fog"]}, "none twice in corruptions"),
        ({"severities": 6}, "whole numbers from 1 to 5 for severities, got 6"),
        ({"batch_sizes": 0}, "whole numbers from 1 for batch_sizes"),
        ({"images": [1, 2]}, "one value for images"),
        ({"mix": "yes"}, "true or false for mix"),
        ({"concentration": 0}, "positive number for concentration"),
        ({"prompts": [["no braces"]]}, "templates with {}"),
        ({"corruption": "fog"}, "an unknown key 'corruption'.*Did you mean 'corruptions'"),
    ],
)
def test_wrong_plan_gets_a_sentence(table: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match=f"(?s){sentence}"):
        parse_plan("wrong", "", tmp_path, {"methods": "lmr", "datasets": "photo-c"} | table)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("methods = ", "not a TOML file"),
        (f"runs = {'1' * 10_001}", "too many digits"),
        ("runs = " + "[" * 10_000, "too deeply"),
        ("runs = 3", r"\[\[runs\]\]"),
        ("", "which methods"),
    ],
)
def test_file_that_is_no_plan_gets_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(lmr.LmrError, match=sentence):
        read_plan(path)


def test_plan_that_is_missing_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match=r"no plan 'phto'.*Did you mean 'photo'"):
        read_plan("phto")
    with pytest.raises(lmr.LmrError, match=r"Cannot read the plan '/dev/zero': .*100,000,000 bytes"):
        read_plan("/dev/zero")
    with pytest.raises(lmr.LmrError, match="Cannot read the plan"):
        read_plan(tmp_path)


def test_shares_of_all_classes_can_be_given_in_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    text = 'title = "t"\nmethods = ["steady(prior=PRIOR)"]\ndatasets = "photo-c"\ncorruptions = ["fog"]\n'
    text += 'severities = 5\nbackbones = "photo"\nbatch_sizes = 8\n[[runs]]\ntitle = "r"\n'
    path.write_text(text.replace("PRIOR", "(0.8, 0.1, 0.1)"))
    assert "prior=(0.8, 0.1, 0.1)" in read_plan(str(path)).parts[0].methods[0].spec
    path.write_text(text.replace("PRIOR", "{'car': 0.8}"))
    with pytest.raises(lmr.LmrError, match="shares"):
        read_plan(str(path))
