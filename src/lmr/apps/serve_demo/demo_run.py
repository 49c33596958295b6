"""``lmr serve --demo``: the service with the embedded model, simulated cameras, and a summary at the end."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable

from lmr.apps.model_options import AnyPath
from lmr.apps.serve import choose_token, plan_service, serve_classifier
from lmr.apps.serve_demo.demo_cameras import DemoCameras, format_reports
from lmr.core.errors import LmrError
from lmr.data.names import read_list
from lmr.service.settings import ServiceSettings

WATCH = "watch(every=2)"  # compares one image in two instead of one in 16, to notice sooner; thresholds as usual
CLASSES = "cifar10"


def serve_demo(
    seconds: float | None = None,
    *,
    method: str = "lmr(pace='batch')",
    host: str = "127.0.0.1",
    port: int = 8080,
    token_file: AnyPath | None = None,
    settings: ServiceSettings | None = None,
    log_level: str = "warning",
    say: Callable[[str], None] = print,
) -> None:
    """Serve eight simulated cameras until Ctrl-C, or for so many seconds; then print what came of each.

    The rates of the paper hold for a batch of 64. The demonstration is short: each small request is such a batch.
    """
    if seconds is not None and not 0 < seconds < float("inf"):
        raise LmrError(f"Expected a positive number of seconds, got {seconds}.")
    token, runs = choose_token(host, token_file), list[_DemoRun]()

    def begin(url: str, stop: Callable[[], None]) -> None:
        runs.append(_DemoRun(DemoCameras(url, token), stop, seconds, say))
        runs[0].start()

    def end() -> None:
        for run in runs:
            run.finish()

    with tempfile.TemporaryDirectory(prefix="lmr-serve-demo-") as folder:
        serve_classifier(
            plan_service(list(read_list(CLASSES)), method=method, watch=WATCH, settings=settings),
            host=host,
            port=port,
            token_file=token_file,
            state_dir=os.path.join(folder, "state"),
            log_level=log_level,
            say=say,
            on_ready=begin,
            on_stop=end,
        )
    for run in runs:
        if run.failure is not None:
            raise run.failure


class _DemoRun:
    """The cameras of a service that is ready, and the end of it all."""

    def __init__(
        self, cameras: DemoCameras, stop: Callable[[], None], seconds: float | None, say: Callable[[str], None]
    ) -> None:
        self._cameras, self._stop, self._seconds, self._say = cameras, stop, seconds, say
        self._thread = threading.Thread(target=self._run, name="demo", daemon=True)
        self._reported = threading.Lock()
        self._done = False
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin to send; with a number of seconds, also end it all after them."""
        how = "Ctrl-C ends it" if self._seconds is None else f"it ends after {self._seconds:g} s"
        self._say(f"eight simulated cameras; their weather turns bad one after the other, and one breaks; {how}")
        self._cameras.start()
        if self._seconds is not None:
            self._thread.start()

    def finish(self) -> None:
        """Before the service refuses requests: end the cameras and print what came of them."""
        with self._reported:
            if self._done:
                return
            self._done = True
            self._cameras.stop()
            try:
                self._say("\n" + format_reports(self._cameras.report()))
            except LmrError as error:
                self.failure = error
            if self._cameras.failures:
                self.failure = self._cameras.failures[0]

    def _run(self) -> None:
        self._cameras.wait(self._seconds or 0.0)
        self._stop()
