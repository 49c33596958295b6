"""Client: the service from Python."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from lmr.core.errors import LmrError
from lmr.service.client.connection import Connection
from lmr.service.client.image_content import pack_images, read_image
from lmr.service.client.retry_rule import RetryRule
from lmr.service.client.service_answer import ServiceAnswer, make_record, read_answer, read_detail
from lmr.service.engine.requests import StreamAction
from lmr.service.engine.status import StreamDetail, StreamStatus

if TYPE_CHECKING:
    from lmr.service.client.image_content import AnyImage

PAGE = 100  # streams asked for at a time
STREAM_HEADER = "X-Lmr-Stream"  # the stream of a request, for routers
REPLAYED = "Idempotency-Replayed"  # the header of an answer that was kept from an earlier request


class Client:
    """A connection to a running ``lmr serve``; it may be used from several threads, and closed or used as a context.

    ``step`` sends images of a stream and gives the answer. Each request carries a key of its own, so that it can be
    tried again safely: where the connection breaks or the service is busy or restarting, the client waits a little
    longer each time, as long as the service asks for, and up to ``patience`` seconds in all. A retry never adapts
    twice. ``timeout`` is for one attempt; ``on_wait`` gets a sentence before each wait but the first. Errors are kinds
    of ``lmr.ServiceError``.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> with lmr.Client(url) as client:  # such as http://127.0.0.1:8080
        ...     answer = client.step("cam-17", Image.new("RGB", (32, 32), "red"))
        >>> answer.stream, answer.seq, answer.label in ("red ring", "blue star")
        ('cam-17', 1, True)
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = 60.0,
        on_wait: Callable[[str], object] = lambda words: None,
    ) -> None:
        self._connection = Connection(url, token, timeout, RetryRule(patience, on_wait=on_wait))

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._connection.url

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        key: str | None = None,
        timeout_ms: float | None = None,
    ) -> ServiceAnswer:
        """Send one image, or a list of them as one step, and give the answer with the ``top`` classes of each.

        An image is a PIL image, a path, the bytes of a file or a uint8 array [h, w, 3]. ``mode="answer"`` does not
        adapt. The request with the same ``key`` and images as an earlier one of the stream gets the earlier answer.
        ``timeout_ms`` is how long the request may wait in the queue.
        """
        parts = [read_image(image) for image in _list_images(images)]
        if not parts:
            raise LmrError("Expected at least one image, got an empty list.")
        kind, content = pack_images(parts)
        return self.send_body(stream, kind, content, top=top, mode=mode, key=key, timeout_ms=timeout_ms)

    def send_body(
        self,
        stream: str,
        kind: str,
        content: bytes,
        *,
        top: int = 5,
        mode: str = "adapt",
        key: str | None = None,
        timeout_ms: float | None = None,
    ) -> ServiceAnswer:
        """As ``step``, with a body that is ready: its content type, such as image/jpeg, and its bytes."""
        headers = {"Content-Type": kind, "Idempotency-Key": uuid.uuid4().hex if key is None else key}
        if timeout_ms is not None:
            headers["X-Timeout-Ms"] = f"{timeout_ms:.0f}"
        params = {"top": top, "mode": mode}
        response = self._send("POST", stream, "/images", headers=headers, params=params, content=content)
        try:
            return read_answer(self._connection.read_json(response), replayed=REPLAYED in response.headers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._connection.describe_nonsense(error) from error

    def labels(self, stream: str, seq: int, labels: Sequence[str | None]) -> StreamStatus:
        """Tell the true labels of the images of answer ``seq``, None where unknown; for monitoring alone."""
        body = {"seq": seq, "labels": list(labels)}
        return self._read_status(self._send("POST", stream, "/labels", json=body))

    # Streams.

    def streams(self) -> Iterator[StreamStatus]:
        """All streams, ordered by name, asked for page by page."""
        after = ""
        while True:
            response = self._connection.send("GET", "/v1/streams", params={"after": after, "limit": PAGE})
            page = self._connection.read_json(response)["streams"]
            yield from (make_record(StreamStatus, one) for one in page)
            if len(page) < PAGE:
                return
            after = page[-1]["stream"]

    def stream(self, name: str) -> StreamDetail:
        """One stream with its signals, history, class shares, snapshots, last answers and events."""
        content = self._connection.read_json(self._send("GET", name))
        try:
            return read_detail(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._connection.describe_nonsense(error) from error

    def reset(self, stream: str) -> StreamStatus:
        """Forget what the stream has learnt."""
        return self._act(stream, "reset")

    def rollback(self, stream: str) -> StreamStatus:
        """Return to the newest snapshot, as the watch would."""
        return self._act(stream, "rollback")

    def pause(self, stream: str) -> StreamStatus:
        """Answer with the present state, without adapting, until ``resume``."""
        return self._act(stream, "pause")

    def resume(self, stream: str) -> StreamStatus:
        """Let a paused or quarantined stream adapt again."""
        return self._act(stream, "resume")

    def undo(self, stream: str) -> StreamStatus:
        """Take back the last rollback, reset or quarantine."""
        return self._act(stream, "undo")

    def delete(self, stream: str) -> None:
        """Forget the stream itself."""
        self._send("DELETE", stream)

    def state(self, stream: str) -> bytes:
        """The state of a stream: the file that ``method.save`` writes."""
        return bytes(self._send("GET", stream, "/state").content)

    def load_state(self, stream: str, state: bytes | str | os.PathLike[str]) -> StreamStatus:
        """Give a stream the state in these bytes or in this file."""
        content = state if isinstance(state, bytes) else Path(state).read_bytes()
        headers = {"Content-Type": "application/octet-stream"}
        return self._read_status(self._send("PUT", stream, "/state", headers=headers, content=content))

    # The service.

    def model(self) -> dict[str, Any]:
        """What is served: the model, its classes, the method's spec and the limits."""
        content: dict[str, Any] = self._connection.read_json(self._connection.send("GET", "/v1/model"))
        return content

    def readiness(self) -> str:
        """One of ready, degraded (it answers without adapting), loading, draining, unreachable. Does not wait."""
        return self._connection.ask_readiness()

    def is_ready(self) -> bool:
        """Whether the service takes requests now and can save what they teach."""
        return self.readiness() == "ready"

    def _act(self, stream: str, action: StreamAction) -> StreamStatus:
        """An operator's action; a second rollback would go further back, so it is sent again only if it was refused."""
        return self._read_status(self._send("POST", stream, f":{action}", repeatable=False))

    def _send(self, method: str, stream: str, rest: str = "", **values: Any) -> Any:
        """Send a request about a stream, with a header by which a cluster finds the replica that serves the stream."""
        if not isinstance(stream, str) or not stream:
            raise LmrError(f"Expected the name of a stream, got {stream!r}.")
        name = quote(stream, safe="")
        headers = {**values.pop("headers", {}), STREAM_HEADER: name}
        return self._connection.send(method, f"/v1/streams/{name}{rest}", headers=headers, **values)

    def _read_status(self, response: Any) -> StreamStatus:
        try:
            return make_record(StreamStatus, self._connection.read_json(response))
        except (TypeError, AttributeError) as error:
            raise self._connection.describe_nonsense(error) from error


def _list_images(images: AnyImage | Sequence[AnyImage]) -> list[AnyImage]:
    """One image, or several; a path and the bytes of a file are sequences too, but one image."""
    if isinstance(images, Sequence) and not isinstance(images, str | bytes | bytearray | memoryview):
        return list(images)
    return [cast("AnyImage", images)]
