"""Draw the moving picture of the README: a camera that goes bad, answered frozen and adapted.

README.md shows the picture: ``python -m lab.movie docs/drift.webp``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

import lmr
from lab.command import build_parser, run_command
from lmr.core.errors import LmrError
from lmr.data.catalogue import open_dataset
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.dataset import CLEAN

BATCH = 8
QUIET = 300  # images before the first corrupted one
WINDOW = 200  # images of the running accuracy
SHOWN = 4  # images in a frame of the picture
_WIDTH, _HEIGHT, _CELL, _LEFT, _TOP, _BOTTOM = 800, 380, 104, 408, 72, 330
_INK, _PAPER, _GRID = (32, 36, 42), (255, 255, 255), (222, 226, 232)
_FROZEN, _ADAPTED, _WRONG = (196, 84, 20), (24, 92, 176), (150, 156, 164)

DESCRIPTION = """\
Draw a moving picture: a camera that goes bad, the answers of the frozen model and of an adapted one, and the
accuracy of both. The embedded model answers photographs that come with the package."""

EXAMPLES = """\
examples:
  python -m lab.movie drift.webp
  python -m lab.movie fog.webp --corruption fog --method lmr"""


@dataclass(frozen=True)
class Recording:
    """A stream that was answered twice."""

    names: tuple[str, ...]
    images: npt.NDArray[np.uint8]  # [N, 32, 32, 3], as the camera sent them
    true: npt.NDArray[np.int64]  # [N]
    frozen: npt.NDArray[np.int64]  # [N], labels of the frozen model
    adapted: npt.NDArray[np.int64]  # [N], labels of the adapted model


def record(corruption: str, method: str, count: int, seed: int) -> Recording:
    """Answer a stream of photographs: ``QUIET`` clean ones, then ones under a corruption of severity 5."""
    dataset, backbone = open_dataset("photo-c"), lmr.load()
    order = np.random.default_rng(seed).permutation(dataset.count(corruption))[:count]
    parts = [dataset.read(CLEAN, 1, order[:QUIET].tolist()), dataset.read(corruption, 5, order[QUIET:].tolist())]
    images = np.concatenate([part for part in parts if len(part)])
    true = np.asarray(dataset.labels(corruption))[order]
    classifier = backbone.classifier(list(dataset.classes))
    adapting = lmr.create(method, classifier, preset="auto")
    frozen, adapted = [], []
    for start in range(0, len(images), BATCH):
        batch = backbone.preprocess(list(images[start : start + BATCH]))
        frozen.append(classifier(batch).argmax(1).numpy())
        adapted.append(adapting.step(batch).labels.numpy())
    return Recording(tuple(dataset.classes), images, true, np.concatenate(frozen), np.concatenate(adapted))


def average_recent(right: npt.NDArray[np.bool_], window: int = WINDOW) -> npt.NDArray[np.float64]:
    """Return the accuracy over the last ``window`` images at every image [N]; over fewer at the start."""
    total = np.concatenate([[0], np.cumsum(right)])
    ends = np.arange(1, len(right) + 1)
    starts = np.maximum(0, ends - window)
    recent: npt.NDArray[np.float64] = (total[ends] - total[starts]) / (ends - starts)
    return recent


def draw_frame(recording: Recording, end: int, title: str) -> Image.Image:
    """Draw the stream up to image ``end``: the last images with both answers, and both curves of accuracy."""
    frame = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    draw = ImageDraw.Draw(frame)
    large, small = ImageFont.load_default(17), ImageFont.load_default(13)
    draw.text((16, 14), title, _INK, large)
    state = "clean images" if end <= QUIET else "the camera has gone bad"
    draw.text((16, 40), f"image {end} of {len(recording.images)}: {state}", _INK, small)
    for place, index in enumerate(range(end - SHOWN, end)):
        left, top = 16 + place % 2 * 190, _TOP + place // 2 * 150
        cell = Image.fromarray(recording.images[index]).resize((_CELL, _CELL), Image.Resampling.NEAREST)
        frame.paste(cell, (left, top))
        for line, (labels, colour) in enumerate(((recording.frozen, _FROZEN), (recording.adapted, _ADAPTED))):
            right, y = labels[index] == recording.true[index], top + _CELL + 12 + 17 * line
            draw.ellipse((left, y - 4, left + 8, y + 4), colour if right else None, colour if right else _WRONG)
            draw.text((left + 14, y), recording.names[labels[index]], colour if right else _WRONG, small, "lm")
    curves = (("frozen", recording.frozen, _FROZEN), ("adapted", recording.adapted, _ADAPTED))
    _draw_curves(draw, recording, end, [(n, average_recent(a == recording.true), c) for n, a, c in curves])
    return frame


def _draw_curves(
    draw: ImageDraw.ImageDraw,
    recording: Recording,
    end: int,
    curves: list[tuple[str, npt.NDArray[np.float64], tuple[int, int, int]]],
) -> None:
    small = ImageFont.load_default(13)
    right, length = _WIDTH - 20, len(recording.images)

    def place(index: int, value: float) -> tuple[float, float]:
        return _LEFT + (right - _LEFT) * index / length, _BOTTOM - (_BOTTOM - _TOP) * value

    for percent in (0, 25, 50, 75, 100):
        y = place(0, percent / 100)[1]
        draw.line(((_LEFT, y), (right, y)), _GRID)
        draw.text((_LEFT - 6, y), f"{percent}", _INK, small, "rm")
    x = place(QUIET, 0)[0]
    draw.line(((x, _TOP), (x, _BOTTOM)), _INK)
    draw.text((_LEFT, _BOTTOM + 14), f"accuracy over the last {WINDOW} images, in %", _INK, small)
    for line, (name, values, colour) in enumerate(curves):
        points = [place(index, values[index]) for index in range(min(20, end - 1), end)]
        draw.line(points, colour, 3, "curve")
        text = f"{name}: {100 * values[end - 1]:.0f} %"
        draw.text((_LEFT + 150 * line, 40), text, colour, ImageFont.load_default(17))


def draw_movie(recording: Recording, title: str, frames: int) -> list[Image.Image]:
    """Draw frames at even distances; the last one shows the whole stream."""
    ends = np.linspace(BATCH * 4, len(recording.images), frames).astype(int)
    return [draw_frame(recording, int(end), title) for end in ends]


def run(options: argparse.Namespace) -> None:
    """Record the stream, draw it, and print the accuracies that it shows."""
    if options.images <= QUIET:
        raise LmrError(f"--images must be more than the {QUIET} clean ones, got {options.images}.")
    recording = record(options.corruption, options.method, options.images, options.seed)
    title = f"A camera and {options.corruption.replace('_', ' ')}"
    frames = draw_movie(recording, title, options.frames)
    durations = [120] * (len(frames) - 1) + [4000]
    try:
        frames[0].save(
            options.out, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=70, method=2
        )
    except (OSError, ValueError) as error:
        raise LmrError(f"Cannot write {str(options.out)!r}: {error}.") from error
    bad = np.arange(len(recording.images)) >= QUIET
    for name, labels in (("frozen", recording.frozen), (options.method, recording.adapted)):
        right = labels == recording.true
        print(f"{name}: {100 * right[~bad].mean():.1f} % on clean images, {100 * right[bad].mean():.1f} % on bad ones")
    print(f"Wrote {options.out}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.movie`` and return its exit code."""
    parser = build_parser("movie", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT.webp", help="the WebP file to write")
    add(
        "--corruption",
        choices=CORRUPTIONS,
        default="gaussian_noise",
        metavar="NAME",
        help="what happens to the images (default: %(default)s)",
    )
    add("--method", default="steady", metavar="SPEC", help="the method that adapts (default: %(default)s)")
    add("--images", type=int, default=2000, metavar="N", help="length of the stream (default: %(default)s)")
    add("--frames", type=int, default=72, metavar="N", help="frames of the picture (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="order of the images (default: %(default)s)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
