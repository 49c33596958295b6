from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from PIL import Image

from lmr.bench.plans.plan import list_plans
from lmr.report import drawing as drawing_module
from lmr.report.drawing import DPI, PALETTE, SIZE, Drawing
from lmr.report.figures import draw_figures, list_absent
from lmr.report.groups import gather
from lmr.report.runs import read_runs
from row_maker import B16, L14, complete, make_row, make_samples, make_world, write_runs

NUMBERS = ["1a", "1b", "1c", "1d", "3a", "3b", "3c", "3d"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs"), make_world())


@pytest.fixture(scope="module")
def drawings(folder: Path) -> dict[str, Drawing]:
    runs = read_runs([folder])
    found = draw_figures(runs, gather(runs.rows))
    assert runs.notes == []
    return {drawing.number: drawing for drawing in found}


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels, where a test reads only names and captions."""
    monkeypatch.setattr(drawing_module, "DPI", 20)


def read_texts(drawing: Drawing) -> list[str]:
    return [node.text or "" for node in xml.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}text")]


def test_all_eight_figures_are_drawn(drawings: dict[str, Drawing]) -> None:
    assert list(drawings) == NUMBERS
    assert [drawing.name for drawing in drawings.values()] == [f"figure-{number}" for number in NUMBERS]


@pytest.mark.parametrize("number", NUMBERS)
def test_figures_are_fit_for_print(drawings: dict[str, Drawing], number: str) -> None:
    """A column wide at 300 dots per inch, in letters of at least seven points, text as text."""
    drawing = drawings[number]
    with Image.open(io.BytesIO(drawing.png)) as picture:
        assert picture.size == (round(SIZE[0] * DPI), round(SIZE[1] * DPI))
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", drawing.svg)]
    assert sizes
    assert min(sizes) >= 7
    assert len(drawing.caption) > 40


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("1b", ["gaussian noise", "frost", "fog", "contrast"]),
        ("1c", ["shifted predictions", "clean predictions", "labels"]),
        ("1d", ["PMR only", "PMR + AM", "25.0 %", "20.0 %"]),
        ("3a", ["MINT", "BATCLIP", "LMR", "64"]),
        ("3b", ["by gap", "top class only", "20"]),
        ("3c", ["pocket-c", "δ = 0.03"]),
        ("3d", ["TENT", "MINT", "LMR"]),
    ],
)
def test_lines_are_named_in_the_figure(drawings: dict[str, Drawing], number: str, words: list[str]) -> None:
    texts = [text.strip() for text in read_texts(drawings[number])]
    for word in words:
        assert word in texts


def test_the_share_of_recoverable_errors_is_counted(folder: Path, drawings: dict[str, Drawing]) -> None:
    row = next(row for row in make_world() if (row.method, row.domain, row.severity) == ("zeroshot", "frost", 5))
    samples = make_samples(row)
    gaps = samples["gap"][samples["true"] != samples["predicted"]]
    share = f"{100 * (gaps <= 0.03).mean():.1f} %"
    assert f"{share} within δ = 0.03" in read_texts(drawings["1a"])
    assert share in drawings["1a"].caption


def test_the_same_runs_give_the_same_files(drawings: dict[str, Drawing], tmp_path: Path) -> None:
    write_runs(tmp_path, [row for row in make_world() if row.method == "zeroshot" and row.domain != "clean"])
    runs = read_runs([tmp_path])
    again = draw_figures(runs, gather(runs.rows))
    assert [drawing.number for drawing in again] == ["1a", "1b"]
    for drawing in again:
        assert drawing == drawings[drawing.number]
        paths = drawing.write(tmp_path / "new")
        assert [path.suffix for path in paths] == [".svg", ".png"]
        assert paths[1].read_bytes() == drawing.png


def test_what_cannot_be_drawn_is_left_out_with_a_word(tmp_path: Path) -> None:
    write_runs(tmp_path, [make_row("LMR", complete("lmr"), "frost", 0.5)])
    runs = read_runs([tmp_path])
    assert draw_figures(runs, gather(runs.rows)) == []
    assert runs.notes == []
    absent = list_absent([])
    named = dict(re.findall(r"((?:\d[a-d], )*\d[a-d]) \(([a-z0-9-]+)\)", absent))
    assert ", ".join(named).split(", ") == NUMBERS
    assert {*named.values(), *(f"photo-{plan}" for plan in named.values())} <= set(list_plans())
    assert "\n" not in absent


def test_runs_without_samples_still_have_the_figures_of_rows(tmp_path: Path) -> None:
    write_runs(tmp_path, make_world(), samples=False)
    runs = read_runs([tmp_path])
    drawings = draw_figures(runs, gather(runs.rows))
    assert [drawing.number for drawing in drawings] == ["1d", "3a", "3b", "3c"]
    assert all(f" {number}" in list_absent(drawings) for number in ("1a", "1b", "1c", "3d"))
    assert all("no samples" in note for note in runs.notes)
    assert len(runs.notes) == len(set(runs.notes)) > 0


@pytest.mark.usefixtures("coarse")
def test_two_datasets_have_figures_of_their_own_but_share_delta(tmp_path: Path) -> None:
    rows = make_world() + make_world("cifar10-c")
    write_runs(tmp_path, [row for row in rows if row.domain in ("frost", "fog")], samples=False)
    runs = read_runs([tmp_path])
    drawings = draw_figures(runs, gather(runs.rows))
    names = [drawing.name for drawing in drawings]
    assert len(names) == len(set(names)) == 7
    assert {"figure-3a-pocket-c", "figure-3a-cifar10-c", "figure-3c"} <= set(names)
    shared = next(drawing for drawing in drawings if drawing.number == "3c")
    assert {"pocket-c", "cifar10-c"} <= set(read_texts(shared))


@pytest.mark.usefixtures("coarse")
def test_captions_say_where_the_numbers_are_from(tmp_path: Path, drawings: dict[str, Drawing]) -> None:
    for drawing in drawings.values():
        assert "pocket-c, openai/clip-vit-base-patch16, " in drawing.caption
        assert re.search(r"\b\d+ images", drawing.caption)
    other = {"backbone": {"name": L14, "weights": "v", "dtype": "float32"}}
    rows = [r for r in [*make_world(), *make_world(**other)] if r.domain == "frost" and r.severity == 5]
    runs = read_runs([write_runs(tmp_path, rows)])
    found = draw_figures(runs, gather(runs.rows))
    assert len({drawing.caption for drawing in found}) == len(found)
    shared = next(drawing for drawing in found if drawing.number == "3c")
    assert {"pocket-c (1)", "pocket-c (2)"} <= set(read_texts(shared))
    assert f"{B16}, severity 5, frost, 1000 images each, seed 1 (1); pocket-c, {L14}" in shared.caption


def test_colours_are_distinct_without_hue() -> None:
    """On grey paper lightness is what is left."""

    def lighten(colour: str) -> float:
        return sum(w * int(colour[k : k + 2], 16) for w, k in ((0.299, 1), (0.587, 3), (0.114, 5)))

    lights = sorted(lighten(colour) for colour in PALETTE[:4])
    assert min(b - a for a, b in itertools.pairwise(lights)) > 5
