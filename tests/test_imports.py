"""The house plan: who may import whom, how long a file may be, and what ``import lmr`` brings along."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmr

ROOT = Path(lmr.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LIMIT = 500  # lines; a longer file asks to be two
ROOM = 19  # modules in one folder; more ask for a folder of their own

EVERYTHING = {"", "core", "methods", "models", "data", "bench", "report", "apps", "cli", "version"}
ALLOWED: dict[str, set[str]] = {
    "": EVERYTHING,  # lmr/__init__.py, the public names
    "__main__": EVERYTHING,
    "cli": EVERYTHING,
    "version": EVERYTHING,
    "core": {"core"},
    "methods": {"core"},
    "models": {"models", "core"},
    "data": {"data", "core"},
    "bench": {"bench", "methods", "models", "data", "core", "version"},
    "report": {"report", "bench", "models", "data", "core", "version"},
    "apps": {"apps", "bench", "report", "methods", "models", "data", "core", "version"},
}
HEAVY = {"matplotlib", "PIL", "transformers", "tokenizers", "huggingface_hub", "sentencepiece", "ftfy", "safetensors"}
HEAVY |= {"torchvision", "pandas", "scipy", "cv2", "pyarrow", "tqdm", "open_clip"}


def name_module(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_imports(path: Path, root: Path) -> Iterator[str]:
    """The full names of everything a file imports, wherever in the file: functions and type checking included."""
    package = name_module(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def find_part(module: str, root: Path) -> str | None:
    """Which part of the house a full name lies in: "" for lmr itself, None for what is not ours."""
    name, _, rest = module.partition(".")
    if name != root.name:
        return None
    first = rest.partition(".")[0]
    return first if (root / first).is_dir() or (root / f"{first}.py").exists() else ""


def find_wrong_arrows(path: Path, root: Path) -> list[str]:
    own = find_part(name_module(path, root), root) or ""
    if own not in ALLOWED:
        return [f"{own} is a new part of the house: say in ALLOWED what it may import"]
    wrong = []
    for target in find_imports(path, root):
        part = find_part(target, root)
        if part is not None and part not in ALLOWED[own]:
            wrong.append(f"{own or 'lmr'} must not import {target}")
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_arrows_point_down(path: Path) -> None:
    assert find_wrong_arrows(path, ROOT) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_file_fits_in_a_head(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LIMIT


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=lambda path: path.name)
def test_folder_is_not_crowded(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= ROOM


@pytest.mark.parametrize("path", sorted((ROOT / "methods").glob("*.py")), ids=lambda path: path.stem)
def test_methods_never_import_each_other(path: Path) -> None:
    assert not [target for target in find_imports(path, ROOT) if target.startswith("lmr.methods")]


@pytest.mark.parametrize("path", sorted((ROOT / "core").rglob("*.py")), ids=lambda path: path.stem)
def test_core_needs_torch_alone(path: Path) -> None:
    """The one exception is the state file, which is a safetensors file."""
    outside = {target.partition(".")[0] for target in find_imports(path, ROOT)} - {"lmr", "__future__"}
    outside -= sys.stdlib_module_names
    assert outside <= ({"torch", "safetensors"} if path.stem == "state" else {"torch"})


def test_wrong_arrows_are_found(tmp_path: Path) -> None:
    """The walker itself: every way to write an import, in a small house of its own."""
    root = tmp_path / "lmr"
    texts = {
        "__init__.py": "",
        "cli.py": "import lmr.bench.running.run",
        "core/__init__.py": "",
        "core/one.py": "from lmr.core.two import x\nfrom . import two\nfrom .two import y\nimport torch.nn",
        "core/two.py": "def f():\n    from lmr.data import folder",
        "core/three.py": "from ..data import folder",
        "core/four.py": "import lmr",
        "core/five.py": "from lmr import load",
        "methods/six.py": "import lmr.methods.seven",
        "methods/seven.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lmr.models import load",
        "models/load.py": "from lmr.data import folder",
        "data/folder.py": "from lmr.core.errors import LmrError",
        "bench/run.py": "from lmr.data import folder\nimport lmr.core.one\nfrom lmr.apps import predict",
        "apps/predict.py": "from lmr import data",
        "attic/old.py": "",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = {name: len(find_wrong_arrows(root / name, root)) for name in texts}
    wrong = {name for name, count in found.items() if count}
    assert wrong == {
        "core/two.py", "core/three.py", "core/four.py", "core/five.py", "methods/six.py", "methods/seven.py",
        "models/load.py", "bench/run.py", "attic/old.py",
    }  # fmt: skip
    assert set(found.values()) == {0, 1}


IMPORT = """
import json, sys, time
a = time.process_time()
import torch
b, before = time.process_time(), set(sys.modules)
import lmr
c = time.process_time()
print(json.dumps({"torch": b - a, "lmr": c - b, "brought": sorted(set(sys.modules) - before)}))
"""


def measure_import() -> dict[str, Any]:
    """Import torch, then lmr, in a fresh process: processor seconds of each, and the modules lmr brought."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def first() -> dict[str, Any]:
    return measure_import()


def test_import_brings_torch_and_nothing_heavy(first: dict[str, Any]) -> None:
    brought = {name.partition(".")[0] for name in first["brought"]}
    assert "lmr" in brought
    assert not brought & HEAVY
    assert brought - set(sys.stdlib_module_names) - {"lmr", "torch", "numpy"} == set()


def test_import_is_quick(first: dict[str, Any]) -> None:
    """Under two seconds of processor time, the best of three, unless torch alone takes that long here."""
    ours = whole = allowed = float("inf")
    for turn in range(3):
        times = first if turn == 0 else measure_import()
        ours, whole = min(ours, times["lmr"]), min(whole, times["torch"] + times["lmr"])
        allowed = max(2.0, 1.2 * times["torch"])
        if ours < 0.3 and whole < allowed:
            break
    assert ours < 0.3
    assert whole < allowed


def test_public_names_are_all_there() -> None:
    assert len(set(lmr.__all__)) == len(lmr.__all__)
    for name in lmr.__all__:
        assert hasattr(lmr, name), name


def test_version_is_read_without_torch() -> None:
    path = ROOT / "version.py"
    names: dict[str, str] = {}
    exec(path.read_text(encoding="utf-8"), names)
    assert names["__version__"] == lmr.__version__
    assert list(find_imports(path, ROOT)) in ([], ["__future__.annotations"])
