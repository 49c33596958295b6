"""Check the import arrows between the rooms of the package, and what ``import lmr`` brings."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lmr

ROOT = Path(lmr.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

EVERYTHING = {
    "", "core", "methods", "watch", "images", "models", "data", "bench", "report", "service", "cluster", "apps", "cli",
    "version",
}  # fmt: skip
ALLOWED: dict[str, set[str]] = {
    "": EVERYTHING - {"cli"},  # lmr/__init__.py, the public names
    "__main__": {"cli"},
    "cli": EVERYTHING,
    "version": set(),
    "core": {"core"},
    "methods": {"methods", "core"},
    "watch": {"watch", "core"},
    "images": {"images", "core"},
    "models": {"models", "images", "core"},
    "data": {"data", "images", "core"},
    "bench": {"bench", "methods", "watch", "models", "data", "images", "core", "version"},
    "report": {"report", "bench", "models", "data", "images", "core", "version"},
    "service": {"service", "watch", "models", "images", "core", "version"},
    "apps": EVERYTHING - {"", "cluster", "cli"},
}
ALLOWED["cluster"] = ALLOWED["apps"] - {"report"} | {"cluster"}  # it wraps them; none of them knows Ray
READ_BY_REPORT = (
    "lmr.bench.running.row.",
    "lmr.bench.running.metrics.",
    "lmr.bench.running.pack.",
)  # what report may take from bench
HEAVY = {
    "torch", "numpy", "matplotlib", "PIL", "transformers", "tokenizers", "huggingface_hub", "sentencepiece",
    "safetensors", "torchvision", "pandas", "scipy", "cv2", "pyarrow", "rich", "open_clip", "fastapi", "starlette",
    "uvicorn", "httpx", "prometheus_client", "ray",
}  # fmt: skip


def name_module(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def find_imports(path: Path, root: Path) -> list[str]:
    """The full names of everything a file imports, wherever in the file: functions and type checking included."""
    return list(_walk_imports(path, root))


def _walk_imports(path: Path, root: Path) -> Iterator[str]:
    package = name_module(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(parse_file(path)):
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


def list_imports(folder: Path = ROOT) -> Iterator[tuple[str, str]]:
    """All pairs of a file in a folder and a full name that it imports."""
    for path in FILES:
        if path.is_relative_to(folder):
            yield from ((path.relative_to(ROOT).as_posix(), target) for target in find_imports(path, ROOT))


def test_arrows_point_down() -> None:
    wrong = {path: find_wrong_arrows(path, ROOT) for path in FILES}
    assert {path.relative_to(ROOT).as_posix(): found for path, found in wrong.items() if found} == {}


def test_report_reads_rows_and_nothing_else_of_bench() -> None:
    taken = [one for one in list_imports(ROOT / "report") if one[1].startswith("lmr.bench")]
    assert [one for one in taken if not one[1].startswith(READ_BY_REPORT)] == []
    assert taken


def test_private_names_stay_in_their_file() -> None:
    own = [(path, target.rpartition(".")[2]) for path, target in list_imports() if target.startswith("lmr.")]
    assert [(path, name) for path, name in own if name.startswith("_") and not name.startswith("__")] == []
    assert own


def test_options_are_parsed_in_the_command_line_alone() -> None:
    wrong = [path for path in FILES if "argparse" in find_imports(path, ROOT)]
    assert [path for path in wrong if ROOT / "cli" not in path.parents] == []
    assert len(wrong) > 10


def test_methods_import_only_the_one_they_extend() -> None:
    found = list(list_imports(ROOT / "methods"))
    extended = {one[1].rpartition(".")[0] for one in found if one[1].startswith("lmr.methods")}
    assert extended == {f"lmr.methods.{name}" for name in ("eta", "infomax", "lmr", "roid")}
    assert found


def test_no_other_code_knows_a_method_by_name() -> None:
    """A method is one file. "lmr" is also the name of the package; the one exception is the default of the commands."""
    known = {name for name in lmr.list_methods() if name != "lmr"}
    known |= {lmr.find_method(name).card.label for name in known}
    found = [
        (path.relative_to(ROOT).as_posix(), node.value)
        for path in FILES
        if not {ROOT / "methods", ROOT / "report" / "paper"} & set(path.parents)
        for node in ast.walk(parse_file(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.partition("(")[0] in known
    ]
    assert found == [("apps/method_options.py", "steady")]


def build_graph(room: str, depth: int) -> dict[str, set[str]]:
    """Return the imports between the parts of a room; ``depth`` 3 counts a sub-folder as one part."""
    modules = {name_module(path, ROOT): path for path in FILES if (ROOT / room) in path.parents}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        part = ".".join(name.split(".")[:depth])
        for target in find_imports(path, ROOT):
            found = target if target in modules else target.rpartition(".")[0]
            other = ".".join(found.split(".")[:depth])
            if found in modules and other != part:
                graph.setdefault(part, set()).add(other)
    return graph


@pytest.mark.parametrize("depth", [3, 9], ids=["sub-folders", "modules"])
@pytest.mark.parametrize("room", sorted(EVERYTHING - {"", "version"}))
def test_imports_inside_a_room_go_one_way(room: str, depth: int) -> None:
    graphlib.TopologicalSorter(build_graph(room, depth)).prepare()  # raises CycleError


def test_core_needs_torch_alone() -> None:
    """The exceptions: a state is a safetensors file, locks are filelock's, and progress bars are rich's."""
    known = {"lmr", "__future__", "torch", *sys.stdlib_module_names}
    outside = {(path, target.partition(".")[0]) for path, target in list_imports(ROOT / "core")}
    others = {("core/state.py", "safetensors"), ("core/files.py", "filelock"), ("core/progress.py", "rich")}
    assert {one for one in outside if one[1] not in known} <= others


# What ``import lmr`` brings, in fresh processes.


def run_fresh(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = "import json, sys; old = set(sys.modules); import lmr; dir(lmr); print(json.dumps([*set(sys.modules) - old]))"


def test_import_is_light() -> None:
    """The public names are found when they are first used; until then a few modules of Python at most are read."""
    names = json.loads(run_fresh(LOADED))
    assert sorted(name for name in names if name.startswith("lmr")) == ["lmr", "lmr.version"]
    brought = {name.partition(".")[0] for name in names}
    assert not brought & HEAVY
    assert brought - set(sys.stdlib_module_names) == {"lmr"}
    assert len(names) <= 10


def test_a_method_is_imported_alone() -> None:
    names = run_fresh("import json, sys, lmr; lmr.find_method('steady'); print(json.dumps([*sys.modules]))")
    assert [name for name in json.loads(names) if name.startswith("lmr.methods.")] == ["lmr.methods.steady"]
    assert lmr.list_methods() == sorted(path.stem for path in (ROOT / "methods").glob("[a-z]*.py"))


def test_public_names_are_all_there() -> None:
    assert len(set(lmr.__all__)) == len(lmr.__all__)
    assert {*lmr._PLACES, "__version__"} == set(lmr.__all__) <= set(dir(lmr))
    for name in lmr._PLACES:
        assert getattr(lmr, name).__module__.startswith(lmr._PLACES[name]), name
    with pytest.raises(AttributeError, match="module 'lmr' has no attribute 'laod'"):
        _ = lmr.laod  # type: ignore[attr-defined]
