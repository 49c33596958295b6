"""The README's Python runs, and the files, commands and names that it and the other pages mention exist."""

from __future__ import annotations

import importlib
import re
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

import lmr
from lmr.cli import main
from lmr.cli.parser import COMMANDS, parse
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import CLEAN
from page_outputs import agree

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "lab/README", "results/README")
PAGES = [*(ROOT / f"{name}.md" for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
MADE_UP = {"cli/NAME.py", "src/lmr/methods/yours.py", "tests/methods/test_yours.py"}  # files that a reader writes


RUNNABLE = ("predict", "label", "check", "export", "list", "doctor")  # kinds of commands that the tests run


def test_python_of_the_readme_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL)
    assert found
    photographs = open_dataset("photo")
    labels = list(photographs.labels(CLEAN))
    (tmp_path / "photos").mkdir()
    for name in ("cat", "dog", "ship", "truck"):
        index = labels.index(photographs.classes.index(name))
        Image.fromarray(photographs.read(CLEAN, 1, [index])[0]).save(tmp_path / "photos" / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    exec(found[1], {})
    assert agree(found[2], capsys.readouterr().out)


def find_commands() -> list[str]:
    """Every line that calls lmr in a code block of the README and the docs, and in the examples of ``--help``.

    Without the remark to its right.
    """
    pages = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]]
    blocks = [block for page in pages for block in page.split("```")[1::2]]
    blocks += [importlib.import_module(f"lmr.cli.{name}").EXAMPLES.replace("\n  ", "\n") for name in RUNNABLE]
    found = []
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            found += re.findall(r"(?:^|&& |\$ | {2})(?:\S*/)?lmr (.+?)(?=   +[^-\s]| &&|$)", line)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("command", find_commands())
def test_commands_of_the_pages_parse(command: str) -> None:
    words = shlex.split(command, comments=True)
    assert words[0] in COMMANDS
    parse(words)


def find_names(words: list[str]) -> list[str]:
    """The class names in a command for the embedded model; none where they are in a file or for another model."""
    labels = words[words.index("--labels") + 1] if "--labels" in words else ""
    return labels.split(",") if "," in labels and "--model" not in words else []


# What a command needs besides its images is said by one of these: a CLIP model, a device, a cluster, a video, a file.
NEEDS = re.compile(r"--model|--ray|--device|--help|openai|ViT|\.mp4|mine\.py|cameras\.state|\.\.\.")
RUN = [command for command in find_commands() if command.split()[0] in RUNNABLE and not NEEDS.search(command)]


def make_sources(words: list[str], names: Sequence[str], folder: Path) -> list[str]:
    """Write what a command reads: 32 photographs, as its folder or its list names them. Return true labels of some."""
    photographs, name = open_dataset("photo"), words[1].rstrip("/")
    truth = [photographs.classes[label] for label in photographs.labels(CLEAN)]
    place = folder / (name.removesuffix(".csv"))
    lines, rows = [], ["photo,path,camera"]
    for number, pixels in enumerate(photographs.read(CLEAN, 0, range(32))):
        own = truth[number] if words[0] == "check" and "--truth" not in words else "ab"[number % 2]
        path = place / own / f"cam{number % 2}_{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        lines += [f"{path},{truth[number]}"] if truth[number] in names else []
        rows += [f"{path},{path},{number % 2}"]
    if name.endswith(".csv"):
        (folder / name).write_text("\n".join(rows))
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN)
def test_commands_of_the_pages_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object, sockets: list[socket.socket]) -> None:
        sockets[0].close()
        raise KeyboardInterrupt

    monkeypatch.setattr(pytest.importorskip("uvicorn").Server, "run", interrupt)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command, comments=True)
    names = find_names(words) or ["cat", "dog", "ship", "truck", "car" if "car=" in command else "automobile"]
    if words[0] in ("predict", "check", "label"):
        truth = words[words.index("--truth") + 1] if "--truth" in words else "labels.csv"
        (tmp_path / truth).write_text("\n".join(make_sources(words, names, tmp_path)))
    for name in ("names.txt", "new.txt"):
        (tmp_path / name).write_text("\n".join(open_dataset("photo").classes if "--truth" in words else names))
    if words[0] == "export" or "--adopt" in words:
        make_sources(["predict", "photos"], names, tmp_path)
        assert main(["predict", "photos", "--labels", "names.txt", "--state", "camera.state"]) == 0
    assert main(words) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_commands_and_names_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in set(re.findall(r"`([\w-]+/[\w./-]+\.(?:py|toml|json|md|yaml))`", text)) - MADE_UP:
        assert any((ROOT / start / path).exists() for start in (".", "src", "src/lmr")), path
    for command in re.findall(r"`lmr ([a-z][\w-]*)", text):
        assert command in COMMANDS, command
    present = re.sub(r"at commit [0-9a-f]{8},?\s+(by\s+)?`[^`]+`", "", text, flags=re.IGNORECASE)  # what is no more
    for module in re.findall(r"python -m (lab\.[a-z_]+)", present):
        importlib.import_module(module)
    for name in set(re.findall(r"\blmr((?:\.[a-zA-Z_]\w*)+)", text)) - {".py"}:
        assert has_name(name.split(".")[1:]), f"lmr{name}"


def has_name(parts: list[str]) -> bool:
    """Return True if lmr has an attribute or a module of this name."""
    found: object = lmr
    for depth, part in enumerate(parts, 1):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(["lmr", *parts[:depth]]))
            except ModuleNotFoundError:
                return False
    return True
