"""The demonstration: the pocket model loses its accuracy on corrupted pictures, and methods try to bring it back."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from tqdm import tqdm

from lmr.apps.demo_run import Run, run_stream
from lmr.bench.columns import align
from lmr.bench.cost.machine import count_cores
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.files import check_folder, write_atomically
from lmr.core.registry import create, find_method, list_methods
from lmr.data.sets.catalogue import CorruptedOnTheFly, PocketWorld
from lmr.data.sets.pocket_world import CLASSES
from lmr.data.streams import Batch, make_stream
from lmr.models.backbone import DEFAULT_TEMPLATES
from lmr.models.pocket import Pocket, load_pocket
from lmr.version import __version__

DOMAINS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate")  # one or two of each family
SEED = 7  # a world the model was not trained on
PRESET = "cifar100-c"


def _list_contenders() -> dict[str, str]:
    """Every registered method by the name people know, zero-shot first and LMR last.

    The pocket world has 100 classes of 32x32 pictures, as CIFAR-100-C has: methods run with their values for that.
    """
    names = sorted(list_methods(), key=lambda name: (name != "zeroshot", name == "lmr", name))
    specs = {n: f"{n}(preset='{PRESET}')" if PRESET in find_method(n).presets else n for n in names}
    return {"zero-shot" if name == "zeroshot" else name.upper(): spec for name, spec in specs.items()}


METHODS = _list_contenders()
ABLATIONS = {
    "zero-shot": METHODS["zero-shot"],
    "BC alone": f"lmr(preset='{PRESET}', pmr=False)",
    "PMR": f"lmr(preset='{PRESET}', am=False, bc=False)",
    "PMR+AM": f"lmr(preset='{PRESET}', bc=False)",
    "PMR+BC": f"lmr(preset='{PRESET}', am=False)",
    "LMR": METHODS["LMR"],
}
CONTENDERS = METHODS | ABLATIONS


@dataclass(frozen=True)
class Demo:
    """All runs of a demonstration, by domain and by contender, and the clean zero-shot run."""

    runs: dict[str, dict[str, Run]]
    clean: Run
    seconds: float


def run_demo(out: Path, images: int = 1280, batch_size: int = 64, severity: int = 5) -> Demo:
    """Run every contender on every corrupted stream, print the table, and write rows and pictures to ``out``."""
    if images < 1 or batch_size < 1 or severity not in range(1, 6):
        raise LmrError("Expected at least one image, a batch size of at least 1 and a severity from 1 to 5.")
    check_folder(out, ("demo.jsonl", "demo.png", "ablation.png", "world.png"))
    from lmr.apps.demo_figures import draw_demo, draw_world  # matplotlib takes a second to import

    print(f"The pocket model knows {len(CLASSES)} classes, such as {CLASSES[0]!r} or {CLASSES[-1]!r}.")
    print(f"Streams of {images} pictures in batches of {batch_size}, severity {severity} of 5; no labels are used.")
    demo = _run_all(images, batch_size, severity)
    print(f"\nEvery method, accuracy in % (on clean pictures zero-shot has {100 * demo.clean.accuracy:.1f}):\n")
    print(format_table(demo, list(METHODS)))
    print("\nThe parts of LMR (PMR: protected margin, AM: adaptive margin, BC: bias correction; LMR is all three):\n")
    print(format_table(demo, list(ABLATIONS)))
    print("\ntop class: share of the most predicted class in % (fair: 1); ms: milliseconds per image, one thread.")
    _write_rows(out / "demo.jsonl", demo, batch_size, severity)
    draw_demo(demo, list(METHODS), out / "demo.png", severity, SEED)
    draw_demo(demo, list(ABLATIONS), out / "ablation.png", severity, SEED)
    draw_world(out / "world.png", SEED)
    print(f"\nRan for {demo.seconds:.0f} s. Look at")
    print(f"  {out / 'demo.png'}      every method: accuracy and concentration over each stream")
    print(f"  {out / 'ablation.png'}  the same for the parts of LMR")
    print(f"  {out / 'world.png'}     the pictures the model was made for")
    print(f"  {out / 'demo.jsonl'}    every number with its protocol")
    if images < 5000:
        print("\nMethods need a longer stream to differ: lmr demo --images 5000 takes a few minutes.")
    return demo


def _run_all(images: int, batch_size: int, severity: int) -> Demo:
    """All runs, shared out to one process per core: a small model gains more from that than from threads."""
    started = time.perf_counter()
    tasks = [("clean", "zero-shot"), *((domain, label) for domain in DOMAINS for label in CONTENDERS)]
    workers = min(count_cores(), 8)
    results: dict[tuple[str, str], Run] = {}
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers, context, _start_worker) as pool,
        tqdm(total=len(tasks), unit="run", smoothing=0) as bar,
    ):
        futures = {pool.submit(_run_one, *task, images, batch_size, severity): task for task in tasks}
        try:
            for future in as_completed(futures):
                domain, label = futures[future]
                results[domain, label] = future.result()
                bar.set_description(f"{domain}: {label}".ljust(25))
                bar.update()
        except BaseException:  # Ctrl-C too: what has not begun is not worth waiting for
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    runs = {domain: {label: results[domain, label] for label in CONTENDERS} for domain in DOMAINS}
    return Demo(runs, results["clean", "zero-shot"], time.perf_counter() - started)


def _start_worker() -> None:
    """One thread each, silent on Ctrl-C (the parent speaks), and no work for a parent that is gone."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_one(domain: str, label: str, images: int, batch_size: int, severity: int) -> Run:
    stream = _draw_stream(domain, images, batch_size, severity)
    backbone, classifier = _load_classifier()
    return run_stream(create(CONTENDERS[label], classifier), stream, backbone)


