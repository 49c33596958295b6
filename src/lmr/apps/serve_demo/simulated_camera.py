"""SimulatedCamera: photographs of the package under weather that turns bad, or from a sensor that breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmr.data.corruptions import corrupt_batch
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs

FRAMES = 4  # in a request
STATIC = "static"  # a broken sensor: random colours instead of a picture
RAMP = 40  # requests in which the weather goes from mild to its worst


@dataclass(frozen=True)
class CameraScript:
    """What happens to a camera: ``weather`` from request ``onset`` on, until ``end`` if there is one."""

    name: str
    weather: str
    onset: int
    end: int | None = None

    def find_severity(self, request: int) -> int:
        """0 for clear, 1 to 5 for the weather."""
        if request < self.onset or (self.end is not None and request >= self.end):
            return 0
        return min(5, 1 + 5 * (request - self.onset) // RAMP)


SCRIPTS: tuple[CameraScript, ...] = (
    CameraScript("cam-1-fog", "fog", 20),
    CameraScript("cam-2-snow", "snow", 35),
    CameraScript("cam-3-rain", "spatter", 50),
    CameraScript("cam-4-dusk", "contrast", 65),
    CameraScript("cam-5-night", "gaussian_noise", 80),
    CameraScript("cam-6-wind", "motion_blur", 95),
    CameraScript("cam-7-bad-link", "pixelate", 110),
    CameraScript("cam-8-broken", STATIC, 20, 150),
)


@dataclass(frozen=True)
class CameraFrames:
    """Pixels [FRAMES, 32, 32, 3] and their true classes, None where there is nothing to see."""

    pixels: NDArray[np.uint8]
    labels: list[str | None]


class SimulatedCamera:
    """The frames of a script: the same for the same seed and number of the request."""

    def __init__(self, script: CameraScript, photographs: Photographs, seed: int) -> None:
        self.script = script
        self._seed, self._classes = seed, photographs.classes
        self._photographs, self._labels = photographs, photographs.labels(CLEAN)

    def take(self, request: int) -> CameraFrames:
        """The frames of a request."""
        random = np.random.default_rng([self._seed, request])
        index = random.integers(0, len(self._labels), FRAMES)
        clear = np.stack(self._photographs.read(CLEAN, 0, index.tolist()))
        severity = self.script.find_severity(request)
        if severity and self.script.weather == STATIC:
            return CameraFrames(random.integers(0, 256, clear.shape, np.uint8), [None] * FRAMES)
        labels: Sequence[str] = [self._classes[label] for label in self._labels[index]]
        if not severity:
            return CameraFrames(clear, list(labels))
        bad = corrupt_batch(clear, self.script.weather, severity, seed=self._seed, indices=index, constants="cifar")
        return CameraFrames(bad, list(labels))
