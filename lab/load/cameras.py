"""Cameras that send through every fault, and the check that no request was lost or applied twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from lab.load.inputs import LoadModel, draw_image, draw_pixels, make_method, name_streams
from lmr.core.state import decode_state
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError
from lmr.service.engine.requests import ServiceAnswer

EACH = 2  # images of a request
ANSWER_SECONDS = 60.0  # to wait for an answer after a fault
PATIENCE = 600.0
ATTEMPT_SECONDS = 20.0


class SteadyCamera(threading.Thread):
    """A thread that sends each request until it is acknowledged, and checks that their numbers are consecutive."""

    def __init__(
        self, url: str, stream: str, number: int, side: int, ended: threading.Event, pause: float = 0.0
    ) -> None:
        super().__init__(daemon=True)
        self.stream, self.number = stream, number
        self.answers: list[ServiceAnswer] = []
        self.wrong: list[str] = []
        self.failure: BaseException | None = None
        self._url, self._side, self._ended, self._pause = url, side, ended, pause

    def run(self) -> None:
        """Send until ``ended`` is set."""
        try:
            with Client(self._url, patience=PATIENCE, timeout=ATTEMPT_SECONDS) as client:
                while not self._ended.is_set():
                    turn = len(self.answers)
                    images = [draw_image(place, self._side) for place in self.list_places(turn)]
                    answer = client.step(self.stream, images, key=f"{self.stream}-{turn}", top=1)
                    if answer.seq != turn + 1 or not answer.saved:
                        self.wrong.append(f"{self.stream}: request {turn + 1} was acknowledged as {answer.seq}")
                    self.answers.append(answer)
                    self._ended.wait(self._pause)
        except BaseException as error:  # reported in the result
            self.failure = error

    def list_places(self, turn: int) -> list[int]:
        """Return the numbers of the images of a request."""
        return [1_000_000 * self.number + EACH * turn + k for k in range(EACH)]


@dataclass(frozen=True)
class SoloGap:
    """The differences between a stream and a run of the same requests in one process without faults."""

    state: float = 0.0  # the largest relative difference of an adapted tensor
    probability: float = 0.0  # of an answer
    labels: int = 0  # answers with another label

    def join(self, other: SoloGap) -> SoloGap:
        """Return the worse of two streams."""
        return SoloGap(
            max(self.state, other.state), max(self.probability, other.probability), self.labels + other.labels
        )


class SteadyCameras:
    """Cameras that send from the start of the context until ``finish``, with ``pause`` seconds after each answer."""

    def __init__(self, url: str, model: LoadModel, count: int, pause: float = 0.0) -> None:
        self._url, self._model, self._ended = url, model, threading.Event()
        self.cameras = [
            SteadyCamera(url, name, number, model.side, self._ended, pause)
            for number, name in enumerate(name_streams(count))
        ]

    def __enter__(self) -> Self:
        for camera in self.cameras:
            camera.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    @property
    def acknowledged(self) -> int:
        """Return the number of answered requests."""
        return sum(len(camera.answers) for camera in self.cameras)

    @property
    def replayed(self) -> int:
        """Return the number of requests that got a stored answer."""
        return sum(answer.replayed for camera in self.cameras for answer in camera.answers)

    def wait_for_answer(self) -> bool:
        """Wait for the next acknowledged request, so that a fault comes during work; return False if none came."""
        before, end = self.acknowledged, time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            if self.acknowledged > before:
                return True
            time.sleep(0.005)
        return False

    def finish(self) -> list[str]:
        """Let every camera end with an answer; return the problems as sentences."""
        self._ended.set()
        for camera in self.cameras:
            camera.join(PATIENCE)
        wrong = [problem for camera in self.cameras for problem in camera.wrong]
        wrong += [f"{camera.stream}: {camera.failure}" for camera in self.cameras if camera.failure is not None]
        with Client(self._url) as client:
            for camera in self.cameras:
                wrong += _check_end(client, camera)
        return wrong

    def compare(self, spec: str, watched: bool) -> SoloGap:
        """Compare the states and answers of all served cameras with solo runs of their requests."""
        served = [camera for camera in self.cameras if camera.answers]
        with Client(self._url) as client:
            states = [client.state(camera.stream) for camera in served]
        gap = SoloGap()
        for camera, state in zip(served, states, strict=True):
            gap = gap.join(_compare(self._model, camera, state, spec, watched))
        return gap


def _check_end(client: Client, camera: SteadyCamera) -> Sequence[str]:
    """Return the problem if the service has fewer or more steps of a stream than it has acknowledged."""
    if not camera.answers:
        return []
    try:
        seq = client.stream(camera.stream).status.seq
    except ServiceError as error:
        return [str(error)]
    if seq == len(camera.answers):
        return []
    return [f"{camera.stream}: {len(camera.answers)} acknowledged, but the store has {seq}"]


def _compare(model: LoadModel, camera: SteadyCamera, state: bytes, spec: str, watched: bool) -> SoloGap:
    backbone = model.load()
    solo = make_method(model, backbone, 1, spec, watched)
    worst, labels = 0.0, 0
    for turn, answer in enumerate(camera.answers):
        pixels = [draw_pixels(place, model.side) for place in camera.list_places(turn)]
        alone = solo.step(backbone.preprocess(pixels))
        shares, best = alone.logits.softmax(1).max(1)
        for row, found in enumerate(answer.answers):
            worst = max(worst, abs(float(shares[row]) - (found.probability or 0.0)))
            labels += model.classes[int(best[row])] != found.label
    (expected, _), (kept, _) = decode_state(solo.dump([0]), "the solo run"), decode_state(state, "the service")
    gaps = [
        float((value - kept[key]).abs().max()) / (float(value.abs().max()) or 1.0)
        for key, value in expected.items()
        if value.is_floating_point() and not key.startswith("watch/")
    ]
    return SoloGap(max(gaps), worst, labels)
