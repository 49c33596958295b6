from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections import Counter
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

import pytest

import lmr
from lmr.report.protocol import find_differences, match_corruption_table
from lmr.report.published import PATH, find_published, list_table_names, read_tables
from lmr.report.traits import expand_spec
from real_data import FOLDER, needs
from row_maker import B16, L14, complete, make_row

PAPER = FOLDER.parent / "paper" / "lmr.tex"
CONTENT: dict[str, Any] = json.loads(PATH.read_text())
SIZES = {  # cells of the paper's six tables
    "tab:main_results": 27 * 16,
    "tab:ood_results": 9 * 5,
    "tab:component_ablation": 6 * 3,
    "tab:efficiency": 9 * 3,
    "tab:imagenet_c_vitl14": 8 * 16,
    "tab:template": 7 * 16,
}
AVERAGED = [
    (table["name"], row["printed"], row["values"])
    for table in CONTENT["tables"]
    if table["columns"][-1] == "average"
    for row in table["rows"]
]


def read_paper_tables() -> dict[str, list[str]]:
    """The cells of every table in the paper's source that are numbers, in order; comments do not count."""
    text = "\n".join(re.sub(r"(?<!\\)%.*", "", line) for line in PAPER.read_text().splitlines())
    found = {}
    for environment in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", text, re.DOTALL):
        label = re.search(r"\\label\{(.*?)\}", environment)
        assert label is not None
        cells = re.split(r"&|\\\\", environment.split(r"\toprule")[1].split(r"\bottomrule")[0])
        plain = (re.sub(r"\\textbf|\\underline|\\midrule|[{}\s]", "", cell) for cell in cells)
        found[label[1]] = [cell for cell in plain if re.fullmatch(r"\d+(\.\d+)?K?", cell)]
    return found


@needs("../paper/lmr.tex")
def test_every_number_of_the_papers_tables_is_there_and_no_other() -> None:
    printed = read_paper_tables()
    ours: dict[str, list[str]] = {}
    for table in CONTENT["tables"]:
        for row in table["rows"]:
            ours.setdefault(table["source"], []).extend(row["values"])
    assert ours == printed


def test_the_names_of_the_tables_come_without_anything_heavy() -> None:
    assert list_table_names() == list(read_tables())
    code = "import sys; from lmr.report.published import list_table_names as f; f(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


def test_the_tables_have_the_papers_sizes() -> None:
    counts = Counter[str]()
    for table in read_tables().values():
        counts[table.source] += sum(len(row.cells) for row in table.rows)
    assert counts == SIZES
    assert sum(counts.values()) == 762


@pytest.mark.parametrize(("table", "row", "values"), AVERAGED, ids=lambda x: x if isinstance(x, str) else "")
def test_averages_are_the_means_of_their_columns(table: str, row: str, values: list[str]) -> None:
    """To rounding, either way at a tie; but for the one row in which the paper disagrees with itself."""
    columns = [Decimal(value) for value in values[:-1]]
    mean = sum(columns) / len(columns)
    rounded = {str(mean.quantize(Decimal("0.01"), way)) for way in (ROUND_HALF_UP, ROUND_HALF_EVEN)}
    faults = {(f["table"], f["row"]): f for f in CONTENT["paper"]["faults"]}
    if (table, row) in faults:
        assert values[-1] == faults[table, row]["average"] not in rounded
        assert faults[table, row]["mean_of_columns"] in rounded
    else:
        assert values[-1] in rounded


def test_every_published_row_can_be_run_here() -> None:
    backbone = lmr.load()
    classifier = backbone.classifier(backbone.tokenizer.names)  # so many classes have the published defaults
    for table in read_tables().values():
        for row in table.rows:
            made = lmr.create(row.spec, classifier)
            assert table.find(made.spec) is row
            assert expand_spec(made.spec) == expand_spec(row.spec)


