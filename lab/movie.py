"""Draw the moving picture of the README: a camera that gets worse, answered frozen and adapted.

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
RAMP = 30  # images under each of the severities 1 to 4; the rest is under severity 5
WINDOW = 200  # images of the running accuracy
SHOWN = 4  # images in a frame of the picture
HOLD = 5  # frames that show the same images, so that one can read the answers
_WIDTH, _HEIGHT, _CELL, _LEFT, _TOP, _BOTTOM = 800, 400, 112, 428, 76, 348
_INK, _PAPER, _GRID, _SHADE = (32, 36, 42), (255, 255, 255), (222, 226, 232), (238, 240, 243)
_FROZEN, _ADAPTED, _WRONG = (196, 84, 20), (24, 92, 176), (150, 156, 164)

DESCRIPTION = """\
Draw a moving picture: a camera that gets worse, the answers of the frozen model and of an adapted one, and the
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


def plan_severities(count: int) -> npt.NDArray[np.int64]:
    """Return the severity of every image [N]: 0 for ``QUIET`` images, 1 to 4 for ``RAMP`` each, then 5."""
    return np.clip((np.arange(count) - QUIET) // RAMP + 1, 0, 5)


def record(corruption: str, method: str, count: int, seed: int) -> Recording:
    """Answer a stream of photographs that get worse as :func:`plan_severities` says."""
    dataset, backbone = open_dataset("photo-c"), lmr.load()
    order = np.random.default_rng(seed).permutation(dataset.count(corruption))[:count]
    severities = plan_severities(len(order))
    parts = []
    for severity in np.unique(severities).tolist():
        chosen = order[severities == severity].tolist()
        parts.append(dataset.read(corruption, severity, chosen) if severity else dataset.read(CLEAN, 1, chosen))
    images = np.concatenate(parts)
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


def draw_frame(recording: Recording, end: int, last: int, title: str) -> Image.Image:
    """Draw the images before ``last`` with both answers, and both curves of accuracy up to image ``end``."""
    frame = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    draw = ImageDraw.Draw(frame)
    large, small = ImageFont.load_default(18), ImageFont.load_default(14)
    draw.text((16, 12), title, _INK, large)
    severity = plan_severities(len(recording.images))[last - 1]
    draw.text((16, 42), f"severity {severity} of 5" if severity else "clean images", _INK, small)
    answers = (("frozen", recording.frozen, _FROZEN), ("adapted", recording.adapted, _ADAPTED))
    for place, index in enumerate(range(last - SHOWN, last)):
        left, top = 16 + place % 2 * 192, _TOP + place // 2 * 166
        cell = Image.fromarray(recording.images[index]).resize((_CELL, _CELL), Image.Resampling.NEAREST)
        frame.paste(cell, (left, top))
        for line, (_, labels, colour) in enumerate(answers):
            right, y = bool(labels[index] == recording.true[index]), top + _CELL + 14 + 19 * line
            _draw_mark(draw, left, y, right, colour)
            draw.text((left + 18, y), recording.names[labels[index]], colour if right else _WRONG, small, "lm")
    _draw_curves(draw, recording, end, [(n, average_recent(a == recording.true), c) for n, a, c in answers])
    return frame


def _draw_mark(draw: ImageDraw.ImageDraw, x: int, y: int, right: bool, colour: tuple[int, int, int]) -> None:
    """Draw a tick in the colour of a model for a correct answer, a grey cross for a wrong one."""
    if right:
        draw.line(((x, y), (x + 4, y + 5), (x + 12, y - 6)), colour, 3, "curve")
    else:
        draw.line(((x + 1, y - 5), (x + 11, y + 5)), _WRONG, 2)
        draw.line(((x + 1, y + 5), (x + 11, y - 5)), _WRONG, 2)


def _draw_curves(
    draw: ImageDraw.ImageDraw,
    recording: Recording,
    end: int,
    curves: list[tuple[str, npt.NDArray[np.float64], tuple[int, int, int]]],
) -> None:
    small = ImageFont.load_default(14)
    right, length = _WIDTH - 16, len(recording.images)

    def place(index: int, value: float) -> tuple[float, float]:
        return _LEFT + (right - _LEFT) * index / length, _BOTTOM - (_BOTTOM - _TOP) * value

    draw.rectangle((place(QUIET, 1), place(length, 0)), _SHADE)
    draw.text((place(QUIET, 0)[0] + 8, _TOP + 16), "the camera gets worse", _INK, small, "lm")
    for percent in (0, 25, 50, 75, 100):
        y = place(0, percent / 100)[1]
        draw.line(((_LEFT, y), (right, y)), _GRID)
        draw.text((_LEFT - 8, y), f"{percent}", _INK, small, "rm")
    draw.text((_LEFT, _BOTTOM + 22), f"% right of the last {WINDOW} images, after {end}", _INK, small, "lm")
    for line, (name, values, colour) in enumerate(curves):
        points = [place(index, values[index]) for index in range(min(20, end - 1), end)]
        draw.line(points, colour, 3, "curve")
        text = f"{name} {100 * values[end - 1]:.0f} %"
        draw.text((_LEFT + 160 * line, 42), text, colour, ImageFont.load_default(20), "lm")


def draw_movie(recording: Recording, title: str, frames: int) -> list[Image.Image]:
    """Draw frames at even distances; the last one shows the whole stream."""
    ends = np.linspace(BATCH * 4, len(recording.images), frames).astype(int)
    held = np.append(ends[np.arange(frames - 1) // HOLD * HOLD], ends[-1])
    return [draw_frame(recording, end, last, title) for end, last in zip(ends.tolist(), held.tolist(), strict=True)]


def run(options: argparse.Namespace) -> None:
    """Record the stream, draw it, and print the accuracies that it shows."""
    if options.images <= QUIET:
        raise LmrError(f"--images must be more than the {QUIET} clean ones, got {options.images}.")
    recording = record(options.corruption, options.method, options.images, options.seed)
    title = f"Growing {options.corruption.replace('_', ' ')}"
    frames = draw_movie(recording, title, options.frames)
    durations = [130] * (len(frames) - 1) + [4000]
    try:
        frames[0].save(
            options.out, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=70, method=2
        )
    except (OSError, ValueError) as error:
        raise LmrError(f"Cannot write {str(options.out)!r}: {error}.") from error
    severities = plan_severities(len(recording.images))
    for name, labels in (("frozen", recording.frozen), (options.method, recording.adapted)):
        right = labels == recording.true
        parts = ((severities == 0, "clean images"), (severities > 0, "the others"), (severities == 5, "severity 5"))
        print(f"{name}: " + ", ".join(f"{100 * right[of].mean():.1f} % on {part}" for of, part in parts if of.any()))
    print(f"Wrote {options.out}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.movie`` and return its exit code."""
    parser = build_parser("movie", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT.webp", help="the WebP file to write")
    add("--corruption", choices=CORRUPTIONS, default="gaussian_noise", metavar="NAME", help="what happens to the "
        "images (default: %(default)s)")  # fmt: skip
    add("--method", default="steady", metavar="SPEC", help="the method that adapts (default: %(default)s)")
    add("--images", type=int, default=2000, metavar="N", help="length of the stream (default: %(default)s)")
    add("--frames", type=int, default=75, metavar="N", help="frames of the picture (default: %(default)s)")
    add("--seed", type=int, default=1, metavar="N", help="order of the images (default: %(default)s)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
