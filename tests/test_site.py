"""The site builds without a complaint, loads nothing from elsewhere, and shows every command and public name."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lmr
from lmr.cli.parser import COMMANDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
LOADING = {"src", "srcset", "poster", "data", "background", "action"}  # attributes whose address a browser fetches
LINKED = {"canonical", "alternate", "prev", "next", "edit"}  # relations of <link> that it does not
# What the theme's script could fetch, and what it would need on a page: a diagram, a browser without ResizeObserver
# (those before 2020), a link to a repository.


class Page(HTMLParser):
    """The addresses that a page loads, those that it links to, and the names of its places."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.loads += [value for key, value in given.items() if key in LOADING]
        self.loads += re.findall(r"url\(([^)]+)\)", given.get("style", ""))
        if tag == "link" and given.get("rel") not in LINKED:
            self.loads.append(given["href"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.places |= {given[key] for key in ("id", "name") if key in given}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def is_elsewhere(address: str) -> bool:
    return bool(re.match(r"\s*['\"]?(https?:)?//", address))


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert page.loads
        assert not [address for address in page.loads if is_elsewhere(address)], path
        assert not re.findall(r"(?:import|fetch)\s*\(?\s*['\"`]https?:", page.text), path


def test_every_command_has_a_page_with_its_options(site: Path) -> None:
    for name in COMMANDS:
        assert (site / "cli" / name / "index.html").exists(), name
    page = (site / "cli" / "predict" / "index.html").read_text(encoding="utf-8")
    for words in ("--labels FILE", "the class names", "label a folder of photographs; nothing is downloaded"):
        assert words in page


def test_reference_has_every_public_name(site: Path) -> None:
    page = Page(site / "api" / "index.html")
    for name in set(lmr.__all__) - {"__version__"}:
        assert f"lmr.{name}" in page.places, name
    assert not re.search(r":(meth|func|class|mod):(`|<code>)", page.text)


def test_start_page_is_the_readme(site: Path) -> None:
    start = Page(site / "index.html")
    assert "Two commands" in start.text
    assert "photo/" in start.links
    assert "docs/" not in " ".join(start.links)
