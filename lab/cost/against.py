"""Compare the steps of this checkout with those of another one, by worker processes that take turns."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from lmr.bench.table import format_table
from lmr.core.errors import LmrError

# Runs with either package, so it uses only what is the same in both: torch, the towers, classifiers and methods.
_WORKER = """
import gc, sys, time, torch, lmr
from lmr.bench.machine import measure_peak
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionConfig, VisionTower
name, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
torch.manual_seed(0)
encoder = lmr.load(name).encoder if name != "ViT-B-16" else VisionTower(VisionConfig()).eval()
fold_activations(encoder)
side = encoder.config.resolution
with torch.no_grad():  # prototypes that set images apart: a gradient of zero would be no work in some versions
    features = encoder(torch.randn(8, 3, side, side))
mean = torch.nn.functional.normalize(features.mean(0), dim=0)
apart = features - features.mean(0)
apart = (apart - (apart @ mean)[:, None] * mean).repeat(125, 1)
prototypes = apart + 0.1 * apart.std() * torch.randn(apart.shape)
clip = lmr.ZeroShot(encoder, prototypes, 100.0, input_shape=(3, side, side))
for line in sys.stdin:
    spec, streams, images, kind = line.split()
    batch = torch.randn(int(images), 3, side, side)
    method = lmr.create(spec, clip, streams=int(streams))
    ids = torch.arange(len(batch)) % int(streams) if int(streams) > 1 else None
    gc.collect(1)
    if kind == "memory":
        print(measure_peak(lambda: method.step(batch, streams=ids)), flush=True)
    else:
        started = time.process_time() if kind == "cpu" else time.perf_counter()
        method.step(batch, streams=ids)
        print((time.process_time() if kind == "cpu" else time.perf_counter()) - started, flush=True)
"""
SPECS = ("lmr(tau=0.0)", "tent", "mint", "lmr(tau=0.0) x 16")  # without a threshold every image passes LMR's gate


def compare(other: Path, model: str, batch_size: int, rounds: int, threads: int, kind: str) -> str:
    """Return a table of the fastest seconds of both checkouts, and of the peak memory of fresh processes."""
    lines, folders = [["step", "this", "other", "ratio", "MB", "other", "ratio"]], (Path(__file__).parents[2], other)
    with ExitStack() as stack:
        workers = [stack.enter_context(_start(folder, model, threads)) for folder in folders]
        for spec in SPECS:
            times = [[_measure(worker, spec, batch_size, kind) for worker in workers] for _ in range(rounds + 1)]
            peaks = []
            for folder in folders:
                with _start(folder, model, threads) as fresh:
                    peaks.append([_measure(fresh, spec, images, "memory") / 1e6 for images in (2, batch_size)][1])
            best = [min(column) for column in zip(*times[1:], strict=True)]
            cells = [spec, *(f"{value:.3f}" for value in best), f"{best[0] / best[1]:.3f}"]
            lines.append([*cells, *(f"{value:.0f}" for value in peaks), f"{peaks[0] / max(peaks[1], 1e-9):.2f}"])
    return format_table(lines)


def _start(folder: Path, model: str, threads: int) -> subprocess.Popen[str]:
    """Start a process with the package of a checkout; it ends when its input is closed."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", _WORKER, model, str(threads)]
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _measure(worker: subprocess.Popen[str], spec: str, images: int, kind: str) -> float:
    """Return seconds, or bytes of memory, of a step; ``x 16`` after a spec: of 16 streams."""
    name, _, streams = spec.partition(" x ")
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{name} {streams or 1} {images} {kind}\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise LmrError("A process of one of the checkouts failed; its message is above.")
    return float(line)
