"""Small tensors gain nothing from threads, and a test run should leave the other core to its neighbour."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the programs that tests start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # programs that tests start need not compile the package each time
os.environ["COLUMNS"] = "120"  # what a test reads must not depend on the width of the terminal it runs in
os.environ["LMR_CACHE"] = tempfile.mkdtemp(prefix="lmr-cache-")  # nothing of a test stays in anybody's home

import hypothesis
import pytest
import torch

from lmr.core import registry

hypothesis.settings.register_profile("same", derandomize=True)  # a change is judged by itself, not by chance
hypothesis.settings.load_profile("same")
torch.set_num_threads(1)
atexit.register(shutil.rmtree, os.environ["LMR_CACHE"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden.json anew, on purpose")


def pytest_collection_finish() -> None:
    """Thousands of collected tests and all that they import stay to the end: no collection of garbage looks at them."""
    gc.freeze()


@pytest.fixture
def own_methods() -> Iterator[None]:
    """Methods that a test registers are forgotten afterwards, so that other tests do not see them."""
    registry.list_methods()  # fills the registry
    modules, methods = set(sys.modules), dict(registry._METHODS)
    yield
    registry._METHODS.clear()
    registry._METHODS.update(methods)
    for name in set(sys.modules) - modules:
        if name.startswith("lmr_method_file_"):
            del sys.modules[name]
