"""The health of a camera: made faults are named, ordinary frames are left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from engine_maker import make_engine, make_request
from lmr.core.answer import Answer
from lmr.data.photographs import Photographs
from lmr.images.picture import measure_picture
from lmr.service.engine.camera import CameraHealth, CameraState, is_silent, note_pictures, note_silence
from lmr.service.engine.records import StreamRecord

Pixels = NDArray[np.uint8]
START = 1e9  # Unix time
SCENE = Photographs().read("clean", 0, [3])[0]


def make_frames(count: int, seed: int = 0) -> list[Pixels]:
    """Return one photograph with other noise in each frame."""
    random = np.random.default_rng(seed)
    return [add_noise(SCENE, random) for _ in range(count)]


def add_noise(frame: Any, random: np.random.Generator) -> Pixels:
    return np.clip(frame + random.normal(0, 3, np.shape(frame)), 0, 255).astype(np.uint8)


def follow(frames: Iterable[Pixels], camera: CameraHealth | None = None, start: float = START) -> CameraHealth:
    camera = camera or CameraHealth()
    for second, frame in enumerate(frames):
        camera, _ = note_pictures(camera, [measure_picture(Image.fromarray(frame))], start + second)
    return camera


QUIET_CAMERA = follow(make_frames(100))
FAULTS: list[tuple[CameraState, Callable[[Pixels], Any]]] = [
    (CameraState.BLACK, lambda frame: np.zeros_like(frame)),
    (CameraState.WHITE, lambda frame: np.full_like(frame, 255)),
    (CameraState.ONE_COLOUR, lambda frame: np.full_like(frame, 120)),
    (CameraState.STATIC, lambda frame: np.random.default_rng(int(frame.sum())).integers(0, 256, frame.shape, np.uint8)),
    (CameraState.UPSIDE_DOWN, lambda frame: np.ascontiguousarray(frame[::-1, ::-1])),
    (CameraState.BLURRED, lambda frame: np.asarray(Image.fromarray(frame).resize((8, 8)).resize((32, 32)))),
]  # fmt: skip


@pytest.mark.parametrize(("state", "spoil"), FAULTS, ids=[str(state) for state, _ in FAULTS])
def test_a_fault_is_named_and_ends(state: CameraState, spoil: Callable[[Pixels], Any]) -> None:
    camera = follow([spoil(frame) for frame in make_frames(60, 1)], QUIET_CAMERA, START + 100)
    assert camera.state is state
    assert follow(make_frames(60, 2), camera, START + 200).state is CameraState.OK


def test_ordinary_frames_at_night_are_left_alone() -> None:
    random = np.random.default_rng(3)
    night = [add_noise(0.15 * SCENE, random) for _ in range(200)]
    assert follow(night, QUIET_CAMERA, START + 100).state is CameraState.OK


def test_a_frame_is_stuck_by_the_clock_and_not_by_its_count() -> None:
    frames = make_frames(1, 4) * 200
    quick = [measure_picture(Image.fromarray(frame)) for frame in frames]
    assert note_pictures(QUIET_CAMERA, quick, START + 100)[0].state is CameraState.OK  # a replay, at once
    assert follow(frames, QUIET_CAMERA, START + 100).state is CameraState.STUCK


def test_a_camera_that_always_repeats_its_frames_is_not_stuck() -> None:
    slow = [frame for frame in make_frames(12, 5) for _ in range(45)]
    slow[:0] = make_frames(100)
    assert follow([*slow, *make_frames(1, 6) * 150]).state is CameraState.OK
    assert follow([*slow, *make_frames(1, 6) * 300]).state is CameraState.STUCK


def test_a_day_of_another_view_is_taken_as_its_own() -> None:
    turned = [np.ascontiguousarray(frame[::-1, ::-1]) for frame in make_frames(100, 7)]
    camera = follow(turned, QUIET_CAMERA, START + 100)
    assert camera.state is CameraState.UPSIDE_DOWN
    assert follow(turned, camera, START + 90_000).state is CameraState.OK


def test_silence_counts_for_a_camera_that_has_sent_for_long() -> None:
    camera = follow(make_frames(700))
    assert not is_silent(camera, START + 730)
    assert is_silent(camera, START + 800)
    silent = note_silence(camera, START + 800)
    assert silent.state is CameraState.NO_FRAMES
    assert not is_silent(silent, START + 900)
    assert follow(make_frames(1, 8), silent, START + 900).state is CameraState.OK
    assert not is_silent(QUIET_CAMERA, START + 1000)  # 100 seconds of frames are no camera yet


def test_a_record_keeps_the_health_of_its_camera() -> None:
    record = StreamRecord("cam", picture=QUIET_CAMERA)
    assert StreamRecord.from_json(record.to_json()) == record
    assert len(record.to_json()) < 4000
    old = {key: value for key, value in json.loads(record.to_json()).items() if key != "picture"}
    assert StreamRecord.from_json(json.dumps(old)).picture == CameraHealth()


def test_images_that_show_nothing_are_answered_and_not_learnt_from() -> None:
    engine = make_engine()
    black = measure_picture(Image.new("RGB", (32, 32)))
    good = [measure_picture(Image.fromarray(frame)) for frame in make_frames(3)]

    def send(k: int, pictures: list[Any], **values: Any) -> tuple[Answer, ...]:
        future = engine.submit(make_request("cam", k, count=3, pictures=pictures, **values))
        while engine.run_once():
            pass
        answer = future.result()
        assert answer.adaptation["camera"] == engine.find("cam").status.camera
        return answer.answers

    def read() -> bytes:
        future: Future[bytes] = engine.read_state("cam")
        engine.run_once()
        return future.result()

    assert [one.trusted for one in send(0, good)] == [None] * 3
    before = read()
    answers = send(1, [good[0], black, black])
    assert [one.trusted for one in answers] == [None, False, False]
    assert answers[1].label is not None
    assert answers[1].format()["trusted"] is False
    assert "trusted" not in answers[0].format()
    assert read() == before
    assert engine.find("cam").status.seq == 2
    send(2, [black] * 3)
    detail = engine.find("cam")
    assert (detail.status.camera, detail.status.images) == ("black", 9)
    assert [(event.kind, event.before, event.after) for event in detail.events] == [("camera", "ok", "black")]
    assert [one.trusted for one in send(3, good, mode="answer")] == [None] * 3  # judged by themselves
    assert engine.find("cam").status.camera == "black"
    assert engine.read_overview().by_camera == {"black": 1}
    engine.act("cam", "reset")
    engine.run_once()
    assert engine.find("cam").status.camera == "ok"


def test_labels_of_images_that_were_not_learnt_from_are_counted_alone() -> None:
    engine = make_engine()
    black = measure_picture(Image.new("RGB", (32, 32)))
    for k in range(2):
        engine.submit(make_request("cam", k, count=2, pictures=[black] * 2))
        engine.run_once()
    future = engine.add_labels("cam", 2, [engine.names[0], None])
    engine.run_once()
    assert (future.result().labelled, future.result().taught) == (1, 0)


def test_a_silent_camera_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    now = [START]
    monkeypatch.setattr("lmr.service.engine.engine.time.time", lambda: now[0])
    for k, frame in enumerate(make_frames(60)):
        now[0] = START + 60 * k
        engine.submit(make_request("cam", k, pictures=[measure_picture(Image.fromarray(frame))]))
        engine.run_once()
    for seconds, state in ((3600, "ok"), (4000, "no frames"), (4100, "no frames")):
        now[0] = START + seconds
        engine.note_silence(now[0])
        engine.run_once()
        assert engine.find("cam").status.camera == state
    assert [(event.kind, event.after) for event in engine.find("cam").events] == [("camera", "no frames")]
    engine.submit(make_request("cam", 60, pictures=[measure_picture(Image.fromarray(SCENE))]))
    engine.run_once()
    assert [event.after for event in engine.find("cam").events] == ["no frames", "ok"]
