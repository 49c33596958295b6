"""The examples in the docstrings of public names run."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmr
from checkpoint_maker import make_model, write_huggingface
from live_server import run_live_server

NAMES = [name for name in lmr.__all__ if callable(getattr(lmr, name))]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
API = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")


def find_examples(name: str, **given: Any) -> doctest.DocTest:
    """The examples of a public name's own docstring; ``given`` are the names they may use."""
    value: Any = getattr(lmr, name)
    text = inspect.cleandoc(value.__doc__ or "")
    return doctest.DocTestParser().get_doctest(text, given, f"lmr.{name}", inspect.getsourcefile(value), 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CLIP model with its processor, as a hub has it."""
    return write_huggingface(make_model(), tmp_path_factory.mktemp("clip"))


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The address of a running service, for the one example that talks to it."""
    if request.node.callspec.params["name"] != "Client":
        yield None
        return
    with run_live_server(["cat", "dog"]) as found:
        yield found


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize("name", NAMES)
def test_example_runs(
    name: str, folder: Path, url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = find_examples(name, folder=folder, url=url)
    assert ">>>" not in test.docstring.partition("\nExamples:\n")[0], "the reference shows the section Examples:"
    told: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=told.append)
    assert not told, "".join(told)


def test_the_reference_lists_every_name_once() -> None:
    listed = re.findall(r"^::: lmr\.(\w+)$", API, re.MULTILINE)
    assert sorted(listed) == sorted(NAMES)
