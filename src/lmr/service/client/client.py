"""Client: the service from Python. Fields of answers that a newer service adds are ignored."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from lmr.core.errors import LmrError
from lmr.service.client.connection import Connection, RetryRule
from lmr.service.client.images import pack_images, read_image
from lmr.service.engine.requests import REPLAYED, QueuedImage, ServiceAnswer, StreamAction
from lmr.service.engine.status import StreamDetail, StreamPage, StreamStatus

if TYPE_CHECKING:
    from lmr.service.client.images import AnyImage

PAGE = 100  # streams read at a time
STREAM_HEADER = "X-Lmr-Stream"  # the stream of a request, for routers


class Client:
    """A connection to a running ``lmr serve``; it may be used from several threads, and closed or used as a context.

    ``step`` sends images of a stream and returns the answer. Each request carries a key of its own, so that it can be
    tried again safely: where the connection breaks or the service is busy or restarting, the client waits a little
    longer each time, as long as the service asks for, and up to ``patience`` seconds in all. A retry never adapts
    twice. ``timeout`` is for one attempt; ``on_wait`` gets a sentence before each wait but the first. Errors are kinds
    of ``lmr.ServiceError``.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> with lmr.Client(url) as client:  # such as http://127.0.0.1:8080
        ...     answer = client.step("cam-17", Image.new("RGB", (32, 32), "red"))
        >>> answer.stream, answer.seq, answer.label in ("cat", "dog")
        ('cam-17', 1, True)
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = 60.0,
        on_wait: Callable[[str], object] = lambda message: None,
    ) -> None:
        self._connection = Connection(url, token, timeout, RetryRule(patience, on_wait=on_wait))

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._connection.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # Images.

    def step(
        self,
        stream: str,
        images: AnyImage | Sequence[AnyImage],
        *,
        top: int = 5,
        mode: str = "adapt",
        compare: bool = False,
        key: str | None = None,
    ) -> ServiceAnswer:
        """Send one image, or a list of them as one step, and return the answer with the ``top`` classes of each.

        An image is a PIL image, a path, the bytes of a file or a uint8 array [h, w, 3]. ``mode="answer"`` does not
        adapt. ``compare`` asks for the frozen model's answers, too, at the cost of one more forward. The request with
        the same ``key`` and images as an earlier one that adapted gets the earlier answer.
        """
        parts = [read_image(image) for image in _list_images(images)]
        if not parts:
            raise LmrError("Expected at least one image, got an empty list.")
        kind, content = pack_images(parts)
        headers = {"Content-Type": kind, "Idempotency-Key": uuid.uuid4().hex if key is None else key}
        params = {"top": top, "mode": mode, "compare": compare}
        response = self._send("POST", stream, "/images", headers=headers, params=params, content=content)
        answer = self._connection.parse(response, ServiceAnswer)
        return replace(answer, replayed=REPLAYED in response.headers)

    def labels(self, stream: str, seq: int, labels: Sequence[str | None], *, teach: bool = True) -> StreamStatus:
        """Teach the stream the true labels of the images of answer ``seq``, None where unknown.

        Choose the images at random. They correct the answers to images like them, and the status has the estimated
        accuracy. Without ``teach`` they are for monitoring alone.
        """
        body = {"seq": seq, "labels": list(labels), "teach": teach}
        return self._connection.parse(self._send("POST", stream, "/labels", json=body), StreamStatus)

    def label_queue(self, stream: str, n: int = 10) -> list[QueuedImage]:
        """Return up to ``n`` random images of the stream to label, with small copies if the service keeps frames.

        The stream remembers the last 32 that it named here; others can be labelled while they are among its last 128.
        """
        response = self._send("GET", stream, "/label-queue", params={"n": n})
        return self._connection.parse(response, dict[str, list[QueuedImage]])["images"]

    # Streams.

    def streams(self) -> Iterator[StreamStatus]:
        """Yield all streams, ordered by name, read page by page."""
        after: str | None = ""
        while after is not None:
            response = self._connection.send("GET", "/v1/streams", params={"after": after, "limit": PAGE})
            page = self._connection.parse(response, StreamPage)
            yield from page.streams
            after = page.next

    def stream(self, name: str) -> StreamDetail:
        """Return one stream with its signals, history, class shares, snapshots, last answers and events."""
        return self._connection.parse(self._send("GET", name), StreamDetail)

    def reset(self, stream: str) -> StreamStatus:
        """Return the stream to the zero-shot model."""
        return self._act(stream, "reset")

    def rollback(self, stream: str) -> StreamStatus:
        """Return the stream to its newest snapshot, as the watch would."""
        return self._act(stream, "rollback")

    def pause(self, stream: str) -> StreamStatus:
        """Answer with the present state, without adapting, until ``resume``."""
        return self._act(stream, "pause")

    def resume(self, stream: str) -> StreamStatus:
        """Let a paused or resting stream adapt again."""
        return self._act(stream, "resume")

    def delete(self, stream: str) -> None:
        """Delete the stream."""
        self._send("DELETE", stream)

    def state(self, stream: str) -> bytes:
        """Return the state of a stream: the file that ``method.save`` writes."""
        return bytes(self._send("GET", stream, "/state").content)

    def load_state(self, stream: str, state: bytes | str | os.PathLike[str]) -> StreamStatus:
        """Give a stream the state in these bytes or in this file."""
        content = state if isinstance(state, bytes) else Path(state).read_bytes()
        headers = {"Content-Type": "application/octet-stream"}
        response = self._send("PUT", stream, "/state", headers=headers, content=content)
        return self._connection.parse(response, StreamStatus)

    # The service.

    def model(self) -> dict[str, Any]:
        """Return what is served: the model, its classes, the method's spec and the limits."""
        response = self._connection.send("GET", "/v1/model")
        return self._connection.parse(response, dict[str, Any])

    def readiness(self) -> str:
        """Return ready, degraded (it does not adapt) or unreachable, without waiting."""
        return self._connection.read_status()

    def is_ready(self) -> bool:
        """Return True if the service takes requests now and can save the adapted states."""
        return self.readiness() == "ready"

    def _act(self, stream: str, action: StreamAction) -> StreamStatus:
        """Send an operator's action; again only if it was refused, as a second rollback would go further back."""
        response = self._send("POST", stream, f":{action}", repeatable=False)
        return self._connection.parse(response, StreamStatus)

    def _send(self, method: str, stream: str, rest: str = "", **values: Any) -> Any:
        """Send a request about a stream, with a header by which a cluster finds the replica that serves the stream."""
        if not isinstance(stream, str) or not stream:
            raise LmrError(f"Expected the name of a stream, got {stream!r}.")
        name = quote(stream, safe="")
        headers = {**values.pop("headers", {}), STREAM_HEADER: name}
        return self._connection.send(method, f"/v1/streams/{name}{rest}", headers=headers, **values)


def _list_images(images: AnyImage | Sequence[AnyImage]) -> list[AnyImage]:
    """Return one or several images as a list; a path and the bytes of a file are sequences too, but one image."""
    if isinstance(images, Sequence) and not isinstance(images, str | bytes | bytearray | memoryview):
        return list(images)
    return [cast("AnyImage", images)]
