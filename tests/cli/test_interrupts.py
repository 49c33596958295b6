"""Ctrl-C at any moment of a real process: one line and the code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

# The process interrupts itself when it is about to import a module (given by name), or says so and waits for a signal.
PROGRAM = """
import os, runpy, signal, sys
wanted = sys.argv.pop(1)

def look(event, details):
    if event == "import" and details[0] == wanted.removeprefix("tell:"):
        if wanted.startswith("tell:"):
            os.write(1, b"ready" + bytes([10]))
        else:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(look)
runpy.run_module("lmr", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough images for a run that does not end before it is interrupted."""
    place = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(place / "0.png")
    for number in range(1, 3000):
        os.link(place / "0.png", place / f"{number}.png")
    return place


def find_words(command: str, folder: Path, out: Path) -> list[str]:
    return {
        "list": ["list"],
        "predict": ["predict", str(folder), "--labels", "cat,dog", "--out", str(out / "answers.jsonl")],
        "bench": ["bench", "photo", "--out", str(out / "runs"), "--workers", "1"],
    }[command]


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def start(wanted: str, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, wanted, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore Ctrl-C
    )


MODULES = {
    "list": ["argparse", "torch", "torch._C", "lmr.core.registry"],
    "predict": ["lmr.cli.shared_options", "lmr.apps.predict.run"],
    "bench": ["torch.autograd", "lmr.bench.running.bench"],
}


@pytest.mark.parametrize(
    ("command", "module"), [(command, module) for command, modules in MODULES.items() for module in modules]
)
def test_an_interrupt_during_imports_is_one_line(command: str, module: str, folder: Path, tmp_path: Path) -> None:
    process = start(module, find_words(command, folder, tmp_path))
    shown, said = finish(process)
    assert (process.returncode, said) == (130, "lmr: Interrupted.\n")
    assert shown == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "module", "delay"),
    [
        ("list", "argparse", 0.3),
        ("predict", "argparse", 0.02),
        ("predict", "argparse", 0.7),
        ("predict", "argparse", 1.5),
        ("bench", "argparse", 1.2),
        ("bench", "multiprocessing.forkserver", 0.3),  # while the first worker starts
    ],
)
def test_an_interrupt_at_any_time_is_one_line(
    command: str, module: str, delay: float, folder: Path, tmp_path: Path
) -> None:
    process = start(f"tell:{module}", find_words(command, folder, tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, said = finish(process)
    assert "Traceback" not in said
    if command == "list" and process.returncode == 0:  # it had finished
        assert said == ""
        return
    assert process.returncode == 130
    lines = [line for line in said.splitlines() if "nterrupted" in line]
    assert len(lines) == 1
    assert lines[0].startswith("lmr: ")


def test_a_request_to_terminate_does_the_same(folder: Path, tmp_path: Path) -> None:
    process = start("tell:torch", find_words("predict", folder, tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, said = finish(process)
    assert (process.returncode, said) == (130, "lmr: Interrupted.\n")


@pytest.mark.parametrize("module", ["lmr.apps.serve", "lmr.models.embedded"])
def test_service_that_is_ended_before_it_listens_has_done_its_work(module: str, tmp_path: Path) -> None:
    words = ["serve", "--labels", "cat,dog", "--port", "0", "--store", f"sqlite:{tmp_path / 'states'}"]
    process = start(f"tell:{module}", words)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, said = finish(process)
    assert process.returncode == 0
    assert "Traceback" not in said


def test_an_ignored_interrupt_stays_ignored() -> None:
    """As a shell starts a process in the background of a script."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "argparse", "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    shown, said = finish(process)
    assert (process.returncode, said) == (0, "")
    assert shown.startswith("lmr ")
