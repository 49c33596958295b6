"""Freed memory is kept by the process, so that the next step finds it mapped."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from lmr.service.memory import keep_freed_memory

CODE = """
import resource, torch, lmr
from lmr.service.memory import keep_freed_memory
keep_freed_memory()
torch.set_num_threads(1)
backbone = lmr.load("pocket")
method = lmr.create("lmr", backbone.classifier(["red ring", "blue star", "green heart"]), preset="auto")
images = torch.randn(64, *backbone.input_shape, generator=torch.Generator().manual_seed(0))
def count_faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        method.step(images)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps
count_faults(3)
print(count_faults(5))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of glibc")
def test_a_step_finds_its_memory_mapped() -> None:
    """By default glibc gives about 3,000 pages back after each of these steps."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 500


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_freed_memory()
