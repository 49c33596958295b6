"""Bad input: bombs, truncated files, other formats, too large bodies, slow senders, clients that disconnect."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import numpy as np

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.child_service import ChildService
from lab.load.inputs import draw_image, draw_pixels, encode_pixels, find_photo, make_bomb, make_jpeg
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError

STREAM = "load-00000"
MOST_GROWTH_MB = 200.0  # of memory; a bomb that is unpacked takes gigabytes


def list_bad_bodies() -> dict[str, tuple[str, bytes, set[int]]]:
    """Return the media type and body of each kind, and the status codes that are correct for it."""
    pixels = draw_pixels(0, 64)
    png, jpeg, webp = (encode_pixels(pixels, kind) for kind in ("PNG", "JPEG", "WEBP"))
    noise = np.random.default_rng(0).bytes(2000)
    return {
        "bomb": ("image/png", make_bomb(), {413, 422}),
        "JPEG of 1,500 scans": ("image/jpeg", make_jpeg((5000, 5000), 1500), {422}),
        "truncated PNG": ("image/png", png[: len(png) // 2], {422}),
        "truncated JPEG": ("image/jpeg", jpeg[: len(jpeg) // 2], {422}),
        "truncated WebP": ("image/webp", webp[: len(webp) // 2], {422}),
        "noise": ("image/png", noise, {422}),
        "empty": ("image/png", b"", {400, 422}),
        "GIF": ("image/gif", encode_pixels(pixels, "GIF"), {415}),
        "BMP as PNG": ("image/png", encode_pixels(pixels, "BMP"), {415, 422}),
        "text": ("text/plain", b"hello", {415}),
        "too large": ("image/png", bytes(11_000_000), {413}),
        "broken multipart": ("multipart/form-data; boundary=x", b"--y\r\n\r\n", {400, 422}),
    }


def measure_bad_input(bench: LoadBench) -> LoadResult:
    """Check that each kind is refused with its code, no state changes, and other streams are served meanwhile."""
    model, wrong = find_photo(), list[str]()
    good = draw_image(1, model.side)
    with bench.make_service(model, "hostile") as service, Client(service.url) as client:
        client.step(STREAM, good)
        before, memory, failed = client.state(STREAM), service.read_memory_mb(), _count_failures(service)
        codes = {name: _post(client, kind, body) for name, (kind, body, _) in list_bad_bodies().items()}
        wrong += [
            f"{name}: {codes[name]}" for name, (_, _, right) in list_bad_bodies().items() if codes[name] not in right
        ]
        mixed = client.step("load-00001", [good, b"\x89PNG\r\n\x1a\nnothing", good])
        if [one.error is None for one in mixed.answers] != [True, False, True]:
            wrong.append("an undecodable image among others is not an error at its position")
        slow = _keep_sending_slowly(service, bench.count(50, 5), lambda: client.step("load-00002", good))
        if not slow:
            wrong.append("slow senders kept others from being served")
        _disconnect(service, good, bench.count(100, 10))
        after = client.step("load-00003", good)
        if after.label is None or not client.is_ready():
            wrong.append("not ready after clients that disconnected")
        unchanged = client.state(STREAM) == before
        growth = service.read_memory_mb() - memory
        server_errors = _count_failures(service) - failed
    if not unchanged:
        wrong.append("the state of a stream changed")
    if growth > MOST_GROWTH_MB:
        wrong.append(f"memory grew by {growth:.0f} MB")
    if server_errors:
        wrong.append(f"{server_errors:.0f} answers with a code from 500 on")
    figures = {"codes": codes, "memory_growth_mb": growth, "server_errors": server_errors, "wrong": wrong}
    return LoadResult(
        "bad input",
        f"{len(codes)} kinds of bad bodies, slow senders, clients that disconnect",
        "correct codes, no state changed, others served",
        "; ".join(wrong) or f"all refused with a correct code; state unchanged; memory {growth:+.0f} MB",
        judge(not wrong),
        figures,
    )


def _count_failures(service: ChildService) -> float:
    """Return the number of 5xx responses so far; while the model loads they are normal."""
    metrics = service.read_metrics().items()
    return sum(value for name, value in metrics if name.startswith("lmr_requests_total") and 'code="5' in name)


def _post(client: Client, kind: str, body: bytes) -> int:
    """Return the status code for a body that is sent as it is."""
    try:
        client.send_body(STREAM, kind, body)
    except ServiceError as error:
        return error.status or 0
    return 200


def _connect(service: ChildService) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=30)


def _write_head(length: int) -> bytes:
    return (
        f"POST /v1/streams/{STREAM}/images HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def _keep_sending_slowly(service: ChildService, count: int, serve: Callable[[], object]) -> bool:
    """Send single bytes without ever finishing; return True if other requests are served meanwhile."""
    sockets = [_connect(service) for _ in range(count)]
    try:
        for sender in sockets:
            sender.sendall(_write_head(1000))
        for _ in range(10):
            for sender in sockets:
                try:
                    sender.sendall(b"x")
                except OSError:  # it was refused in the meantime, which is correct too
                    continue
            serve()
            time.sleep(0.1)
    except ServiceError:
        return False
    finally:
        for sender in sockets:
            sender.close()
    return True


def _disconnect(service: ChildService, image: bytes, count: int) -> None:
    """Disconnect before the answer, in the middle of the body or after it."""
    for number in range(count):
        with _connect(service) as client:
            head = _write_head(len(image)).replace(STREAM.encode(), b"load-00004")
            client.sendall(head + (image if number % 2 else image[: len(image) // 2]))
