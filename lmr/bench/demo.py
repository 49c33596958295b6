"""The demonstration: the pocket model loses its accuracy on corrupted pictures, and methods try to bring it back."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from lmr.backbones.pocket import Pocket, load_pocket
from lmr.bench.run import Run, run_stream
from lmr.core.errors import LmrError
from lmr.core.registry import create
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.pocket import CLASSES
from lmr.data.stream import Batch, stream_pocket
from lmr.version import __version__

SEED = 7  # a world the model was not trained on

# The pocket world has 100 classes of 32x32 pictures, as CIFAR-100-C has: every method runs with its values for that.
METHODS = {
    "zero-shot": "zeroshot",
    "TDA": "tda(preset='cifar100-c')",
    "ECALP": "ecalp(preset='cifar100-c')",
    "TENT": "tent(preset='cifar100-c')",
    "ETA": "eta(preset='cifar100-c')",
    "BATCLIP": "batclip(preset='cifar100-c')",
    "MINT": "mint(preset='cifar100-c')",
    "BITTA": "bitta(preset='cifar100-c')",
    "LMR": "lmr(preset='cifar100-c')",
}
ABLATIONS = {
    "zero-shot": METHODS["zero-shot"],
    "BC alone": "lmr(preset='cifar100-c', pmr=False)",
    "PMR": "lmr(preset='cifar100-c', am=False, bc=False)",
    "PMR+AM": "lmr(preset='cifar100-c', bc=False)",
    "PMR+BC": "lmr(preset='cifar100-c', am=False)",
    "LMR": METHODS["LMR"],
}
CONTENDERS = METHODS | ABLATIONS


@dataclass(frozen=True)
class Demo:
    """All runs of a demonstration, by domain and by contender, and the clean zero-shot run."""

    runs: dict[str, dict[str, Run]]
    clean: Run
    seconds: float


def run_demo(out: Path, images: int = 2000, batch_size: int = 64, severity: int = 5) -> Demo:
    """Run every contender on every corrupted stream, print the table, and write rows and pictures to ``out``."""
    if images < 1 or batch_size < 1 or severity not in range(1, 6):
        raise LmrError("Expected at least one image, a batch size of at least 1 and a severity from 1 to 5.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot make the folder {str(out)!r}: {error.strerror}.") from error
    from lmr.bench.figures import draw_demo, draw_world  # matplotlib takes a second to import

    backbone = load_pocket()
    print(f"The pocket model knows {len(CLASSES)} classes, such as {CLASSES[0]!r} or {CLASSES[-1]!r}.")
    print(f"Streams of {images} pictures in batches of {batch_size}, severity {severity} of 5; no labels are used.")
    demo = _run_all(backbone, images, batch_size, severity)
    print(f"\nEvery method, accuracy in % (on clean pictures zero-shot has {100 * demo.clean.accuracy:.1f}):\n")
    print(format_table(demo, list(METHODS)))
    print("\nThe parts of LMR (PMR: protected margin, AM: adaptive margin, BC: bias correction; LMR is all three):\n")
    print(format_table(demo, list(ABLATIONS)))
    print("\ntop class: share of the most predicted class in % (fair: 1); ms: milliseconds per image in the step.")
    _write_rows(out / "demo.jsonl", demo, backbone, batch_size, severity)
    draw_demo(demo, list(METHODS), out / "demo.png", severity)
    draw_demo(demo, list(ABLATIONS), out / "ablation.png", severity)
    draw_world(out / "world.png", SEED)
    print(f"\nRan for {demo.seconds:.0f} s. Look at")
    print(f"  {out / 'demo.png'}      every method: accuracy and concentration over each stream")
    print(f"  {out / 'ablation.png'}  the same for the parts of LMR")
    print(f"  {out / 'world.png'}     the pictures the model was made for")
    print(f"  {out / 'demo.jsonl'}    every number with its protocol")
    return demo


def _run_all(backbone: Pocket, images: int, batch_size: int, severity: int) -> Demo:
    classifier = backbone.classifier(CLASSES)
    started = time.perf_counter()
    runs: dict[str, dict[str, Run]] = {}
    total = images * (1 + len(CORRUPTIONS) * len(CONTENDERS))
    with tqdm(total=total, unit="image", smoothing=0.05) as bar:

        def run(stream: list[Batch], label: str) -> Run:
            bar.set_description(f"{stream[0].domain}: {label}".ljust(25))
            return run_stream(create(CONTENDERS[label], classifier), stream, backbone.preprocess_pixels, bar.update)

        for domain in ("clean", *CORRUPTIONS):
            stream = list(stream_pocket(domain, images, batch_size, severity, SEED))
            runs[domain] = {label: run(stream, label) for label in (["zero-shot"] if domain == "clean" else CONTENDERS)}
        clean = runs.pop("clean")["zero-shot"]
    return Demo(runs, clean, time.perf_counter() - started)


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
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    text = []
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        text.append("  ".join([first.ljust(widths[0]), *cells]))
    text.insert(1, "-" * len(text[0]))
    return "\n".join(text)


def _write_rows(path: Path, demo: Demo, backbone: Pocket, batch_size: int, severity: int) -> None:
    classifier = backbone.classifier(CLASSES)
    protocol = {
        "model": backbone.name,
        **classifier.fingerprint,
        "templates": ["a photo of a {}."],
        "dataset": f"pocket world, seed {SEED}",
        "severity": severity,
        "batch_size": batch_size,
        "lmr": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    results = [("clean", "zero-shot", demo.clean)]
    results += [(domain, label, run) for domain, runs in demo.runs.items() for label, run in runs.items()]
    with path.open("w", encoding="utf-8") as file:
        for domain, label, run in results:
            row = {
                "domain": domain,
                "method": create(CONTENDERS[label], classifier).spec,
                "images": len(run.true),
                "accuracy": run.accuracy,
                "top_class_share": run.top_share,
                "ms_per_image": run.ms_per_image,
            }
            file.write(json.dumps(row | protocol) + "\n")