def test_parts_of_lmr_are_told_from_one_another() -> None:
    table = find_published("ablation-components")
    printed = {}
    for spec in ("zeroshot()", "lmr(pmr=False)", "lmr(am=False, bc=False)", "lmr(bc=False)", "lmr(am=False)", "lmr()"):
        row = table.find(complete(spec, "cifar10-c"))
        assert row is not None
        printed[row.printed] = spec
    assert list(printed) == [row.printed for row in table.rows]
    assert find_published("cifar10-c").find(complete("lmr(am=False)")) is None


@pytest.mark.parametrize(
    ("dataset", "backbone", "prompts", "table"),
    [
        ("cifar10-c", B16, "a photo of a {}.", "cifar10-c"),
        ("cifar10-c", "photo", "a {}", "cifar10-c"),
        ("imagenet-c", B16, "a photo of a {}.", "imagenet-c"),
        ("imagenet-c-5000", L14, "a photo of a {}.", "imagenet-c-vitl14"),
        ("imagenet-c-5000", B16, "cupl", "imagenet-c-cupl"),
        ("photo-c", "photo", "a photo of a {}.", None),
        ("imagenet-a", B16, "a photo of a {}.", None),
    ],
)
def test_runs_find_their_published_table(dataset: str, backbone: str, prompts: str, table: str | None) -> None:
    found = match_corruption_table(dataset, backbone, prompts)
    assert (found.name if found else None) == table


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({}, []),
        ({"dataset": "photo-c"}, ["dataset photo-c (paper: cifar10-c)"]),
        ({"backbone": {"name": "photo"}}, [f"backbone photo (paper: {B16})"]),
        ({"backbone": {"name": "ViT-B-16"}}, []),
        ({"images": 500}, ["images 500 (paper: 10000, implied)"]),
        ({"batch_size": 1}, ["batch size 1 (paper: 64)"]),
        ({"prompts": {"name": "a bad {}."}}, ["prompts a bad {}. (paper: a photo of a {}.)"]),
        ({"order": {"kind": "sorted"}}, ["order sorted (paper: shuffle, implied)"]),
        ({"seed": 7, "emit": "before"}, []),
        ({"protocol": {"corruptions": "files in the layout of CIFAR-10-C, not checked"}}, []),
        ({"protocol": {"corruptions": "made by lmr with x"}}, ["data made by lmr (paper: official files)"]),
        ({"protocol": {"corruptions": "not the official files of CIFAR-10-C: …"}}, ["not the official files"]),
        ({"protocol": {"images": "not the official test set, 9 images"}}, ["not the official test set"]),
    ],
)
def test_differences_of_protocol_are_named(change: dict[str, Any], phrase: list[str]) -> None:
    table = find_published("cifar10-c")
    row = make_row("LMR", complete("lmr", "cifar10-c"), "frost", 0.5, **change)
    published = table.find(row.spec)
    assert published is not None
    assert find_differences(row, table, published) == phrase


def test_differences_of_arguments_are_named() -> None:
    """The paper gives CIFAR-10-C values of its own; the component table's presets follow the column."""
    table, parts = find_published("cifar10-c"), find_published("ablation-components")
    row = make_row("LMR", complete("lmr(lr=0.5)", "cifar100-c"), "frost", 0.5)
    published, part = table.find(row.spec), parts.find(row.spec)
    assert published is not None
    assert part is not None
    phrases = ["lr 0.5 (paper: 0.001)", "gamma0 4.0 (paper: 0.3)", "beta 1.0 (paper: 3.0)"]
    assert find_differences(row, table, published) == phrases
    assert find_differences(row, parts, part) == phrases
    assert find_differences(dataclasses.replace(row, dataset="cifar100-c"), parts, part) == [phrases[0]]


def test_an_argument_that_the_method_no_longer_has_is_a_difference() -> None:
    table = find_published("cifar10-c")
    spec = complete("lmr", "cifar10-c")
    published = table.find(spec)
    assert published is not None
    for value, differs in ((1, ["gone 1 (paper: None)"]), (None, [])):
        row = make_row("LMR", spec.replace(")", f", gone={value})"), "frost", 0.5)
        assert find_differences(row, table, published) == differs
