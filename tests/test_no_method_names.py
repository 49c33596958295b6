"""A method is one file: no other code of the package knows a method by its name or label."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import lmr
from lmr.core.registry import find_method_file

ROOT = Path(lmr.__file__).parent
NAMING = (ROOT / "methods", ROOT / "report" / "paper")  # the methods, and the published numbers of named methods
FILES = [path for path in sorted(ROOT.rglob("*.py")) if not set(path.parents) & set(NAMING)]
COMMANDS = ["bench", "check", "cost", "demo", "doctor", "fetch", "label", "list", "predict"]
COMMANDS += ["report", "reproduce", "train"]


def list_names() -> set[str]:
    """Names and labels of the methods in lmr/methods."""
    methods = [lmr.find_method(name) for name in lmr.list_methods()]
    own = [method for method in methods if find_method_file(method) is None]
    return {method.name for method in own} | {method.card.label for method in own}


def find_names(tree: ast.AST, names: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is a method's name, its label, or a spec of it; docstrings are no code.

    "lmr" is also the name of the package and of the program: it counts unless it stands where only these can be meant.
    """
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    specs = re.compile(rf"({'|'.join(map(re.escape, names))})\(.*\)", re.DOTALL)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        parent = parents[node]
        if isinstance(parent, ast.Expr) or (node.value not in names and not specs.fullmatch(node.value)):
            continue
        if isinstance(parent, ast.Call) and ast.unparse(parent.func).startswith("self._require_"):  # an argument's name
            continue
        if not is_default(node, parent) and not (node.value == "lmr" and is_program(node, parent)):
            yield node.lineno, node.value


def is_program(node: ast.Constant, parent: ast.AST) -> bool:
    """Whether the constant "lmr" names the package or the program."""
    if isinstance(parent, ast.keyword):
        return parent.arg == "prog"
    if isinstance(parent, ast.BinOp):  # a part of a path
        return isinstance(parent.op, ast.Div)
    if isinstance(parent, ast.List):  # a command and its words
        place = parent.elts.index(node)
        before, second = parent.elts[place - 1], parent.elts[1] if len(parent.elts) > 1 else None
        if place and isinstance(before, ast.Constant) and before.value == "-m":  # of Python
            return True
        return place == 0 and isinstance(second, ast.Constant) and second.value in COMMANDS
    if isinstance(parent, ast.Dict):
        if node in parent.values:
            key = parent.keys[parent.values.index(node)]
            return isinstance(key, ast.Constant) and key.value in ("User-Agent", "svg.hashsalt")
        value = parent.values[parent.keys.index(node)]  # versions by package
        return isinstance(value, ast.Name) and value.id.lower().strip("_").endswith("version")
    return False


def is_default(node: ast.Constant, parent: ast.AST) -> bool:
    """Whether the constant is what an argument, field or option called ``method`` is by default: a setting."""
    if isinstance(parent, ast.AnnAssign):
        return isinstance(parent.target, ast.Name) and parent.target.id == "method" and parent.value is node
    if isinstance(parent, ast.arguments):
        given = [*parent.posonlyargs, *parent.args]
        late = zip(given[len(given) - len(parent.defaults) :], parent.defaults, strict=True)
        return any(argument.arg == "method" and value is node for argument, value in late) or any(
            argument.arg == "method" and value is node
            for argument, value in zip(parent.kwonlyargs, parent.kw_defaults, strict=True)
        )
    return isinstance(parent, ast.keyword) and parent.arg == "default"


def test_no_code_knows_a_method_by_name() -> None:
    names = list_names()
    found = {path: list(find_names(ast.parse(path.read_text(encoding="utf-8")), names)) for path in FILES}
    assert {path.relative_to(ROOT).as_posix(): lines for path, lines in found.items() if lines} == {}
    assert found
