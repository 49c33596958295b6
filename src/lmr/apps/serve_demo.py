"""``lmr serve --demo``: the service with simulated cameras whose weather turns bad, one of which breaks."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmr.apps.serve import Report, ServerOptions, ServingPlan, choose_token, serve_classifier
from lmr.core.errors import LmrError
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.dataset import CLEAN
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError
from lmr.service.settings import ServiceSettings
from lmr.watch.settings import WatchSettings

WATCH = WatchSettings(every=2)  # compares one image in two instead of one in 16, to notice sooner
METHOD = "lmr(pace='batch')"  # the rates of the paper hold for a batch of 64; here each small request is such a batch
CLASSES = "cifar10"
FRAMES = 4  # in a request
PER_SECOND = 8.0  # requests of a camera, at most
STATIC = "static"  # a broken sensor: random colours instead of an image
RAMP = 40  # requests in which the weather goes from mild to its worst
JOIN_SECONDS = 30.0


def serve_demo(
    seconds: float | None = None,
    where: ServerOptions | None = None,
    *,
    settings: ServiceSettings | None = None,
    report: Report = print,
) -> None:
    """Serve eight simulated cameras until Ctrl-C, or for some seconds; then report the results of each.

    The ``state_dir`` of ``where`` is not used: states are in a temporary folder.
    """
    if seconds is not None and not 0 < seconds < float("inf"):
        raise LmrError(f"Expected a positive number of seconds, got {seconds}.")
    where = where or ServerOptions(log_level="warning")
    token = choose_token(where.host, where.token_file)
    running: list[DemoCameras] = []
    failures: list[Exception] = []

    def begin(url: str, stop: Callable[[], None]) -> None:
        how = "Ctrl-C ends it" if seconds is None else f"it ends after {seconds:g} s"
        report(f"eight simulated cameras; their weather turns bad one after the other, and one breaks; {how}")
        cameras = DemoCameras(url, token)
        running.append(cameras)
        cameras.start()

        def stop_later(seconds: float) -> None:
            cameras.wait(seconds)
            stop()

        if seconds is not None:
            threading.Thread(target=stop_later, args=(seconds,), name="demo", daemon=True).start()

    def end() -> None:
        """Before the service refuses requests: end the cameras and report their results."""
        for cameras in running:
            cameras.stop()
            try:
                report("\n" + format_reports(cameras.report()))
            except LmrError as error:
                failures.append(error)
            failures[:0] = cameras.failures

    with tempfile.TemporaryDirectory(prefix="lmr-serve-demo-") as folder:
        plan = ServingPlan(list(read_list(CLASSES)), method=METHOD, watch=WATCH, settings=settings or ServiceSettings())
        where = replace(where, state_dir=os.path.join(folder, "state"))
        serve_classifier(plan, where, report=report, on_ready=begin, on_stop=end)
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class CameraScript:
    """The script of a camera: ``weather`` from request ``onset`` on, until ``end`` if there is one."""

    name: str
    weather: str
    onset: int
    end: int | None = None

    def find_severity(self, request: int) -> int:
        """Return 0 for clear, 1 to 5 for the weather."""
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
    """Photographs of the package under the weather of a script; the same for the same seed and number of a request."""

    def __init__(self, script: CameraScript, photographs: Photographs, seed: int) -> None:
        self.script = script
        self._seed, self._classes = seed, photographs.classes
        self._photographs, self._labels = photographs, photographs.labels(CLEAN)

    def take(self, request: int) -> CameraFrames:
        """Return the frames of a request."""
        random = np.random.default_rng([self._seed, request])
        index = random.integers(0, len(self._labels), FRAMES)
        clear = np.stack(self._photographs.read(CLEAN, 0, index.tolist()))
        severity = self.script.find_severity(request)
        if severity and self.script.weather == STATIC:
            return CameraFrames(random.integers(0, 256, clear.shape, np.uint8), [None] * FRAMES)
        labels: list[str | None] = [self._classes[label] for label in self._labels[index]]
        if not severity:
            return CameraFrames(clear, labels)
        bad = corrupt_batch(clear, self.script.weather, severity, seed=self._seed, indices=index, constants="cifar")
        return CameraFrames(bad, labels)


@dataclass(frozen=True)
class CameraReport:
    """The results of a camera at the end; accuracies on labelled images that were compared with the frozen model."""

    camera: str
    requests: int
    accuracy: float | None
    frozen_accuracy: float | None
    health: str
    events: list[str]


class DemoCameras:
    """Threads that send frames and then their true labels until ``stop``; a service that ends first stops them too."""

    def __init__(self, url: str, token: str | None = None, scripts: Sequence[CameraScript] = SCRIPTS) -> None:
        self._url, self._token, self._scripts = url, token, scripts
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failures: list[Exception] = []

    def start(self) -> None:
        """Begin to send."""
        photographs = Photographs()
        for seed, script in enumerate(self._scripts):
            camera = SimulatedCamera(script, photographs, seed)
            thread = threading.Thread(target=self._send, args=(camera,), name=f"demo-{script.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the cameras, after the requests that they wait for."""
        self._ended.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, or until the cameras are stopped."""
        self._ended.wait(seconds)

    def report(self) -> list[CameraReport]:
        """Return the results of each camera."""
        found = []
        with Client(self._url, self._token) as client:
            for script in self._scripts:
                detail = client.stream(script.name)
                now = detail.status
                events = [f"{event.before} → {event.after}" for event in detail.events if event.kind == "health"]
                found.append(
                    CameraReport(script.name, now.seq, now.compared_accuracy, now.frozen_accuracy, now.health, events)
                )
        return found

    def _send(self, camera: SimulatedCamera) -> None:
        name, request, due = camera.script.name, 0, time.monotonic()
        with Client(self._url, self._token, patience=20) as client:
            while request == 0 or not self._ended.is_set():  # at least once, so that there is something to report
                frames = camera.take(request)
                try:
                    answer = client.step(name, list(frames.pixels))
                    if any(frames.labels):
                        client.labels(name, answer.seq, frames.labels)
                except ServiceError as error:
                    if not self._ended.is_set():
                        self.failures.append(error)
                    return
                request += 1
                due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
                self._ended.wait(max(0.0, due - time.monotonic()))


def format_reports(reports: Sequence[CameraReport]) -> str:
    """Return a table for a terminal; accuracies in %."""
    head = ("camera", "requests", "adapted", "frozen", "gain", "health", "what the watch did")
    rows: list[tuple[str, ...]] = [head]
    for one in reports:
        gain = "–"
        if one.accuracy is not None and one.frozen_accuracy is not None:
            gain = f"{100 * (one.accuracy - one.frozen_accuracy):+.1f}"
        shares = ["–" if share is None else f"{100 * share:.1f}" for share in (one.accuracy, one.frozen_accuracy)]
        rows.append((one.camera, str(one.requests), *shares, gain, one.health, ", ".join(one.events) or "–"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if 0 < column < 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
