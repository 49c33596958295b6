"""The explanations of the fields of a class, from its source: the arguments of methods, the options of commands."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import textwrap
import tokenize


def explain_fields(kind: type) -> dict[str, str]:
    """Return the explanation of each field of a class: the comment behind its field, or the text below it.

    Both ``lr: float = 1e-3  # step size`` and a docstring in the line below the field are read, from the source of the
    class and of those it inherits from; a comment may continue in the lines below, at the same column.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _read_fields(base)
    return found


@functools.cache  # most classes share their bases, whose sources are long
def _read_fields(kind: type) -> dict[str, str]:
    """Return the explanations of the fields that the source of this class itself defines."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # a builtin, or a class without a file
        return {}
    comments = {
        token.start: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines, found = source.splitlines(), {}
    (definition,) = ast.parse(source).body
    body = getattr(definition, "body", [])
    for item, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        row = item.end_lineno or item.lineno
        column = next((place[1] for place in comments if place[0] == row), None)
        parts = []
        while column is not None and (row, column) in comments:
            parts.append(comments[row, column])
            row += 1
            if row > len(lines) or lines[row - 1][:column].strip():
                break
        if not parts and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            parts = str(following.value.value).split("\n\n")[0].split("\n")
        if parts:
            found[item.target.id] = " ".join(" ".join(parts).split())
    return found
