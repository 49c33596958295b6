"""Make faults of cameras from photographs, and count which are noticed, how soon, and the false alarms without any."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from lab.command import build_parser, run_command
from lmr.bench.table import format_table
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from lmr.images.files import list_images, open_image
from lmr.images.picture import measure_picture
from lmr.service.engine.camera import CameraHealth, CameraState, note_pictures

DESCRIPTION = """\
Simulate cameras with photographs, one frame a second. A mixed camera shows another photograph in every frame. A fixed
one shows one photograph, with sensor noise, a shaking mount, things that pass by, and a day of 2,000 frames with a dark
night; a repeating one sends each of its frames 1 to 10 times. Ordinary streams count false alarms. In the others, a
fault begins after 300 frames and ends after 200 more. The even photographs developed the limits; --confirm takes the
odd ones, and other random numbers."""

EXAMPLES = """\
examples:
  python -m lab.cameras
  python -m lab.cameras --images FOLDER --confirm"""

Pixels = NDArray[np.uint8]
DAY, NIGHT = 2000, 700  # frames
BEFORE, DURING, AFTER = 300, 200, 100  # frames of a stream with a fault


@dataclass
class Scene:
    """Frames of one camera: ``kind`` is mixed, fixed or repeating."""

    photographs: Sequence[Pixels]
    kind: str
    random: np.random.Generator
    number: int = field(default=0, init=False)
    last: Pixels = field(init=False)  # the frame before a fault
    _left: int = field(default=0, init=False)  # frames for which the thing that passes stays
    _thing: tuple[Pixels, int, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.place = int(self.random.integers(len(self.photographs)))

    def read(self) -> Pixels:
        """Return the next frame."""
        self.number += 1
        frame = self._make()
        if self.number == BEFORE:
            self.last = frame
        return frame

    def _make(self) -> Pixels:
        if self.kind == "mixed":
            return self.photographs[int(self.random.integers(len(self.photographs)))]
        frame = self._pass_by(self.photographs[self.place].copy())
        across, down = self.random.integers(-1, 2, 2)
        frame = np.roll(frame, (int(down), int(across)), (0, 1))
        light = 0.12 if self.number % DAY > DAY - NIGHT else 0.75 + 0.25 * np.sin(2 * np.pi * self.number / DAY)
        return add_noise(frame * light, 3.0, self.random)

    def _pass_by(self, frame: Pixels) -> Pixels:
        """Paste a part of another photograph, for up to 30 frames."""
        side = len(frame)
        if not self._left and self.random.random() < 0.05:
            self._left, size = int(self.random.integers(1, 31)), int(side * self.random.uniform(0.2, 0.5))
            other = self.photographs[int(self.random.integers(len(self.photographs)))]
            top, left = self.random.integers(0, side - size, 2)
            self._thing = other[:size, :size], int(top), int(left)
        if self._left and self._thing is not None:
            self._left -= 1
            part, top, left = self._thing
            frame[top : top + len(part), left : left + len(part)] = part
        return frame


def add_noise(frame: NDArray[np.floating] | Pixels, deviation: float, random: np.random.Generator) -> Pixels:
    """Return 8-bit pixels with the noise of a sensor."""
    return np.clip(frame + random.normal(0, deviation, frame.shape), 0, 255).astype(np.uint8)


def _blur(frame: Pixels, radius: float) -> Pixels:
    return np.asarray(Image.fromarray(frame).filter(ImageFilter.GaussianBlur(radius)))


def _cover(frame: Pixels, scene: Scene) -> Pixels:
    soft = _blur(frame, len(frame) / 5).astype(float)
    return add_noise(0.4 * soft.mean() + 0.15 * (soft - soft.mean()), 1.0, scene.random)


def _move(frame: Pixels, scene: Scene) -> Pixels:
    scene.place = (scene.place + 1) % len(scene.photographs) if scene.number == BEFORE + 1 else scene.place
    return frame


FAULTS: dict[CameraState, Callable[[Pixels, Scene], Pixels]] = {
    CameraState.BLACK: lambda frame, scene: add_noise(np.full(frame.shape, 2.0), 2.0, scene.random),
    CameraState.WHITE: lambda frame, scene: np.full_like(frame, 255),
    CameraState.ONE_COLOUR: lambda frame, scene: np.full_like(frame, (40, 90, 200)),
    CameraState.STATIC: lambda frame, scene: scene.random.integers(0, 256, frame.shape, np.uint8),
    CameraState.STUCK: lambda frame, scene: scene.last,
    CameraState.COVERED: _cover,
    CameraState.BLURRED: lambda frame, scene: _blur(frame, len(frame) / 32),
    CameraState.UPSIDE_DOWN: lambda frame, scene: np.ascontiguousarray(frame[::-1, ::-1]),
    CameraState.MOVED: _move,
}


def follow(frames: Iterator[Pixels]) -> Iterator[CameraHealth]:
    """Yield the health of a camera after each frame, one a second."""
    camera = CameraHealth()
    for second, frame in enumerate(frames):
        camera, _ = note_pictures(camera, [measure_picture(Image.fromarray(frame))], 1e9 + second)
        yield camera


def count_alarms(scene: Scene, frames: int) -> list[tuple[int, CameraState]]:
    """Return the alarms of an ordinary camera, with their frames."""
    left, last = 0, scene.read()

    def read() -> Iterator[Pixels]:
        nonlocal left, last
        for _ in range(frames):
            if scene.kind != "repeating" or not left:
                left, last = int(scene.random.integers(1, 11)), scene.read()
            left -= 1
            yield last

    states = [camera.state for camera in follow(read())]
    pairs = enumerate(pairwise(states), 1)
    return [(number, after) for number, (before, after) in pairs if after not in (before, CameraState.OK)]


def run_fault(scene: Scene, fault: CameraState) -> tuple[list[CameraState], int | None, bool]:
    """Return the states that were entered in a fault, the frames until the right one, and if it ended afterwards."""

    def read() -> Iterator[Pixels]:
        for number in range(BEFORE + DURING + AFTER):
            if number == BEFORE + DURING and fault is CameraState.MOVED:
                scene.place -= 1
            frame = scene.read()
            yield FAULTS[fault](frame, scene) if BEFORE <= number < BEFORE + DURING else frame

    states = [camera.state for camera in follow(read())]
    during = states[BEFORE : BEFORE + DURING]
    entered = [state for before, state in zip([states[BEFORE - 1], *during], during, strict=False) if state != before]
    soon = during.index(fault) + 1 if fault in during else None
    return entered, soon, states[-1] is CameraState.OK


def run(options: argparse.Namespace) -> str | None:
    """Print both tables."""
    part = int(options.confirm)
    if options.images:
        photographs = [np.asarray(open_image(path)) for path in list_images(options.images)[part::2]]
    else:
        found = Photographs()
        photographs = found.read(CLEAN, 0, range(part, len(found.labels(CLEAN)), 2))
    rows = [["camera", "frames", "false alarms", "at frame"]]
    for number, kind in enumerate(("mixed", "fixed", "fixed", "repeating")):
        alarms = count_alarms(Scene(photographs, kind, np.random.default_rng([part, number])), options.frames // 4)
        rows.append([kind, str(options.frames // 4), str(len(alarms)), ", ".join(f"{n}: {what}" for n, what in alarms)])
    print(format_table(rows, texts=1) + "\n")
    rows = [["fault", "camera", "cameras", "noticed", "median frames", "most", "first called otherwise", "ended"]]
    for place, fault in enumerate(FAULTS):
        for kind in ("mixed", "fixed"):
            if fault in (CameraState.MOVED, CameraState.UPSIDE_DOWN) and kind == "mixed":
                continue  # it has no view of its own
            scenes = [Scene(photographs, kind, np.random.default_rng([part, place, n])) for n in range(options.cameras)]
            results = [run_fault(scene, fault) for scene in scenes]
            soon = sorted(one for _, one, _ in results if one is not None)
            other = sum(bool(entered) and entered[0] is not fault for entered, _, _ in results)
            times = [str(soon[len(soon) // 2]), str(soon[-1])] if soon else ["–", "–"]
            numbers = [str(len(soon)), *times, str(other), str(sum(ended for *_, ended in results))]
            rows.append([str(fault), kind, str(options.cameras), *numbers])
    print(format_table(rows, texts=2))
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.cameras`` and return its exit code."""
    parser = build_parser("cameras", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--images", metavar="FOLDER", help="photographs, all of one size (default: those that come with lmr)")
    add("--frames", type=int, default=10_000, metavar="N", help="ordinary frames (default: %(default)s)")
    add("--cameras", type=int, default=20, metavar="N", help="cameras of each fault (default: %(default)s)")
    add("--confirm", action="store_true", help="take the photographs that no limit was chosen on")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
