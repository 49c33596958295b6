"""lmr serve: put a model, a method, a watch, a store and a server together, and serve until told to stop."""

from __future__ import annotations

import gc
import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from lmr.apps.model_options import (
    AnyPath,
    ModelOptions,
    Prompts,
    choose_prompts,
    create_suited,
    describe_suited,
    make_classifier,
    read_labels,
)
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.registry import find_addressed
from lmr.models import Backbone
from lmr.models.catalog import DEFAULT_MODEL
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.memory import keep_freed_memory
from lmr.service.network import is_loopback, read_token_file
from lmr.service.settings import ServiceSettings
from lmr.service.store.store import Store
from lmr.service.store.store_interface import StateStore
from lmr.watch.watch_settings import WatchSettings, read_watch
from lmr.watch.watched import Watched

if TYPE_CHECKING:
    from lmr.service.app.server import Server

NO_STATE = "none"  # the folder of states that is none
STORE_FILE = "streams.sqlite"
_NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")  # the extra "serve"
_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class ServingPlan:
    """What is served: a model with its classes and prompts, a method with its watch, and the limits of the service."""

    names: list[str]
    model: str
    method: str
    wording: Prompts | None
    guard: WatchSettings | None
    options: ModelOptions
    settings: ServiceSettings
    threads: int | None = None

    def load(self) -> tuple[Backbone, Method]:
        """The model and the method, without its watch; torch has as many threads as suit the model from now on."""
        keep_freed_memory()
        backbone = self.options.load(self.model)
        torch.set_num_threads(choose_threads(self.threads, backbone))  # the compute thread is started after this
        classifier = make_classifier(backbone, self.names, self.wording)
        return backbone, create_served(self.method, classifier, self.settings.resident)

    def start_engine(self, method: Method, store: StateStore | None) -> Engine:
        """An engine that serves the method of ``load``."""
        engine = Engine(watch_served(method, self.guard), self.names, self.settings, store)
        gc.collect()
        gc.freeze()  # modules and model stay: to look through them for garbage would stop all threads for 0.1 s
        engine.start()
        return engine

    def describe(self, backbone: Backbone, method: Method, states: str) -> list[str]:
        """What people want to know when it starts; ``states`` says where they are kept."""
        few = ", ".join(self.names[:5]) + (", ..." if len(self.names) > 5 else "")
        suited = describe_suited(self.method, method)
        return [
            f"model {backbone.name}, {len(self.names)} classes: {few}",
            f"method {method.spec}" + (f" ({suited})" if suited else ""),
            f"watch {'off' if self.guard is None else self.guard.mode}; {states}",
        ]


def plan_service(
    labels: AnyPath | Sequence[str],
    *,
    model: str = DEFAULT_MODEL,
    method: str = "lmr",
    templates: Sequence[str] | None = None,
    prompts: AnyPath | None = None,
    watch: str = "on",
    settings: ServiceSettings | None = None,
    architecture: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    memory: Literal["fast", "lean"] = "fast",
    compile: bool = False,
    threads: int | None = None,
) -> ServingPlan:
    """What to serve; LmrError for what cannot be read. Most arguments are those of ``predict_images``.

    ``threads`` of torch compute; without it, one for a small model and all cores for others.
    """
    return ServingPlan(
        names=read_labels(labels),
        model=model,
        method=method,
        wording=choose_prompts(templates, prompts),
        guard=read_watch(watch),
        options=ModelOptions(architecture, device, dtype, memory, compile),
        settings=settings or ServiceSettings(),
        threads=threads,
    )


