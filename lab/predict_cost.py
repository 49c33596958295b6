"""The time of ``lmr predict`` over image files, compared with its steps alone on decoded images."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from lab.command import build_parser, run_command
from lab.cost.measure import has_aimed_sizes
from lab.cost.settings import AIMED_MODEL, PREDICT_AIM, PREDICT_IMAGES
from lab.cost.table import Verdict
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import ResultFile
from lmr.apps.predict.run import PredictRun
from lmr.bench.cost.measure import check_numbers
from lmr.bench.cost.model import ModelSource, find_measured_model
from lmr.bench.machine import count_cores, describe_machine, use_threads
from lmr.bench.table import format_table
from lmr.cli.shared_options import add_fields
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.progress import show_progress
from lmr.core.registry import create
from lmr.images.files import list_images
from lmr.models import Backbone

DESCRIPTION = """\
Compare a run of 'lmr predict' over a folder of generated photographs, from the files to the lines and the saved state,
with its steps alone on decoded images, in turns. Both must predict the same classes. Run nothing else meanwhile."""

EXAMPLES = """\
examples:
  python -m lab.predict_cost photo --images 64 --batch-size 32 --rounds 1      seconds, to see the table
  python -m lab.predict_cost --random ViT-B-16                                 the setting of the aim: 512 files"""

PHOTOGRAPH = (500, 375)  # width and height of most images of ImageNet
CLASSES = 100


@dataclass(frozen=True)
class PredictCostOptions:
    """The measurement: a model or a random architecture, a method, and the number of repetitions."""

    model: str | None = None
    random: str | None = None  # random weights of this architecture, such as ViT-B-16
    images: int = PREDICT_IMAGES  # image files
    batch_size: int = 64  # images per step
    method: str = "lmr"  # the method to measure
    rounds: int = 3  # runs of each kind
    threads: int | None = None  # threads of torch (default: all cores)


@dataclass(frozen=True)
class PredictCost:
    """Seconds of every round over the same images: from files to lines, and of the steps alone."""

    model: str
    method: str
    images: int
    batch_size: int
    threads: int
    machine: str
    file_bytes: int  # of an average file
    predict: tuple[float, ...]
    steps: tuple[float, ...]
    aimed: bool  # True for the model of the aim

    @property
    def verdict(self) -> Verdict:
        """The ratio of medians and its range over the rounds, compared with the aim."""
        ratios = [whole / bare for whole, bare in zip(self.predict, self.steps, strict=True)]
        other = "" if self.aimed else f"for {AIMED_MODEL}"
        if self.aimed and self.images < PREDICT_IMAGES:
            other = f"for {PREDICT_IMAGES} images"
        value = statistics.median(self.predict) / statistics.median(self.steps)
        return Verdict(PREDICT_AIM, value, min(ratios), max(ratios), other)

    def __str__(self) -> str:
        lines = [["", "ms/image", "min - max"]]
        for name, seconds in (("predict: files to lines", self.predict), ("the steps alone", self.steps)):
            each = [1000 * one / self.images for one in seconds]
            lines.append([name, f"{statistics.median(each):.1f}", f"{min(each):.1f} - {max(each):.1f}"])
        verdict = self.verdict
        spread = f"{verdict.low:.3f} - {verdict.high:.3f}"
        judged = [["ratio", "aim", "measured", "in the rounds", ""]]
        judged.append([verdict.aim.what, f"<= {verdict.aim.limit:g}", f"{verdict.value:.3f}", spread, verdict.result])
        head = (
            f"{self.model}; {self.method}; {self.images} JPEG files of {PHOTOGRAPH[0]}x{PHOTOGRAPH[1]} pixels and "
            f"{self.file_bytes / 1000:.0f} kB; batch size {self.batch_size}; threads: {self.threads}; {self.machine}"
        )
        return "\n\n".join([head, format_table(lines), format_table(judged)])


def measure_predict_cost(options: PredictCostOptions) -> PredictCost:
    """Take turns between a run over a folder of generated photographs and its steps on the decoded images.

    The run is what ``lmr predict`` does once the model is loaded: it decodes, steps, writes lines and saves its state
    after every batch. Both must predict the same classes.
    """
    threads = count_cores() if options.threads is None else options.threads
    given = {"number of images": options.images, "batch size": options.batch_size, "number of rounds": options.rounds}
    check_numbers([*given.items(), ("number of threads", threads)])
    measured = find_measured_model(ModelSource(options.model, options.random))
    if measured.backbone is None:
        raise LmrError(f"The model {measured.name!r} has no preprocessing; measure another one.")
    with use_threads(threads), tempfile.TemporaryDirectory(prefix="lmr-cost-") as name:
        folder = Path(name)
        sizes = write_photographs(folder / "photographs", options.images)
        adapter = create(options.method, _make_classifier(measured.backbone))
        seconds = _take_turns(measured.backbone, adapter, folder, options)
    return PredictCost(
        measured.name,
        adapter.spec,
        options.images,
        options.batch_size,
        threads,
        str(describe_machine()["machine"]),
        sum(sizes) // options.images,
        tuple(seconds["predict"]),
        tuple(seconds["steps"]),
        aimed=measured.tower is not None and has_aimed_sizes(measured.tower.config),
    )


def write_photographs(folder: Path, count: int) -> list[int]:
    """Write JPEG files that cost as much to decode as photographs, and return their sizes. Every call is the same.

    Colours change slowly over the image, and noise gives the files the size that photographs have.
    """
    folder.mkdir()
    sizes = []
    for number in range(count):
        generator = np.random.default_rng(number)
        coarse = Image.fromarray(generator.integers(0, 256, (6, 8, 3), np.uint8))
        smooth = np.asarray(coarse.resize(PHOTOGRAPH, Image.Resampling.BICUBIC), np.float32)
        noisy = smooth + generator.normal(0, 10, smooth.shape[:2]).astype(np.float32)[:, :, None]
        path = folder / f"{number}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=92)
        sizes.append(path.stat().st_size)
    return sizes


def _make_classifier(backbone: Backbone) -> ZeroShot:
    """Return a classifier of random classes: a model with random weights need not have a tokenizer."""
    with torch.no_grad():
        width = backbone.encoder(torch.zeros(1, *backbone.input_shape, dtype=backbone.dtype)).shape[1]
    prototypes = F.normalize(torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(0)), dim=-1)
    return ZeroShot(
        backbone.encoder,
        prototypes,
        backbone.logit_scale,
        logit_bias=backbone.logit_bias,
        input_shape=backbone.input_shape,
    )


def _take_turns(
    backbone: Backbone, method: Method, folder: Path, options: PredictCostOptions
) -> dict[str, list[float]]:
    """Return the seconds of every round; the first of a round is the last of the next."""
    paths, size = list_images([folder / "photographs"]), options.batch_size
    inputs = [backbone.preprocess(paths[k : k + size]) for k in range(0, len(paths), size)]
    method.step(inputs[0])  # libraries load, memory is allocated
    seconds: dict[str, list[float]] = {"predict": [], "steps": []}
    with show_progress(total=2 * options.rounds, unit="passes") as bar:
        for turn in range(options.rounds):
            labels = {}
            for name in ("steps", "predict") if turn % 2 == 0 else ("predict", "steps"):
                bar.describe(f"round {turn + 1} of {options.rounds}: {name}")
                method.reset()
                if name == "steps":
                    taken, labels[name] = _time_steps(method, inputs)
                else:
                    taken, labels[name] = _time_predict(backbone, method, paths, folder / "lines.jsonl", size)
                seconds[name].append(taken)
                bar.advance()
            if labels["steps"] != labels["predict"]:
                raise LmrError("The run over the files and the steps alone predicted different classes.")
    return seconds


def _time_steps(method: Method, inputs: list[Tensor]) -> tuple[float, list[str]]:
    started = time.perf_counter()
    found = [method.step(batch).labels for batch in inputs]
    seconds = time.perf_counter() - started
    return seconds, [method.classifier.names[k] for k in torch.cat(found).tolist()]


def _time_predict(
    backbone: Backbone, method: Method, paths: list[Path], out: Path, batch_size: int
) -> tuple[float, list[str]]:
    out.unlink(missing_ok=True)
    options = PredictOptions(labels=method.classifier.names, batch_size=batch_size)
    output = ResultFile(out, options.top)
    run = PredictRun(method, backbone.preprocess, options, output, out.with_suffix(".state"))
    started = time.perf_counter()
    run.begin()
    run.label(paths)
    seconds = time.perf_counter() - started
    output.close()
    return seconds, [json.loads(line)["label"] for line in out.read_text("utf-8").splitlines()]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; return the exit code."""
    parser = build_parser("predict_cost", DESCRIPTION, EXAMPLES)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the model, as lmr.load takes it; or give --random")
    add_fields(parser, PredictCostOptions, random="ARCHITECTURE", images="N", batch_size="N", method="SPEC")
    add_fields(parser, PredictCostOptions, rounds="N", threads="N")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Measure with the options that were given and print the table."""
    print(measure_predict_cost(PredictCostOptions(**vars(options))))


if __name__ == "__main__":
    sys.exit(main())
