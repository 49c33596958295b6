"""``lmr camera``: send the frames of a camera to the service."""

from __future__ import annotations

import argparse
import sys

from lmr.cli.shared_options import add_fields, read_dataclass
from lmr.core.foreign_text import make_printable
from lmr.service.settings import CameraOptions

DESCRIPTION = """\
Send the frames of a source to one stream of a running 'lmr serve', in order. The source is a video file, the address of
a camera (rtsp://, http:// with MJPEG), a folder that a camera writes images to, or the number of a webcam, such as 0.

The service decides how the stream adapts. By default it answers as the frozen model while the answers are as clear as
on the first frames. When they become less clear, it adapts, with the class shares of this stream; so begin a new stream
with ordinary frames. For a service whose streams begin with bad frames of balanced classes, give 'lmr serve' --prior
uniform.

Every request has a key. If the service is busy or restarts, or the connection breaks, the request is sent again under
its key, and the service applies it once. If this command is interrupted, it starts again with the first frame.

The command follows a folder until Ctrl-C, or until no new file has come for --idle seconds. It takes the files in
natural order (img2 before img10), waits for a file that is still being written, and skips one that stays unreadable."""

HERE = "http://127.0.0.1:8080"

EXAMPLES = """\
examples:
  the first webcam of this machine, twice a second, to a service on this machine:
    lmr camera 0 --fps 2
  a video, one frame per second of 25 frames, to a service on this machine:
    lmr camera street.mp4 --to http://127.0.0.1:8080 --stream street --every 25
  a network camera, at most two frames per second, in steps of eight frames:
    lmr camera rtsp://10.0.0.17/stream --to https://vision.example --token-file token --stream cam-17 --fps 2 --batch 8
  a folder that a camera writes images to, with the answers in a file:
    lmr camera incoming --to http://127.0.0.1:8080 --stream gate --out gate.jsonl

exit codes: 0 the source ended, 1 no frame was answered, 2 it cannot continue (an error message says why),
130 interrupted."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr camera``."""
    add = parser.add_argument
    add(
        "source",
        metavar="SOURCE",
        help="a video file, a folder, the number of a webcam, or an address such as rtsp://10.0.0.17/stream",
    )
    add("--to", default=HERE, metavar="URL", help="the service (default: %(default)s)")
    add("--stream", metavar="NAME", help="the stream that the frames belong to (default: named after the source)")
    add_fields(parser, CameraOptions, every="N", batch="N", fps="F", token_file="FILE")
    add_fields(parser, CameraOptions, out="FILE", idle="S", patience="S")


def run(options: argparse.Namespace) -> str | None:
    """Send the frames; return a complaint if none was answered."""
    from lmr.service.client.camera import run_camera
    from lmr.service.client.sources import name_stream

    chosen = read_dataclass(CameraOptions, options)
    stream = options.stream or name_stream(options.source)
    summary = run_camera(options.source, options.to, stream, chosen, _report)
    _report(str(summary))
    return "No frame was answered." if summary.refused and not summary.frames else None


def _report(message: str) -> None:
    print(f"lmr: {make_printable(message)}", file=sys.stderr)
