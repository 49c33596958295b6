"""DemoCameras: threads that send the frames of simulated cameras to a service, and tell it the truth afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lmr.apps.serve_demo.simulated_camera import SCRIPTS, CameraScript, SimulatedCamera
from lmr.data.photographs import Photographs
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError

PER_SECOND = 8.0  # requests of a camera, at most
JOIN_SECONDS = 30.0


@dataclass(frozen=True)
class CameraReport:
    """What the service says of a camera at the end; accuracies on labelled images that were compared."""

    camera: str
    requests: int
    accuracy: float | None
    frozen_accuracy: float | None
    health: str
    events: list[str]


class DemoCameras:
    """Cameras that send until ``stop``; a service that ends first stops them too."""

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
        """Let them send for so long, or until they are stopped."""
        self._ended.wait(seconds)

    def report(self) -> list[CameraReport]:
        """What came of each camera."""
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
    """A table for a terminal; accuracies in %."""
    head = ("camera", "requests", "adapted", "frozen", "gain", "health", "what the watch did")
    rows: list[tuple[str, ...]] = [head]
    for one in reports:
        numbers = [_percent(one.accuracy), _percent(one.frozen_accuracy)]
        both = one.accuracy is not None and one.frozen_accuracy is not None
        gain = f"{100 * ((one.accuracy or 0) - (one.frozen_accuracy or 0)):+.1f}" if both else "–"
        rows.append((one.camera, str(one.requests), *numbers, gain, one.health, ", ".join(one.events) or "–"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if 0 < column < 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
