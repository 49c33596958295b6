from __future__ import annotations

import numpy as np
import pytest

from lmr.apps.serve_demo.simulated_camera import FRAMES, RAMP, SCRIPTS, STATIC, CameraScript, SimulatedCamera
from lmr.data.corruptions import CORRUPTIONS, EXTRA, corrupt_batch
from lmr.data.photographs import Photographs

PHOTOGRAPHS = Photographs()


def test_weather_turns_bad_one_after_the_other() -> None:
    assert len(SCRIPTS) == len({script.name for script in SCRIPTS}) == 8
    onsets = [script.onset for script in SCRIPTS if script.weather != STATIC]
    assert onsets == sorted(set(onsets))
    assert {script.weather for script in SCRIPTS} - {STATIC} <= {*CORRUPTIONS, *EXTRA}


def test_severity_rises_and_ends() -> None:
    script = CameraScript("cam", "fog", 10, 100)
    severities = [script.find_severity(request) for request in range(120)]
    assert severities[:10] == [0] * 10
    assert severities[10] == 1
    assert severities == sorted(severities[:100]) + [0] * 20
    assert set(severities[10 + RAMP : 100]) == {5}


def test_frames_are_real_photographs_with_their_labels() -> None:
    camera = SimulatedCamera(CameraScript("cam", "fog", 5), PHOTOGRAPHS, seed=3)
    clear = camera.take(0)
    assert clear.pixels.shape == (FRAMES, 32, 32, 3)
    everything = np.stack(PHOTOGRAPHS.read("clean", 0, range(2000)))
    for pixels, label in zip(clear.pixels, clear.labels, strict=True):
        (place,) = np.flatnonzero((everything == pixels).all((1, 2, 3)))[:1]
        assert PHOTOGRAPHS.classes[PHOTOGRAPHS.labels("clean")[place]] == label


def test_the_same_request_has_the_same_frames() -> None:
    script = CameraScript("cam", "snow", 0)
    first, again = (SimulatedCamera(script, PHOTOGRAPHS, seed=1).take(7) for _ in range(2))
    assert np.array_equal(first.pixels, again.pixels)
    other = SimulatedCamera(script, PHOTOGRAPHS, seed=2).take(7)
    assert not np.array_equal(first.pixels, other.pixels)


def test_bad_weather_is_the_corruption_of_the_benchmarks() -> None:
    camera, clear = (SimulatedCamera(CameraScript("cam", "fog", onset), PHOTOGRAPHS, 1) for onset in (0, 10_000))
    index = np.random.default_rng([1, 90]).integers(0, 2000, FRAMES)
    expected = corrupt_batch(clear.take(90).pixels, "fog", 5, seed=1, indices=index, constants="cifar")
    assert np.array_equal(camera.take(90).pixels, expected)


def test_a_broken_sensor_shows_nothing_and_has_no_labels() -> None:
    camera = SimulatedCamera(CameraScript("cam", STATIC, 0, 5), PHOTOGRAPHS, 1)
    broken = camera.take(0)
    assert broken.labels == [None] * FRAMES
    assert broken.pixels.mean() == pytest.approx(127.5, abs=5)
    assert None not in camera.take(5).labels
