"""An optional package that is missing is named with the extra that installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lmr.core.errors import LmrError
from lmr.core.extras import require


@pytest.mark.parametrize("module", ["absent_package", "absent_package.part"])
def test_missing_module_names_the_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "absent_package", None)
    with pytest.raises(LmrError) as caught:
        require(module, "bench", "A report")
    assert str(caught.value) == "A report needs absent_package; install it with: pip install 'lmr[bench]'"


def test_module_that_lacks_a_dependency_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import absent_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LmrError, match=r"half_installed, which fails .*absent_dependency.*pip install 'lmr\[bench\]'"):
        require("half_installed", "bench", "A figure")