@lru_cache(1)
def _draw_stream(domain: str, images: int, batch_size: int, severity: int) -> list[Batch]:
    """Pictures of a stream; the tasks come domain by domain, so that each process draws each stream once."""
    world = CorruptedOnTheFly("pocket-c", PocketWorld(SEED, images), "cifar", seed=SEED)
    return list(make_stream(world, domain, severity=severity, order="file", batch_size=batch_size))


@lru_cache(1)
def _load_classifier() -> tuple[Pocket, ZeroShot]:
    backbone = load_pocket()
    return backbone, backbone.classifier(CLASSES)


def format_table(demo: Demo, labels: Sequence[str]) -> str:
    """Accuracy of some contenders on each stream, their mean, concentration and cost, as aligned text."""
    head = ["", *(name.replace("_", " ") for name in demo.runs), "mean", "top class", "ms"]
    lines = [head]
    for label in labels:
        runs = [demo.runs[domain][label] for domain in demo.runs]
        mean = sum(run.accuracy for run in runs) / len(runs)
        share = sum(run.top_share for run in runs) / len(runs)
        cost = sum(run.ms_per_image for run in runs) / len(runs)
        numbers = [*(f"{100 * run.accuracy:.1f}" for run in runs), f"{100 * mean:.1f}", f"{100 * share:.1f}"]
        lines.append([label, *numbers, f"{cost:.2f}"])
    return align(lines)


def _write_rows(path: Path, demo: Demo, batch_size: int, severity: int) -> None:
    backbone, classifier = _load_classifier()
    protocol = {
        "model": backbone.name,
        **classifier.fingerprint,
        "templates": list(DEFAULT_TEMPLATES),
        "dataset": f"pocket world, seed {SEED}",
        "severity": severity,
        "batch_size": batch_size,
        "lmr": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    results = [("clean", "zero-shot", demo.clean)]
    results += [(domain, label, run) for domain, runs in demo.runs.items() for label, run in runs.items()]
    lines = []
    for domain, label, run in results:
        row = {
            "domain": domain,
            "method": create(CONTENDERS[label], classifier).spec,
            "images": len(run.true),
            "accuracy": run.accuracy,
            "top_class_share": run.top_share,
            "ms_per_image": run.ms_per_image,
        }
        lines.append(json.dumps(row | protocol) + "\n")
    write_atomically(path, "".join(lines).encode())
