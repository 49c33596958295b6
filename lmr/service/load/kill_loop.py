"""kill -9 at random moments under load: nothing that was acknowledged is lost, and nothing is applied twice."""

from __future__ import annotations

import random
import threading
import time

from lmr.service.client.client_errors import ServiceError
from lmr.service.client.service_client import Client
from lmr.service.load.load_bench import LoadBench, read_spec
from lmr.service.load.load_images import draw_image, draw_pixels
from lmr.service.load.load_models import find_pocket, make_method, name_streams
from lmr.service.load.load_result import LoadResult, judge

STREAMS, EACH = 6, 2
LONGEST_LIFE = 1.5  # seconds of service between an answer and a kill, at most
ANSWER_SECONDS = 60.0  # to wait for an answer after a start
COMPARED = 2  # streams whose states are compared
PATIENCE = 600.0
NEAR = 1e-3  # states: sums over a different number of streams in a batch round differently


class _Camera(threading.Thread):
    """Sends one request after the other, each until it is acknowledged, and checks that numbers follow each other."""

    def __init__(self, url: str, stream: str, number: int, side: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.stream, self.number, self.acknowledged, self.replayed = stream, number, 0, 0
        self.wrong: list[str] = []
        self.failure: BaseException | None = None
        self._url, self._side, self._ended = url, side, ended

    def run(self) -> None:
        """Until the end is announced."""
        try:
            with Client(self._url, patience=PATIENCE, timeout=20) as client:
                while not self._ended.is_set():
                    turn = self.acknowledged
                    images = [draw_image(place, self._side) for place in list_places(self.number, turn)]
                    answer = client.step(self.stream, images, key=f"{self.stream}-{turn}", top=1)
                    if answer.seq != turn + 1 or not answer.saved:
                        self.wrong.append(f"{self.stream}: request {turn + 1} was acknowledged as {answer.seq}")
                    self.acknowledged = answer.seq
                    self.replayed += answer.replayed
        except BaseException as error:  # told in the result
            self.failure = error


def list_places(stream: int, turn: int) -> list[int]:
    """The numbers of the images of a request."""
    return [1_000_000 * stream + EACH * turn + k for k in range(EACH)]


def measure_kills(bench: LoadBench) -> LoadResult:
    """Cameras send all the time, with retries under one key, while the service is killed and started again."""
    model, kills = find_pocket(), bench.count(bench.kills, 2)
    chance, ended = random.Random(bench.seed), threading.Event()
    names = name_streams(STREAMS)
    with bench.make_service(model, "kills") as service:
        spec, watched = read_spec(service)
        cameras = [_Camera(service.url, name, k, model.side, ended) for k, name in enumerate(names)]
        for camera in cameras:
            camera.start()
        busy = 0
        for kill in range(kills):
            busy += _wait_for_answer(cameras)
            time.sleep(chance.uniform(0, LONGEST_LIFE))
            service.kill()
            if kill % 10 == 9:
                bench.say(f"kill -9: {kill + 1} of {kills}")
            service.start()
        busy += _wait_for_answer(cameras)
        ended.set()
        for camera in cameras:
            camera.join(PATIENCE)
        wrong = [words for camera in cameras for words in camera.wrong]
        wrong += [f"{camera.stream}: {camera.failure}" for camera in cameras if camera.failure is not None]
        wrong += _check_ends(service.url, cameras)
        with Client(service.url) as client:
            served = [camera for camera in cameras if camera.acknowledged][:COMPARED]
            states = {camera.stream: client.state(camera.stream) for camera in served}
    gaps = [_compare_state(bench, states[camera.stream], camera, model.side, spec, watched) for camera in served]
    gap = max(gaps, default=0.0)
    acknowledged = sum(camera.acknowledged for camera in cameras)
    figures = {
        "kills": kills, "lives_with_answers": busy, "acknowledged": acknowledged,
        "answered_from_a_key": sum(camera.replayed for camera in cameras), "wrong": wrong[:10], "state_gap": gap,
    }  # fmt: skip
    return LoadResult(
        "kill -9",
        f"pocket, {STREAMS} cameras, {kills} kills",
        "every acknowledged request is there, a retry is applied once",
        f"{acknowledged} requests acknowledged, {figures['answered_from_a_key']} of them from a kept answer, "
        f"{len(wrong)} wrong; states within {gap:.0e} of runs without a kill",
        judge(not wrong, gap <= NEAR, acknowledged > 0),
        figures,
    )


def _wait_for_answer(cameras: list[_Camera]) -> bool:
    """Wait for the next acknowledged request, so that a kill comes while the service works; False if none came."""
    before, end = sum(camera.acknowledged for camera in cameras), time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < end:
        if sum(camera.acknowledged for camera in cameras) > before:
            return True
        time.sleep(0.005)
    return False


def _check_ends(url: str, cameras: list[_Camera]) -> list[str]:
    wrong = []
    with Client(url) as client:
        for camera in cameras:
            if not camera.acknowledged:
                continue
            try:
                seq = client.stream(camera.stream).status.seq
            except ServiceError as error:
                wrong.append(str(error))
                continue
            if seq != camera.acknowledged:
                wrong.append(f"{camera.stream}: {camera.acknowledged} acknowledged, but the store has {seq}")
    return wrong


def _compare_state(bench: LoadBench, state: bytes, camera: _Camera, side: int, spec: str, watched: bool) -> float:
    """The largest relative difference of the adapted norms from those of the same requests in one process."""
    import torch

    from lmr.core.state import read_state

    model = find_pocket()
    backbone = model.load()
    solo = make_method(model, backbone, 1, spec, watched)
    for turn in range(camera.acknowledged):
        pixels = [torch.from_numpy(draw_pixels(place, side).copy()) for place in list_places(camera.number, turn)]
        solo.step(backbone.preprocess_pixels(torch.stack(pixels)))
    mine, theirs = bench.folder / "solo.state", bench.folder / "service.state"
    solo.save(mine)
    theirs.write_bytes(state)
    (expected, _), (found, _) = read_state(mine), read_state(theirs)
    gaps = []
    for key, value in expected.items():
        if value.is_floating_point() and not key.startswith("watch/"):
            scale = float(value.abs().max()) or 1.0
            gaps.append(float((value - found[key]).abs().max()) / scale)
    return max(gaps)
