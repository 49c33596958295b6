"""Decode images that strangers sent in processes of their own, which are killed when an image takes too long.

A thread that decodes cannot be stopped, and a fault in a decoder ends its whole process. An image costs more here, by
the time to send its pixels through a pipe, so this is for those whose header announces much work.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from PIL import Image

from lmr.images.files import TooManyPixels, UnreadableImage, decode_image

_LENGTH = struct.Struct("<Q")  # before a file
_ANSWER = struct.Struct("<BII")  # the kind of an answer; width and height, or the bytes of a message
_IMAGE, _UNREADABLE, _TOO_LARGE = range(3)
_READY = b"R"
_START_SECONDS = 30.0  # for a process to import Pillow


class IsolatedDecoder:
    """Processes that decode one image each at a time; as many are started as threads decode at once.

    ``formats`` and ``max_pixels`` are those of ``decode_image``.
    """

    def __init__(self, formats: Sequence[str], max_pixels: int) -> None:
        self._options = json.dumps({"formats": list(formats), "max_pixels": max_pixels})
        self._idle: list[subprocess.Popen[bytes]] = []
        self._changing = threading.Lock()
        self._closed = False

    def decode(self, content: bytes, seconds: float) -> Image.Image:
        """Return the image as ``decode_image`` does; UnreadableImage if it takes longer than this."""
        process = self._take()
        end = time.monotonic() + seconds
        late = threading.Timer(max(0.0, seconds), process.kill)
        late.start()
        usable = False
        try:
            kind, size, rest = _exchange(process, content)
            usable = time.monotonic() < end  # otherwise it may just have been killed
        except (OSError, EOFError) as error:
            reason = f"took longer than {seconds:.1f} seconds" if time.monotonic() >= end else "made the decoder fail"
            raise UnreadableImage(f"Cannot read the image in {len(content)} bytes: decoding it {reason}.") from error
        finally:
            late.cancel()
            late.join()  # so that it kills nobody later
            self._give_back(process, usable)
        if kind == _IMAGE:
            return Image.frombuffer("RGB", size, rest, "raw", "RGB", 0, 1)
        message = bytes(rest).decode("utf-8", "replace")
        raise (TooManyPixels if kind == _TOO_LARGE else UnreadableImage)(message)

    def close(self) -> None:
        """End the processes; one that is decoding is ended when it has finished."""
        with self._changing:
            self._closed, idle, self._idle = True, self._idle, []
        for process in idle:
            _end(process)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._changing:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        return _start(self._options)

    def _give_back(self, process: subprocess.Popen[bytes], usable: bool) -> None:
        """Keep a process for the next image, or end it."""
        with self._changing:
            keep = usable and not self._closed
            if keep:
                self._idle.append(process)
        if not keep:
            _end(process)


def _start(options: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is for the service, which ends this process by closing its input
    )
    late = threading.Timer(_START_SECONDS, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        if process.stdout.read(1) != _READY:
            _end(process)
            raise UnreadableImage("Cannot read the image: the process that decodes cannot be started.")
    finally:
        late.cancel()
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:  # closes the pipes and waits
        pass


def _exchange(process: subprocess.Popen[bytes], content: bytes) -> tuple[int, tuple[int, int], bytes]:
    """Send a file and return the answer: its kind, the size of the image, and its pixels or a message."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(_LENGTH.pack(len(content)))
    process.stdin.write(content)
    process.stdin.flush()
    kind, one, other = _ANSWER.unpack(_read(process.stdout, _ANSWER.size))
    return kind, (one, other), _read(process.stdout, 3 * one * other if kind == _IMAGE else one)


def _read(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise EOFError
    return content


def _serve(options: str) -> None:
    """Decode the files that come on standard input until it is closed."""
    given = json.loads(options)
    formats, max_pixels = tuple(given["formats"]), int(given["max_pixels"])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is not an answer
    answers.write(_READY)
    answers.flush()
    while length := sys.stdin.buffer.read(_LENGTH.size):
        content = sys.stdin.buffer.read(_LENGTH.unpack(length)[0])
        try:
            image = decode_image(content, formats=formats, max_pixels=max_pixels)
            head, rest = _ANSWER.pack(_IMAGE, *image.size), image.tobytes()
        except UnreadableImage as error:
            rest = str(error).encode()
            head = _ANSWER.pack(_TOO_LARGE if isinstance(error, TooManyPixels) else _UNREADABLE, len(rest), 0)
        answers.write(head)
        answers.write(rest)
        answers.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
