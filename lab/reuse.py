"""Forwards that ``lmr.Reused`` saves, and the answers that it changes, on streams of a camera made from photographs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lab.command import build_parser, run_command
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.registry import create
from lmr.core.reused import Reused
from lmr.data.dataset import CLEAN
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.data.streams import make_stream
from lmr.images.files import list_images, open_image
from lmr.models import Backbone, load

DESCRIPTION = """\
Make frames of a camera from photographs, with noise of the sensor, and answer them with and without reuse. The answers
are those of the frozen model 'photo'. A scene is one photograph.

  still    nothing but noise
  light    the light changes by 30 % and back, once in a stream
  object   a part of another photograph passes once in 60 seconds, for 6 seconds
  cuts     another photograph every 20 seconds
  pan      the camera turns over the photograph, a pixel a frame, all the time
  bursts   the order 'bursts' of the plan 'life': runs of a photograph, each frame moved, lit and noisy in its own way

'saved' is the share of frames without a forward, 'changed' that of answers that are not the frozen model's to the same
frame, and 'unsteady' that of frames to which the frozen model gives another answer than to the frame before. Streams
with less than 1 % of unsteady frames are steady."""

EXAMPLES = """\
examples:
  python -m lab.reuse photographs --seeds 0 1 --noise 2 5
  python -m lab.reuse photographs --kinds still --frames 3000 --seeds 2 --noise 3
  python -m lab.reuse pacs/photo/dog pacs/photo/horse --labels dog horse"""

SIDE, RATE = 64, 5  # pixels of a frame, and frames a second
BATCH = 8
STEADY = 0.01  # share of unsteady frames of a stream


@dataclass(frozen=True)
class Finding:
    """Shares of the frames of a stream."""

    saved: float
    changed: float
    unsteady: float


def make_frames(
    kind: str, pictures: Sequence[NDArray[np.float64]], count: int, noise: float, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield frames [H, W, 3] of one stream; ``noise`` is its deviation, of 255 levels."""
    random = np.random.default_rng(seed)
    wide, other = (pictures[number] for number in random.permutation(len(pictures))[:2])
    for number in range(count):
        if kind == "cuts" and number % (20 * RATE) == 0:
            wide = pictures[int(random.integers(len(pictures)))]
        shift = abs(number % (2 * SIDE) - SIDE) if kind == "pan" else 0
        frame = wide[:SIDE, shift : shift + SIDE].copy()
        if kind == "light":
            frame *= 1 + 0.3 * np.sin(2 * np.pi * number / count)
        place = number % (60 * RATE) * 3 - SIDE // 2
        if kind == "object" and place < SIDE:
            left, right = max(0, place), min(SIDE, place + SIDE // 2)
            rows = slice(SIDE // 4, 3 * SIDE // 4)
            frame[rows, left:right] = other[rows, left - place : right - place]
        yield np.clip(np.rint(frame + noise * random.standard_normal(frame.shape)), 0, 255).astype(np.uint8)


def measure(classifier: ZeroShot, frames: Tensor) -> Finding:
    """Answer frames with and without reuse, in batches of eight."""
    method = Reused(create("zeroshot", classifier))
    parts = [(method.step(part), classifier(part).argmax(1)) for part in torch.split(frames, BATCH)]
    reused = torch.cat([answer.reused for answer, _ in parts if answer.reused is not None])
    frozen = torch.cat([labels for _, labels in parts])
    answers = torch.cat([answer.labels for answer, _ in parts])
    changes = (answers != frozen, frozen[1:] != frozen[:-1])
    return Finding(*(float(one.double().mean()) for one in (reused, *changes)))


def _make_stream(kind: str, options: argparse.Namespace, backbone: Backbone) -> Callable[[float, int], Tensor]:
    """Return a function that makes the inputs of a stream of this kind, from its noise and seed."""
    if kind == "bursts":
        dataset = Photographs()

        def read_bursts(noise: float, seed: int) -> Tensor:
            stream = make_stream(dataset, CLEAN, order="bursts", seed=seed, limit=options.frames)
            return torch.cat([backbone.preprocess(batch.images) for batch in stream])

        return read_bursts
    found = list_images(options.folders)
    if len(found) < 2:
        raise LmrError(f"Expected at least two photographs, got {len(found)}.")
    size = (2 * SIDE, SIDE)
    pictures = [np.asarray(open_image(path).resize(size, Image.Resampling.BICUBIC), float) for path in found[::7]]

    def draw(noise: float, seed: int) -> Tensor:
        frames = np.stack([*make_frames(kind, pictures, options.frames, noise, seed)])
        return backbone.preprocess(torch.from_numpy(frames))

    return draw


def _average(found: Sequence[Finding], key: str) -> str:
    return f"{100 * float(np.mean([getattr(one, key) for one in found])):.2f} %" if found else "-"


def run(options: argparse.Namespace) -> None:
    """Measure all streams and print a line of a table for each kind and noise."""
    backbone = load()
    classifier = backbone.classifier(options.labels or read_list("cifar10"))
    print("| stream | noise | streams | saved | changed | unsteady | steady streams | saved in these |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for kind in options.kinds:
        draw = _make_stream(kind, options, backbone)
        for noise in options.noise if kind != "bursts" else [0.0]:
            with torch.no_grad():
                found = [measure(classifier, draw(noise, 1000 * seed + scene)) for seed in options.seeds
                         for scene in range(options.scenes)]  # fmt: skip
            shares = " | ".join(_average(found, key) for key in vars(found[0]))
            steady = [one for one in found if one.unsteady < STEADY]
            last = f"{len(steady)} | {_average(steady, 'saved')}"
            print(f"| {kind} | {noise:g} | {len(found)} | {shares} | {last} |", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = build_parser("reuse", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("folders", type=Path, nargs="+", metavar="FOLDER", help="photographs, of which every seventh is used")
    add("--labels", nargs="+", metavar="NAME", help="class names (default: those of CIFAR-10)")
    kinds = ["still", "light", "object", "cuts", "pan", "bursts"]
    add("--kinds", nargs="+", choices=kinds, default=kinds, help="kinds of streams (default: all)")
    add("--frames", type=int, default=600, metavar="N", help="frames of a stream (default: 600, two minutes)")
    add("--noise", type=float, nargs="+", default=[2.0, 5.0], metavar="X", help="deviations, of 255 (default: 2 5)")
    add("--seeds", type=int, nargs="+", default=[0], metavar="N", help="default: 0")
    add("--scenes", type=int, default=4, metavar="N", help="streams of each seed (default: 4)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
