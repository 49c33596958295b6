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

from lmr.apps.options import ServerOptions
from lmr.apps.serve import Report, ServingPlan, choose_token, serve_classifier
from lmr.bench.table import format_table
from lmr.core.errors import LmrError
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.dataset import CLEAN
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError
from lmr.service.engine.status import StreamDetail
from lmr.service.settings import ServiceSettings
from lmr.watch.settings import WatchSettings

WATCH = WatchSettings(every=2)  # compares one image in two instead of one in 16, to notice sooner
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
    method: str = "lmr(pace='batch')",
    settings: ServiceSettings | None = None,
    report: Report = print,
) -> None:
    """Serve eight simulated cameras until Ctrl-C, or for some seconds; then report the results of each.

    The ``state_dir`` of ``where`` is not used: states are in a temporary folder. The default method adapts from the
    first image on. The rates of the paper hold for a batch of 64; here each small request is such a batch.
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
                report("\n" + cameras.report())
            except LmrError as error:
                failures.append(error)
            failures[:0] = cameras.failures

    with tempfile.TemporaryDirectory(prefix="lmr-serve-demo-") as folder:
        plan = ServingPlan(list(read_list(CLASSES)), method=method, watch=WATCH, settings=settings or ServiceSettings())
        where = replace(where, state_dir=os.path.join(folder, "state"))
        serve_classifier(plan, where, report=report, on_ready=begin, on_stop=end)
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class CameraScript:
    """A camera whose images have ``weather`` from request ``onset`` on, until ``end`` if there is one."""

    name: str
    weather: str
    onset: int
    end: int | None = None

    def find_severity(self, request: int) -> int:
        """Return 0 for clear, 1 to 5 for the weather."""
        if request < self.onset or (self.end is not None and request >= self.end):
            return 0
        return min(5, 1 + 5 * (request - self.onset) // RAMP)

    def take(self, request: int, photographs: Photographs, seed: int) -> tuple[NDArray[np.uint8], list[str | None]]:
        """Return photographs [FRAMES, 32, 32, 3] in the weather of a request, and their classes; None if unknown.

        They are the same for the same seed and number of a request.
        """
        random, labels = np.random.default_rng([seed, request]), photographs.labels(CLEAN)
        index = random.integers(0, len(labels), FRAMES)
        clear = np.stack(photographs.read(CLEAN, 0, index.tolist()))
        severity = self.find_severity(request)
        if severity and self.weather == STATIC:
            return random.integers(0, 256, clear.shape, np.uint8), [None] * FRAMES
        names: list[str | None] = [photographs.classes[label] for label in labels[index]]
        if not severity:
            return clear, names
        return corrupt_batch(clear, self.weather, severity, seed=seed, indices=index, constants="cifar"), names


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
            thread = threading.Thread(target=self._send, args=(script, photographs, seed), daemon=True)
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

    def report(self) -> str:
        """Return the results of each camera as a table; accuracies in %, on images that the frozen model answered."""
        with Client(self._url, self._token) as client:
            return format_streams([client.stream(script.name) for script in self._scripts])

    def _send(self, script: CameraScript, photographs: Photographs, seed: int) -> None:
        request, due = 0, time.monotonic()
        with Client(self._url, self._token, patience=20) as client:
            while request == 0 or not self._ended.is_set():  # at least once, so that there is something to report
                pixels, labels = script.take(request, photographs, seed)
                try:
                    answer = client.step(script.name, list(pixels))
                    if any(labels):
                        client.labels(script.name, answer.seq, labels)
                except ServiceError as error:
                    if not self._ended.is_set():
                        self.failures.append(error)
                    return
                request += 1
                due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
                self._ended.wait(max(0.0, due - time.monotonic()))


def format_streams(streams: Sequence[StreamDetail]) -> str:
    """Return a table of the accuracies, the health and the events of streams."""
    rows = [["camera", "health", "what the watch did", "requests", "adapted", "frozen", "gain"]]
    for detail in streams:
        now, adapted, frozen = detail.status, detail.status.compared_accuracy, detail.status.frozen_accuracy
        shares = ["–", "–", "–"]
        if adapted is not None and frozen is not None:
            shares = [f"{100 * adapted:.1f}", f"{100 * frozen:.1f}", f"{100 * (adapted - frozen):+.1f}"]
        events = [f"{event.before} → {event.after}" for event in detail.events if event.kind == "health"]
        rows.append([now.stream, now.health, ", ".join(events) or "–", str(now.seq), *shares])
    return format_table(rows, texts=3)
