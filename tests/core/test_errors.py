"""Errors are of the kind that Python has for them, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.bench.plans.plan import read_plan
from lmr.bench.running.row import read_rows
from lmr.core.state import read_state


@pytest.mark.parametrize(
    "use",
    [
        read_state,
        read_plan,
        read_rows,
        lmr.open_image,
        lmr.list_images,
        lambda path: lmr.find_method(f"{path}.py:mine"),
        lambda path: lmr.load(f"./{path}"),
    ],
)
def test_missing_files_are_file_not_found_errors(use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing") as caught:
        use("nothing")
    assert isinstance(caught.value, lmr.LmrError)


@pytest.mark.parametrize(
    "use",
    [lambda: lmr.create("tent", 3), lambda: lmr.ZeroShot(3, 3), lambda: lmr.Watched("lmr")],  # type: ignore[arg-type]
)
def test_wrong_types_are_type_errors(use: Any) -> None:
    with pytest.raises(TypeError, match="Expected") as caught:
        use()
    assert isinstance(caught.value, lmr.LmrError)
