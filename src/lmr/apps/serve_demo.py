"""``lmr serve --demo``: the service with simulated cameras whose weather turns bad, and some where adapting is hard."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmr.apps.method_options import MethodOptions
from lmr.apps.options import ServerOptions
from lmr.apps.serve import Report, ServingPlan, choose_token, open_server
from lmr.bench.table import format_table
from lmr.core.answer import Answer
from lmr.core.errors import LmrError
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.dataset import CLEAN
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceBusy, ServiceError
from lmr.service.engine.records import describe_labels
from lmr.service.engine.status import StreamDetail
from lmr.service.settings import ServiceSettings

CLASSES = "cifar10"
FRAMES = 8  # in a request
KEPT = 32  # requests whose truth a camera remembers
LABELS = 10  # that a camera with labels gets
PER_SECOND = 4.0  # requests of a camera, at most
STATIC = "static"  # a broken sensor: random colours instead of an image
STILL = "still"  # a scene in which nothing moves: the same frame again and again
DOMINANT = 0.8  # share of the dominant class of a camera that has one
RAMP = 20  # requests in which the weather goes from mild to its worst
JOIN_SECONDS = 30.0
PATIENCE = 20.0  # seconds that a camera waits for a busy service at a time


def serve_demo(
    seconds: float | None = None,
    where: ServerOptions | None = None,
    *,
    report: Report = print,
) -> None:
    """Serve eight simulated cameras until Ctrl-C, or for some seconds; then report the results of each.

    Method, watch and limits are the defaults of ``lmr serve``; the page shows frames. The ``store`` of ``where`` is
    not used: states are in a temporary folder.
    """
    if seconds is not None and not 0 < seconds < float("inf"):
        raise LmrError(f"Expected a positive number of seconds, got {seconds}.")
    where = where or ServerOptions()
    token = choose_token(where.host, where.token_file)
    failures: list[Exception] = []

    with tempfile.TemporaryDirectory(prefix="lmr-serve-demo-") as folder:
        options = MethodOptions(labels=list(read_list(CLASSES)), watch="on").resolve()
        note = f"A demonstration with simulated cameras; nobody labels: {_describe_labels()}."
        plan = ServingPlan(options, ServiceSettings(show_frames=True, note=note))
        store = f"sqlite:{os.path.join(folder, 'streams.sqlite')}"
        where = replace(where, store=store, log_level=where.log_level or "warning")
        with open_server(plan, where, report=report) as server:
            cameras = DemoCameras(server.url, token)

            def end() -> None:
                cameras.stop()
                try:
                    report("\n" + cameras.report())
                except LmrError as error:
                    failures.append(error)
                failures[:0] = cameras.failures

            def stop_later(seconds: float) -> None:
                cameras.wait(seconds)
                server.stop()

            server.on_stop = end  # while the service still answers
            how = "Ctrl-C ends it" if seconds is None else f"it ends after {seconds:g} s"
            report(
                "eight simulated cameras: the weather of five turns bad, one sees mostly cars, one the same frame, one "
                f"breaks; {how}"
            )
            report(_describe_labels())
            cameras.start()
            if seconds is not None:
                threading.Thread(target=stop_later, args=(seconds,), name="demo", daemon=True).start()
            server.run()
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class CameraScript:
    """A camera whose images have ``weather`` from request ``onset`` on, until ``end`` if there is one.

    ``dominant`` is a class that 80 % of its images show. After request ``labelled`` it gets LABELS labels.
    """

    name: str
    sees: str  # in words, for people
    weather: str
    onset: int
    end: int | None = None
    dominant: str | None = None
    labelled: int | None = None

    def find_severity(self, request: int) -> int:
        """Return 0 for clear, 1 to 5 for the weather."""
        if request < self.onset or (self.end is not None and request >= self.end):
            return 0
        return min(5, 1 + 5 * (request - self.onset) // RAMP)

    def take(self, request: int, photographs: Photographs, seed: int) -> tuple[NDArray[np.uint8], list[str | None]]:
        """Return photographs [FRAMES, 32, 32, 3] in the weather of a request, and their classes; None if unknown.

        They are the same for the same seed and number of a request.
        """
        severity = self.find_severity(request)
        still = bool(severity) and self.weather == STILL
        random = np.random.default_rng([seed, self.onset if still else request])
        labels = photographs.labels(CLEAN)
        index = random.integers(0, len(labels), FRAMES)
        if self.dominant is not None:
            own = np.flatnonzero(labels == photographs.classes.index(self.dominant))
            index = np.where(random.random(FRAMES) < DOMINANT, own[index % len(own)], index)
        if still:
            index[:] = index[0]
        clear = np.stack(photographs.read(CLEAN, 0, index.tolist()))
        if severity and self.weather == STATIC:
            return random.integers(0, 256, clear.shape, np.uint8), [None] * FRAMES
        names: list[str | None] = [photographs.classes[label] for label in labels[index]]
        if not severity or still:
            return clear, names
        return corrupt_batch(clear, self.weather, severity, seed=seed, indices=index, constants="cifar"), names


SCRIPTS: tuple[CameraScript, ...] = (
    CameraScript("cam-1-fog", "fog comes up", "fog", 10),
    CameraScript("cam-2-snow", "snow falls", "snow", 20),
    CameraScript("cam-3-rain", "drops on the lens", "spatter", 25),
    CameraScript("cam-4-dusk", "contrast fades", "contrast", 15),
    CameraScript("cam-5-night", "sensor noise", "gaussian_noise", 20),
    CameraScript("cam-6-cars", "80 % cars, sensor noise", "gaussian_noise", 20, dominant="automobile", labelled=40),
    CameraScript("cam-7-still", "the same frame", STILL, 10),
    CameraScript("cam-8-broken", "random colours, then well again", STATIC, 10, 80),
)


@dataclass
class Result:
    """Counts of the images of a camera, answered by the adapted and by the frozen model."""

    images: int = 0
    changed: int = 0  # answers that differ
    labelled: int = 0
    adapted: int = 0  # right answers
    frozen: int = 0
    decisive: int = 0  # labelled images on which exactly one of the two is right

    def add(self, answers: Sequence[Answer], labels: Sequence[str | None]) -> None:
        """Count the answers to a request."""
        for answer, truth in zip(answers, labels, strict=True):
            self.images += 1
            self.changed += answer.label != answer.frozen
            if truth is not None:
                self.labelled += 1
                self.adapted += answer.label == truth
                self.frozen += answer.frozen == truth
                self.decisive += (answer.label == truth) != (answer.frozen == truth)

    @property
    def gain(self) -> tuple[float, float] | None:
        """The gain in points and half of its 95 % interval, as if images were independent; None without labels."""
        if not self.labelled:
            return None
        mean = (self.adapted - self.frozen) / self.labelled
        variance = max(0.0, self.decisive / self.labelled - mean**2) / self.labelled
        return 100 * mean, 196 * variance**0.5

    @property
    def verdict(self) -> str:
        """What adapting did, in words."""
        if not self.changed:
            return "same answers"
        if self.gain is None:
            return "no labels"
        gain, half = self.gain
        return "no clear difference" if abs(gain) <= half else "helped" if gain > 0 else "hurt"


class DemoCameras:
    """Threads that send frames and then their true labels until ``stop``; a service that ends first stops them too."""

    def __init__(self, url: str, token: str | None = None, scripts: Sequence[CameraScript] = SCRIPTS) -> None:
        self._url, self._token, self._scripts = url, token, scripts
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.results = {script.name: Result() for script in scripts}
        self.taught = {script.name: Result() for script in scripts if script.labelled is not None}  # since its labels
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
        """Return the results of each camera as a table, over all its images."""
        with Client(self._url, self._token) as client:
            served = {one.stream for one in client.streams()}
            scripts = [script for script in self._scripts if script.name in served]
            streams = [client.stream(script.name) for script in scripts]
        return format_results(scripts, [self.results[script.name] for script in scripts], streams, self.taught)

    def _send(self, script: CameraScript, photographs: Photographs, seed: int) -> None:
        request, due = 0, time.monotonic()
        truths: dict[int, list[str | None]] = {}  # of the requests, by their seq
        result = self.results[script.name]
        with Client(self._url, self._token, patience=PATIENCE) as client:
            while request == 0 or not self._ended.is_set():  # at least once, so that there is something to report
                pixels, labels = script.take(request, photographs, seed)
                try:
                    answer = client.step(script.name, list(pixels), compare=True)
                    result.add(answer.answers, labels)
                    if any(labels):
                        client.labels(script.name, answer.seq, labels, teach=False)
                    truths[answer.seq] = labels
                    truths.pop(answer.seq - KEPT, None)
                    if request == script.labelled:
                        _teach(client, script.name, truths)
                        result = self.taught[script.name]
                except ServiceBusy:
                    if self._ended.is_set():
                        return
                    continue  # a slow machine: this camera sends the same images again
                except ServiceError as error:
                    if not self._ended.is_set():
                        self.failures.append(error)
                    return
                request += 1
                due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
                self._ended.wait(max(0.0, due - time.monotonic()))


def _describe_labels() -> str:
    taught = [one for one in SCRIPTS if one.labelled is not None]
    said = (f"{one.name} gets {LABELS} labels, from its known truth, after request {one.labelled}" for one in taught)
    return ", ".join(said)


def _teach(client: Client, stream: str, truths: Mapping[int, Sequence[str | None]]) -> None:
    for one in client.label_queue(stream, LABELS):
        truth = truths[one.seq]
        client.labels(stream, one.seq, [name if place == one.image else None for place, name in enumerate(truth)])


def format_results(
    scripts: Sequence[CameraScript],
    results: Sequence[Result],
    streams: Sequence[StreamDetail],
    taught: Mapping[str, Result] | None = None,
) -> str:
    """Return a table of what happened to each camera, with a line that says how to read it.

    A camera that was ``taught`` labels has a second row for its images since.
    """
    rows = [
        ["camera", "what it sees", "what was noticed", "adapting", "images", "changed", "frozen", "adapted", "gain"]
    ]
    notes = []
    for script, result, detail in zip(scripts, results, streams, strict=True):
        events = [f"{event.before} → {event.after}" for event in detail.events if event.kind in ("health", "camera")]
        did = ", ".join(events) or "nothing"
        rows.append([script.name, script.sees, did, *_list_numbers(result)])
        if taught and (later := taught.get(script.name)) and later.images:
            rows.append([f"{script.name} + labels", f"the same, after {LABELS} labels", "", *_list_numbers(later)])
            notes.append(
                f"\n{script.name} was told the truth of {LABELS} random frames after request {script.labelled}; "
                f"'+ labels' is of its images since.\n{describe_labels(detail.status)}"
            )
    return (
        f"{format_table(rows, texts=4)}\n\n"
        "In %, over the whole run: answers that adapting changed; right answers of the frozen and of the adapted model "
        "on the same\nlabelled images; the gain in points with its 95 % interval, images taken as independent."
        + "".join(notes)
    )


def _list_numbers(result: Result) -> list[str]:
    shares = ["–", "–", "–"]
    if (gain := result.gain) is not None:
        shares = [f"{100 * right / result.labelled:.1f}" for right in (result.frozen, result.adapted)]
        shares.append(f"{gain[0]:+.1f} ± {gain[1]:.1f}")
    changed = f"{100 * result.changed / max(1, result.images):.1f}"
    return [result.verdict, str(result.images), changed, *shares]
