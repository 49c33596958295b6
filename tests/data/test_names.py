"""The names the command line offers come without NumPy, torch and the other heavy libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from {module} import {names}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names))))
"""


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("lmr.data.corruptions", "CONSTANTS, CORRUPTIONS, EXTRA"),
        ("lmr.data.corruptions.constants", "CONSTANTS"),
        ("lmr.data.names", "ORDERS, read_list"),
        ("lmr.data.fetch.sources", "SOURCES"),
    ],
)
def test_names_bring_nothing_heavy(module: str, names: str) -> None:
    code = PROGRAM.format(module=module, names=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    brought = set(json.loads(done.stdout))
    assert "lmr" in brought
    assert not brought & {"numpy", "torch", "PIL", "cv2", "scipy", "tqdm", "matplotlib"}
