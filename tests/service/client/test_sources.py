from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from closed_port import hold_closed_port
from lmr.core.errors import LmrError
from lmr.images.files import UnreadableImage
from lmr.service.client import sources
from lmr.service.client.sources import FolderSource, LiveSource, VideoSource, name_stream, open_source
from video_maker import cut_file, paint, write_video


def never() -> bool:
    return False


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "POLL_SECONDS", 0.01)


def save(path: Path, colour: str = "red") -> None:
    Image.new("RGB", (8, 8), colour).save(path)


def test_every_third_frame_of_a_video_is_read(tmp_path: Path) -> None:
    source = VideoSource(write_video(tmp_path / "v.avi", paint(10)), 3, print)
    assert [frame.name for frame in source.read(never) if frame] == ["0", "3", "6", "9"]


def test_the_end_of_a_damaged_video_is_told(tmp_path: Path) -> None:
    messages: list[str] = []
    path = cut_file(write_video(tmp_path / "v.avi", paint(40, (64, 64))), 0.5)
    source = VideoSource(path, 1, messages.append)
    try:
        frames = list(source.read(never))
    except UnreadableImage:  # this OpenCV reads nothing of it
        return
    assert 0 < len(frames) < 40
    assert any("ends after" in line or "cannot be decoded" in line for line in messages)


def test_a_folder_is_read_in_natural_order_and_followed(tmp_path: Path) -> None:
    for name in ("img2.png", "img10.png", "img1.png"):
        save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_text("no image")
    places: list[str] = []
    for frame in FolderSource(tmp_path, 1, 0.3, print).read(never):
        if frame is not None:
            places.append(frame.name)
            if frame.name == "img10.png":
                save(tmp_path / "img11.png")
    assert places == ["img1.png", "img2.png", "img10.png", "img11.png"]


def test_a_half_written_file_is_waited_for_and_holds_back_later_ones(tmp_path: Path) -> None:
    save(tmp_path / "1.png")
    content = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").write_bytes(content[:40])
    save(tmp_path / "2.png", "blue")
    found = FolderSource(tmp_path, 1, 0.3, print).read(never)
    assert [next(found) for _ in range(3)] == [None, None, None]
    (tmp_path / "1.png").write_bytes(content)
    assert [frame.name for frame in found if frame] == ["1.png", "2.png"]


def test_a_file_that_stays_unreadable_is_left_out_and_told(tmp_path: Path) -> None:
    messages: list[str] = []
    (tmp_path / "1.jpg").write_bytes(b"nothing")
    os.utime(tmp_path / "1.jpg", (1, 1))
    save(tmp_path / "2.png")
    found = FolderSource(tmp_path, 1, 0.0, messages.append).read(never)
    assert [frame.name for frame in found if frame] == ["2.png"]
    assert len(messages) == 1
    assert messages[0].endswith("It is skipped.")


@contextmanager
def run_network_camera(frames: int) -> Iterator[str]:
    """MJPEG over HTTP, as many cameras send it: after `frames` frames the connection ends."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            for number in range(frames):
                file = io.BytesIO()
                Image.fromarray(np.full((64, 64, 3), 20 * number, np.uint8)).save(file, "JPEG")
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(file.getvalue())}\r\n\r\n"
                try:
                    self.wfile.write(head.encode() + file.getvalue() + b"\r\n")
                except OSError:
                    return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/video.mjpg"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_network_camera_is_read_and_connected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(sources, "WAITING_FRAMES", 10_000)  # all of them, however late this thread comes to take them
    messages: list[str] = []
    places: list[int] = []
    with run_network_camera(8) as address:
        source = open_source(address, 1, None, None, messages.append)
        assert isinstance(source, LiveSource)
        deadline = time.monotonic() + 60
        for frame in source.read(lambda: len(places) >= 12 or time.monotonic() > deadline):
            if frame is not None:
                places.append(int(frame.name))
                assert np.asarray(frame.image).shape == (64, 64, 3)
    assert len(places) >= 12
    assert places == sorted(places)
    assert places[0] == 0
    assert any("trying again" in line for line in messages)


def test_a_camera_that_is_not_there_is_an_error_without_its_password() -> None:
    with hold_closed_port() as place:
        source = LiveSource(f"http://user:secret@{place}/video", 1, None, print)
        assert source.name == f"http://{place}/video"
        with pytest.raises(UnreadableImage, match="check the address") as found:
            list(source.read(never))
    assert "secret" not in str(found.value)


def test_an_address_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(LmrError, match=r"rtmp://10\.0\.0\.17/stream") as refused:
        open_source("rtmp://user:secret@10.0.0.17/stream", 1, None, None, print)
    assert "secret" not in str(refused.value)


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no video")
    for name, found in (("notes.txt", "it is neither"), ("missing", "no such file or folder")):
        with pytest.raises(LmrError, match=f"Expected a video file, a folder, an address.*{found}"):
            open_source(str(tmp_path / name), 1, None, None, print)


def test_a_number_is_a_webcam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    class Webcam:
        def __init__(self, number: object, *more: object) -> None:
            opened.append(number)
            self.left = 3

        def isOpened(self) -> bool:
            return opened[-1] == 0

        def grab(self) -> bool:
            self.left -= 1
            return self.left >= 0

        def retrieve(self) -> tuple[bool, Any]:
            return True, np.full((4, 4, 3), (0, 0, 9), np.uint8)

        def release(self) -> None:
            pass

    monkeypatch.setattr("cv2.VideoCapture", Webcam)
    monkeypatch.setattr(sources, "RECONNECT_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    source, frames = open_source("0", 1, None, None, print), []
    for frame in source.read(lambda: len(frames) == 3):
        if frame is not None:
            frames.append(frame)
    assert opened[0] == 0
    assert np.asarray(frames[0].image)[0, 0].tolist() == [9, 0, 0]
    with pytest.raises(UnreadableImage, match="no webcam 7"):
        list(open_source("7", 1, None, None, print).read(never))
    (tmp_path / "7").mkdir()
    assert isinstance(open_source("7", 1, None, None, print), FolderSource)


def test_a_stream_is_named_after_its_source() -> None:
    names = {"0": "webcam-0", "rtsp://me:secret@10.0.0.17/x": "10.0.0.17", "a/street 2.mp4": "street-2", "/": "camera"}
    assert {source: name_stream(source) for source in names} == names
