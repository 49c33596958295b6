"""The benchmark of the text side: what it compares is the same gradient, and what it says is what it did."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from lab import text_cost
from lab.text_cost import SMALL, VARIANTS, TextGradient, TextSizes, main

TINY = dataclasses.replace(SMALL, classes=12, batch_size=6, chunk=5, context=20, longest=7, width=16, features=8)


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_variants_compute_the_same_gradient_in_their_own_way() -> None:
    text = TextGradient(TINY)
    text.tower.double()
    text.images, text.rows = text.images.double(), text.rows.detach().double().requires_grad_()
    seen: list[tuple[int, int]] = []
    text.tower.register_forward_hook(
        lambda _, given, out: seen.append(tuple(given[0].shape)) if out.requires_grad else None
    )
    gradients = {}
    for variant in VARIANTS:
        seen.clear()
        gradients[variant] = text.differentiate(variant, 12)
        cut, chunked = VARIANTS[variant]
        assert {width for _, width in seen} == {7 if cut else 20}
        assert sorted(size for size, _ in seen) == ([2, 5, 5] if chunked else [12])
    assert gradients["plain"].abs().max() > 1e-3
    for gradient in gradients.values():
        torch.testing.assert_close(gradient, gradients["plain"], atol=1e-10, rtol=0)


def test_one_graph_stays_below_the_limit() -> None:
    full = TextSizes()
    assert full.count_classes("plain") < 1000 == full.count_classes("cut") == full.count_classes("chunked")
    assert dataclasses.replace(full, limit_gb=100.0).count_classes("plain") == 1000
    assert dataclasses.replace(full, limit_gb=1.0).count_classes("cut") < 1000
    assert dataclasses.replace(full, limit_gb=1e-9).count_classes("plain") == 2


def test_table_has_a_row_for_each_and_says_who_took_fewer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(text_cost, "measure_memory", lambda sizes, variant: 3_000_000)
    given = {key: value for key, value in dataclasses.asdict(TINY).items() if key != "limit_gb"}
    words = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    assert main(["--small", "--rounds=2", "--limit-gb=0.0002", *words]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines()[4:8]}
    assert list(rows) == list(VARIANTS)
    fewer = dataclasses.replace(TINY, limit_gb=0.0002).count_classes("plain")
    assert 2 <= fewer < 12
    assert rows["plain"][:3] == ["20", str(fewer), str(fewer)]
    assert rows["cut"][:3] == ["7", "12", "12"]
    assert rows["chunked"][:3] == ["20", "5", "12"]
    assert rows["both"][:3] == ["7", "5", "12"]
    assert rows["plain"][-1] == "-"
    assert all(float(rows[name][-1]) < 1e-4 for name in ("cut", "chunked", "both"))
    assert all(float(row[3]) >= 0 and row[5] == "3" for row in rows.values())
    assert f"plain took {fewer} of 12 classes" in shown
    assert len({len(line) for line in shown.splitlines()[2:8]}) == 1  # aligned


def test_memory_of_a_fresh_process_is_a_number_and_chunks_need_less() -> None:
    sizes = dataclasses.replace(SMALL, classes=200, chunk=5)
    plain, both = (text_cost.measure_memory(sizes, variant) for variant in ("plain", "both"))
    assert 0 <= both < plain
    assert plain > 40_000_000  # 200 x 77 tokens x 2 blocks x 64 wide x 4 bytes x about 10


@pytest.mark.parametrize("bad", [["--rounds=0"], ["--classes=1"], ["--longest=99"], ["--heads=3"], ["--chunk=-1"]])
def test_bad_sizes_are_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--small", *bad]) == 2
    assert "python -m lab.text_cost: Expected" in capsys.readouterr().err


def test_help_names_the_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("--rounds", "--small"))
    for field in dataclasses.fields(TextSizes):
        name, small = field.name.replace("_", "-"), getattr(SMALL, field.name)
        assert f"--{name} " in shown
        given = rf"--{name} .*?\(default: {field.default:g}" + ("" if small == field.default else f"; small: {small}")
        assert re.search(given + r"\)", shown, re.DOTALL), name
    assert "--measure" not in shown
