"""The pages of docs/tutorials: every block runs, in order, in an empty folder, and prints what the page shows.

A ``python`` block runs in the names of the page. A ``bash`` block is commands of ``lmr``. A block with a title is a
file that the reader writes. A ``text`` block is what the block before it printed: ``...`` stands for anything, and
numbers with a decimal point may differ by 3 % or by 0.5, because on another machine an image more or less is right.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lmr.cli import main
from page_outputs import agree

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    place: str
    language: str
    title: str | None
    text: str


def find_blocks(name: str) -> list[Block]:
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    return [
        Block(f"{name}.md, line {page.count(chr(10), 0, match.start()) + 1}", *match.group("language", "title", "text"))
        for match in BLOCK.finditer(page)
    ]


def run_block(block: Block, names: dict[str, Any]) -> str:
    """What a block prints."""
    screen = io.BytesIO()
    out = io.TextIOWrapper(screen, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, block.place, "exec"), names)
        elif block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "lmr", f"{block.place}: {line}"
                code = main(words)
                assert code == 0, f"{block.place}: {line} ended with {code}\n{screen.getvalue().decode()}"
        else:
            raise AssertionError(f"{block.place}: a block of {block.language!r} has no title to write it to")
    return screen.getvalue().decode()


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize("name", PAGES)
def test_page_runs_and_prints_what_it_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    for block in find_blocks(name):
        if block.language == "text":
            assert printed is not None, f"{block.place}: nothing was run before this output"
            assert agree(block.text, printed), f"{block.place} shows\n\n{block.text}\nbut it is\n\n{printed}"
            printed = None
        else:
            printed = run_block(block, names)


def test_notebook_runs_and_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    figures: list[int] = []
    monkeypatch.setattr(pyplot, "show", lambda: figures.extend(pyplot.get_fignums()) or pyplot.close("all"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads((FOLDER / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            block = Block(f"quickstart.ipynb, cell {number}", "python", None, "".join(cell["source"]))
            printed = run_block(block, names)
            shown = "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
            assert agree(shown, printed), f"cell {number} shows\n\n{shown}\nbut it is\n\n{printed}"
            pictures = sum("image/png" in output.get("data", {}) for output in cell["outputs"])
            assert pictures == len(figures)
            figures.clear()