def serve_classifier(
    plan: ServingPlan,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    token_file: AnyPath | None = None,
    state_dir: AnyPath = NO_STATE,
    log_level: str = "info",
    say: Callable[[str], None] = print,
    on_ready: Callable[[str, Callable[[], None]], None] = lambda url, stop: None,
    on_stop: Callable[[], object] = lambda: None,
) -> None:
    """Serve a classifier over HTTP until SIGTERM or Ctrl-C; every stream has an adaptive state of its own.

    ``state_dir`` is the folder of the store, "none" for states in memory alone. ``say`` is told what is served, and
    where. ``on_ready`` gets the address and a function that ends the service; ``on_stop`` is called before it ends.
    What does not fit together raises LmrError before the service answers anything.
    """
    check_packages()
    from lmr.service.app.app import make_service_app
    from lmr.service.app.log import write_json_log
    from lmr.service.app.server import Server
    from lmr.service.app.service import LiveService

    token = choose_token(host, token_file)
    service = LiveService(plan.settings)
    server = Server(make_service_app(service, token=token), host, port, on_stop)

    engines: list[Engine] = []
    before = torch.get_num_threads()

    def load() -> None:
        backbone, made = plan.load()
        engine = plan.start_engine(made, open_store(state_dir, made, plan.guard))
        engines.append(engine)
        service.install(engine, backbone.preprocess, backbone.name, backbone.facts)
        stateless = os.fspath(state_dir) == NO_STATE
        kept = "in memory alone, lost when the service ends" if stateless else f"in {os.fspath(state_dir)}"
        for line in plan.describe(backbone, made, f"states {kept}; {engine.look().streams} streams so far"):
            say(line)
        say(f"serving at {server.url}; open it in a browser for the live page, press Ctrl-C to end")
        on_ready(server.url, server.drain)

    with write_json_log(log_level):
        try:
            _run_beside(load, server)
        finally:
            for engine in engines:
                engine.close()
            torch.set_num_threads(before)


def _run_beside(load: Callable[[], None], server: Server) -> None:
    """Load in a thread while the server answers that it is loading; what fails there ends both and is raised here."""
    failed: list[BaseException] = []

    def load_or_stop() -> None:
        try:
            load()
        except BaseException as error:
            failed.append(error)
            server.drain()

    threading.Thread(target=load_or_stop, name="lmr-load", daemon=True).start()
    server.run()
    if failed:
        raise failed[0]


def create_served(spec: str, classifier: ZeroShot, streams: int) -> Method:
    """A method for so many streams, with its values for the number of classes and counted by images."""
    kind = find_addressed(spec)
    if kind.grows:
        raise LmrError(
            f"The state of {kind.name} grows with every image ({', '.join(kind.grows)}), so that a service would run "
            "out of memory; choose another method."
        )
    return create_suited(spec, classifier, streams=streams)


def choose_threads(given: int | None, backbone: Backbone) -> int:
    """Threads of torch: those that are given, or one for a small model, which leaves a core to decode images."""
    if given is None:
        return 1 if backbone.is_small else torch.get_num_threads()
    if given < 1:
        raise LmrError(f"Expected at least one thread for torch, got {given}.")
    return given


def watch_served(method: Method, guard: WatchSettings | None) -> Method:
    """The method with its watch, if it has one."""
    return method if guard is None else Watched(method, guard)


def open_store(folder: AnyPath, method: Method, guard: WatchSettings | None) -> Store | None:
    """The store in a folder, which is created if it is missing; None for no store."""
    if os.fspath(folder) == NO_STATE:
        return None
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot create the folder of states {str(path)!r}: {error.strerror or error}.") from error
    return Store(path / STORE_FILE, describe_states(method, guard))


def describe_states(method: Method, guard: WatchSettings | None) -> dict[str, str]:
    """What states belong to, for a store; what a watch keeps is a part of a state."""
    return describe_identity(method) | {"watch": "off" if guard is None else "on"}


def choose_token(host: str, token_file: AnyPath | None) -> str | None:
    """The token that clients must send; a service that others can reach needs one."""
    if token_file is None:
        if not is_loopback(host):
            raise LmrError(
                f"A service on {host} is open to other machines and needs a --token-file, a file with a secret "
                "text that clients send; write one with: openssl rand -hex 32 > token"
            )
        return None
    token = read_token_file(token_file)
    if len(token) < _TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise LmrError(
            f"Expected a token of at least {_TOKEN_LENGTH} visible ASCII characters in {os.fspath(token_file)!r}; "
            "write one with: openssl rand -hex 32"
        )
    return token


def check_packages() -> None:
    """LmrError if the packages of the service are not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise LmrError(f"lmr serve needs {', '.join(missing)}; install them with: pip install 'lmr[serve]'")
