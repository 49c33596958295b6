"""Small tensors gain nothing from threads, and a test run should leave the other core to its neighbour."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the programs that tests start

import pytest
import torch

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden.json anew, on purpose")
