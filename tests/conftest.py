"""Small tensors gain nothing from threads, and a test run should leave the other core to its neighbour."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the programs that tests start
os.environ["LMR_CACHE"] = tempfile.mkdtemp(prefix="lmr-cache-")  # nothing of a test stays in anybody's home

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("same", derandomize=True)  # a change is judged by itself, not by chance
hypothesis.settings.load_profile("same")
torch.set_num_threads(1)
atexit.register(shutil.rmtree, os.environ["LMR_CACHE"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden.json anew, on purpose")
