"""Engine: takes requests of streams, answers them in batches, and keeps the states; it knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from lmr.core.method import Method
from lmr.service.engine.step_types import BatchReport, StepAnswer, StepRequest
from lmr.service.engine.stream_types import Changes, Overview, StreamAction, StreamDetail, StreamStatus
from lmr.service.service_settings import ServiceSettings
from lmr.service.store.store import Store


class Engine:
    """The engine of the service. Every call is safe from any thread; refusals are set on the futures."""

    def __init__(
        self,
        method: Method,
        names: Sequence[str],
        settings: ServiceSettings,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        threads: bool = True,
    ) -> None:
        self.method, self.names, self.settings, self.store, self.clock = method, list(names), settings, store, clock
        self._threads = threads

    def start(self) -> None:
        """Start the compute thread and the store thread."""
        raise NotImplementedError

    def submit(self, request: StepRequest) -> Future[StepAnswer]:
        """Queue a request."""
        raise NotImplementedError

    def drop(self, future: Future[StepAnswer]) -> bool:
        """The client has gone: True if its request still waited and was dropped, so that nothing adapts."""
        raise NotImplementedError

    def act(self, stream: str, action: StreamAction) -> Future[StreamStatus]:
        """What an operator asks for, after the requests of the stream that arrived before."""
        raise NotImplementedError

    def read_state(self, stream: str) -> Future[bytes]:
        """The file that ``method.save`` writes for the stream."""
        raise NotImplementedError

    def write_state(self, stream: str, content: bytes) -> Future[StreamStatus]:
        """Give a stream the state in such a file."""
        raise NotImplementedError

    def add_labels(self, stream: str, seq: int, labels: Sequence[str | None]) -> Future[StreamStatus]:
        """True labels of the images of request ``seq``, for the running accuracy alone."""
        raise NotImplementedError

    def find(self, stream: str) -> Future[StreamDetail]:
        """One stream, looked at closely."""
        raise NotImplementedError

    def list_streams(self, after: str = "", limit: int = 100) -> Future[list[StreamStatus]]:
        """Streams in the order of their names, those after the name ``after``."""
        raise NotImplementedError

    def look(self) -> Overview:
        """The engine at a glance; never waits."""
        raise NotImplementedError

    def read_changes(self, after: int, limit: int) -> Changes:
        """Events and streams that changed after change number ``after``, at most ``limit`` of each."""
        raise NotImplementedError

    def listen(self, callback: Callable[[BatchReport], None]) -> None:
        """Call ``callback`` after every batch, from a thread of the engine."""
        raise NotImplementedError

    def run_once(self) -> bool:
        """Without threads: form, compute and commit one batch; False if there was nothing to do."""
        raise NotImplementedError

    def drain(self, seconds: float) -> bool:
        """Take no more requests, and finish those that wait; False if they took longer and were refused."""
        raise NotImplementedError

    def close(self) -> None:
        """Refuse what waits, end the threads and close the store."""
        raise NotImplementedError
