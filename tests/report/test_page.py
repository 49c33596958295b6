from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lmr.bench.running.row import Row
from lmr.report.drawing import Drawing
from lmr.report.published import find_published
from lmr.report.report import build_page, make_leaderboard, make_report
from lmr.report.runs import Runs
from lmr.report.table import Cell, Column, Line, Table
from lmr.report.traits import LineKind
from row_maker import complete, make_row, make_world, write_runs

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; Debian has it: apt-get install chromium")


class Reader(HTMLParser):
    """Collects elements and checks that they close in order."""

    VOID = ("meta", "link", "input", "br", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def read_data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def make_evil_rows() -> list[Row]:
    fields = {"dataset": f"folder:{EVIL}", "backbone": {"name": EVIL, "weights": EVIL, "dtype": EVIL}}
    rows = [make_row(EVIL, complete("lmr(lr=0.1)"), domain, 0.5, command=EVIL, **fields) for domain in ("frost", EVIL)]
    return [*rows, make_row("LMR", complete("lmr"), "frost", 0.6, **fields)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of made-up runs: one beside published numbers, one with names that try to break out."""
    root = tmp_path_factory.mktemp("reports")
    chosen = [row for row in make_world("cifar100-c", images=10000) if row.domain in ("frost", "fog", "clean")]
    again = [make_row("LMR", complete("lmr"), d, 0.5, dataset="cifar100-c", seed=2) for d in ("frost", "fog")]
    make_report([write_runs(root / "runs", chosen + again)], root / "plain")
    make_report([write_runs(root / "bad", make_evil_rows())], root / "evil", figures=False)
    return root


@pytest.mark.parametrize("name", ["plain", "evil"])
def test_the_page_needs_nothing_but_itself(folder: Path, name: str) -> None:
    page = (folder / name / "index.html").read_text(encoding="utf-8")
    reader = parse(page)
    for tag, attributes in reader.elements:
        assert tag not in ("iframe", "object", "embed", "base", "image", "audio", "video")
        for key in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            value = attributes.get(key) or "#"
            assert value.startswith(("#", "data:image/svg+xml;base64,")) or value == "data:,", (tag, key, value)
        assert not [key for key in attributes if key.startswith("on")]
    code = re.sub(r"<script type=.application/json.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket|import\(|eval\(|innerHTML", code)
    addresses = set(re.findall(r"https?://[^\s\"'<]+", code))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, never fetched
    assert len([tag for tag, _ in reader.elements if tag == "script"]) == 2


def test_names_stay_text(folder: Path) -> None:
    page = (folder / "evil" / "index.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert "owned'</script>" not in page
    data = read_data(page)
    assert any(EVIL in facts["command"] for facts in data.values())


def test_every_number_leads_to_its_runs_and_commands(folder: Path) -> None:
    page = (folder / "plain" / "index.html").read_text(encoding="utf-8")
    data = read_data(page)
    named = {run for runs in re.findall(r'data-runs="([^"]*)"', page) for run in runs.split()}
    assert named == set(data)
    for facts in data.values():
        assert facts["command"].startswith("lmr bench")
        assert {"spec", "backbone", "dataset", "data digest", "prompts", "order", "versions"} <= set(facts["protocol"])


def test_a_figure_is_a_picture_inside_the_page() -> None:
    page = build_page("t", Runs((), {}), [], [Drawing("f", "1a", "<caption>", "<svg/>", b"")])
    assert f'src="data:image/svg+xml;base64,{base64.b64encode(b"<svg/>").decode()}" alt="&lt;caption&gt;"' in page
    assert "<b>Figure 1a</b> &lt;caption&gt;" in page


def test_published_numbers_and_marks_are_in_the_table() -> None:
    line = Line("LMR", (Cell(50.0, 0.5, 2, 53.29, ("abc",)),), ("images 5 (paper: 10000)",), LineKind.OURS)
    columns, published = (Column("average", "AVG"),), find_published("cifar100-c")
    table = Table("t", "T", columns, (Line("TENT", (Cell(40.0),)), line), published=published)
    page = build_page("t", Runs((), {}, ["mind <this>"]), [table])
    assert '<td class="best" data-value="50.0" data-runs="abc"><span>50.00</span></td>' in page
    assert '<td class="second" data-value="40.0"><span>40.00</span></td>' in page
    for kind, text in (("published", "53.29"), ("difference", "-3.29"), ("± sd", "0.50")):
        assert f'<th scope="row">{kind}</th><td>{text}</td>' in page
    assert "<li>mind &lt;this&gt;</li>" in page


PROBE = """
out.title = document.title;
const body = document.querySelector("tbody"), list = () => [...body.querySelectorAll("tr.measured:not([hidden]) th")]
  .map((cell) => cell.textContent);
const head = (name) => [...document.querySelectorAll("thead button")].find((button) => button.textContent === name);
out.first = list();
if (head("forwards")) {
  head("forwards").click(); out.dear = list();
  head("forwards").click(); out.cheap = list();
  head("ECE %").click(); out.ece = [list(), head("ECE %").parentNode.getAttribute("aria-sort")];
}
const filter = document.getElementById("filter");
filter.value = "lmr mint"; filter.dispatchEvent(new Event("input")); out.filtered = list();
filter.value = ""; filter.dispatchEvent(new Event("input"));
document.querySelector("td[data-runs]").click();
out.drawer = document.getElementById("drawer").textContent;
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
out.closed = document.getElementById("drawer").hidden;
"""
START = """
<script>
const out = {};
window.addEventListener("error", (event) => { out.error = event.message; });
"""
END = """
out.wide = document.documentElement.scrollWidth > window.innerWidth;
const result = document.createElement("pre");
result.id = "result";
result.textContent = JSON.stringify(out);
document.body.append(result);
</script>
"""


def browse(page: Path, profile: Path, width: int = 1200) -> dict[str, Any]:
    """Open a page in a real browser without a network, use it, and say what it looked like."""
    assert CHROMIUM is not None
    probed = page.with_name("probed.html")
    probed.write_text(
        page.read_text(encoding="utf-8").replace("</body>", START + PROBE + END + "</body>"), encoding="utf-8"
    )
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},900", "--dump-dom", probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return dict(json.loads(unescape(found[1])))


@pytest.mark.slow
@BROWSER
def test_names_do_nothing_in_a_browser(folder: Path, tmp_path: Path) -> None:
    out = browse(folder / "evil" / "index.html", tmp_path / "profile", width=500)
    assert "error" not in out
    assert out["title"] == "lmr: benchmark report"
    assert out["wide"] is False


@pytest.mark.slow
@BROWSER
@pytest.mark.parametrize("width", [1200, 500])
def test_a_leaderboard_is_sorted_and_filtered_in_a_browser(tmp_path: Path, width: int) -> None:
    """Lines without a number stay last; a second click reverses."""
    rows = []
    facts = {"zero-shot": (1, 0.3), "MINT": (1.8, 0.1), "LMR": (1.75, 0.2), "TENT": (1.5, None)}
    for place, (label, (forwards, ece)) in enumerate(facts.items()):
        spec = complete({"zero-shot": "zeroshot"}.get(label, label.lower()))
        for number, kind in enumerate(("shuffle", "bursts", "classes", "shift", "file", "dirichlet")):
            order = {"kind": kind, "hash": "h"}
            fields: dict[str, Any] = {"order": order, "images": 200, "forwards": forwards, "ece": ece}
            rows.append(make_row(label, spec, "fog", 0.4 + place / 50 + number / 100, **fields))
    report = make_leaderboard([write_runs(tmp_path / "runs", rows)], tmp_path / "out")
    out = browse(report.page, tmp_path / "profile", width)
    assert "error" not in out
    assert out["first"] == ["TENT", "LMR", "MINT", "zero-shot"]  # by mean gain
    assert out["dear"] == ["MINT", "LMR", "TENT", "zero-shot"]
    assert out["cheap"] == out["dear"][::-1]
    assert out["ece"] == [["MINT", "LMR", "zero-shot", "TENT"], "ascending"]  # less is better, and TENT has none
    assert out["filtered"] == ["MINT", "LMR"]
    assert "lmr bench --methods" in out["drawer"]
    assert out["closed"] is True
    assert out["wide"] is False
