"""``lmr serve``: put a model, a method, a watch, a store and a server together, and serve until told to stop."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from lmr.apps.method_options import MethodOptions
from lmr.apps.model_options import create_suited, describe_suited, explain_other_method
from lmr.apps.options import AnyPath, ServerOptions
from lmr.apps.precision import LoadedModel, load_model
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.foreign_text import hide_password, make_printable
from lmr.core.method import Method
from lmr.core.registry import find_addressed
from lmr.core.reused import Reused
from lmr.core.wrapper import Wrapper
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import METHOD, describe_identity
from lmr.service.mqtt import MqttAddress, MqttPublisher
from lmr.service.network import is_loopback, read_secret
from lmr.service.settings import ServiceSettings
from lmr.service.store import addresses
from lmr.service.store.addresses import StateStore
from lmr.service.store.sql_store import CLASSES, NAMES, OtherIdentity
from lmr.watch.settings import WatchSettings
from lmr.watch.watched import Watched

if TYPE_CHECKING:
    from lmr.service.app.server import Server

_NEEDED = ("fastapi", "uvicorn", "httptools", "python_multipart", "prometheus_client")  # of the extra "serve"
_TOKEN_LENGTH, _TOKEN_KINDS = 16, 6  # characters, and different ones: a random text of digits has about 8
_LISTED = 20  # classes in a message
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of parameters, mallopt(3)
_NEVER, _LARGEST = 2**31 - 1, 32 * 2**20  # bytes; the largest that glibc takes
Report = Callable[[str], object]  # gets messages for people


@dataclass(frozen=True)
class ServingPlan:
    """Resolved options of the classes, the model, the method and its watch, and the limits of the service."""

    options: MethodOptions
    settings: ServiceSettings = field(default_factory=ServiceSettings)

    def load(self) -> tuple[LoadedModel, Method]:
        """Return the model and the method, without its watch."""
        keep_freed_memory()
        given = self.options
        loaded = load_model(given)  # the compute thread is started after this, which may set the number of threads
        return loaded, create_served(given.method, loaded.classifier, self.settings.resident, given.unknown)

    def wrap(self, method: Method) -> Method | Wrapper:
        """Return the method of ``load`` as it is served: it reuses answers, and is watched."""
        watch = self.options.watch_settings
        frugal = Reused(method, self.options.reuse) if self.options.reuse else method
        return frugal if watch is None else Watched(frugal, watch)

    def start_engine(self, method: Method, store: StateStore | None) -> Engine:
        """Return an engine that serves the method of ``load``."""
        engine = Engine(self.wrap(method), method.classifier.names, self.settings, store)
        gc.collect()
        gc.freeze()  # modules and model stay: to search them for garbage would stop all threads for 0.1 s
        engine.start()
        return engine

    def describe(self, model: LoadedModel, method: Method, states: str) -> list[str]:
        """Return lines to show at the start; ``states`` says where the states are kept."""
        names = method.classifier.names
        few = make_printable(", ".join(names[:5])) + (", ..." if len(names) > 5 else "")
        given, watch = self.options, self.options.watch_settings
        suited = describe_suited(given.method, method)
        return [
            f"model {model.backbone.name}, {len(names)} classes: {few}",
            *([] if model.said is None else [model.said]),
            f"method {method.spec}" + (f" ({suited})" if suited else ""),
            f"watch {'off' if watch is None else watch.mode}; {states}",
            *([] if given.unknown is None else [f"threshold of unknown images: {given.unknown}"]),
        ]


@contextlib.contextmanager
def open_server(plan: ServingPlan, where: ServerOptions | None = None, *, report: Report = print) -> Iterator[Server]:
    """Load a model and yield its server, which ``run`` serves until SIGTERM or Ctrl-C.

    Every stream has an adaptive state of its own. ``report`` gets lines that say what is served, and where. What does
    not fit together raises LmrError. Requests that come while the model loads wait until the server runs.
    """
    check_packages()
    from lmr.service.app.app import make_app
    from lmr.service.app.log import write_json_log
    from lmr.service.app.server import Server, bind
    from lmr.service.app.service import LiveService
    from lmr.service.notify import Notifier, check_address

    where = where or ServerOptions()
    token = choose_token(where.host, where.token_file)
    broker = None if where.mqtt is None else MqttAddress.read(where.mqtt, where.mqtt_password_file)
    address = None if where.notify is None else check_address(where.notify, (where.notify_host or "").split(","))
    with contextlib.ExitStack() as ending:
        ending.enter_context(write_json_log(where.log_level or "info"))
        bound = ending.enter_context(bind(where.host, where.port))
        ending.callback(torch.set_num_threads, torch.get_num_threads())
        model, method = plan.load()
        backbone = model.backbone
        store = open_store(where.store, method, plan.options.watch_settings, adopt=where.adopt)
        engine = plan.start_engine(method, store)
        ending.callback(engine.close)
        if broker is not None:
            publisher = MqttPublisher(broker, plan.options.model)
            engine.listen_results(publisher.add)
            publisher.start(engine.is_gone)
            ending.callback(publisher.close)
            report(f"answers are published at {broker}")
        service = LiveService(engine, backbone.preprocess, backbone.name, backbone.facts)
        server = Server(make_app(service, token=token), bound)
        if address is not None:
            notifier = Notifier(address)
            service.event_listeners.append(notifier.add)
            ending.callback(notifier.close)
            report(f"events are posted to {hide_password(address)}")
        title = addresses.describe_store(where.store)
        kept = "in memory alone, lost when the service ends" if title == addresses.NO_STORE else f"in {title}"
        for line in plan.describe(model, method, f"states {kept}; {engine.read_overview().streams} streams so far"):
            report(line)
        report(f"serving at {server.url}; open it in a browser for the live page, press Ctrl-C to end")
        yield server


def keep_freed_memory() -> None:
    """Let glibc keep freed memory of this process for the next step; other C libraries have no such setting.

    Every step frees activations and allocates as many again. By default they may go back to the system in between, and
    each of their pages is then cleared and mapped again: up to 4,000 page faults a step with batches of 64 small
    images. The peak of the process is the same.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)


def create_served(spec: str, classifier: ZeroShot, streams: int, unknown: float | None = None) -> Method:
    """Return a method for ``streams`` streams, with its values for the number of classes and counted by images."""
    kind = find_addressed(spec)
    if kind.grows:
        raise LmrError(
            f"The state of {kind.name} grows with every image ({', '.join(kind.grows)}), so that a service would run "
            "out of memory; choose another method."
        )
    return create_suited(spec, classifier, streams=streams, unknown=unknown)


def open_store(address: str, method: Method, watch: WatchSettings | None, *, adopt: bool = False) -> StateStore | None:
    """Return the store at an address, for the states of a method; None for no store."""
    try:
        # The state of a watch is a part of the stored states.
        other = {"watch": "off" if watch is None else "on", NAMES: json.dumps(method.classifier.names)}
        return addresses.open_store(address, describe_identity(method) | other, adopt=adopt)
    except OtherIdentity as error:
        what = f"The store {addresses.describe_store(address)!r}"
        if error.name == CLASSES and error.stored:
            raise LmrError(explain_other_classes(what, json.loads(error.stored), method.classifier.names)) from error
        if error.name != METHOD:
            raise
        raise LmrError(explain_other_method(error.stored, method, what, "--store")) from error


def explain_other_classes(what: str, stored: Sequence[str], given: Sequence[str]) -> str:
    """Return the error message for ``what``, which holds states of other classes, with the ways to go on."""
    if list(stored) == list(given):
        return f"{what} was made with other prompts for these classes; give them again, or another --store."
    lists = [f"{len(names)} classes ({_list_few(names)})" for names in (stored, given)]
    old = make_printable(",".join(stored)) if len(stored) <= _LISTED else "FILE"
    return (
        f"{what} is of {lists[0]}, and --labels gives {lists[1]}. There are three ways: "
        f"go on with its classes (--labels {shlex.quote(old)}); give --adopt, so that the streams keep what they have "
        "learnt; or start anew with another --store."
    )


def _list_few(names: Sequence[str]) -> str:
    return make_printable(", ".join(names[:_LISTED])) + (", ..." if len(names) > _LISTED else "")


def choose_token(host: str, token_file: AnyPath | None) -> str | None:
    """Return the token that clients must send; a service that other machines can reach needs one."""
    if token_file is None:
        if not is_loopback(host):
            raise LmrError(
                f"A service on {host} is open to other machines and needs a --token-file, a file with a secret "
                "text that clients send; write one with: openssl rand -hex 32 > token"
            )
        return None
    token = read_secret(token_file, "token")
    weak = len(token) < _TOKEN_LENGTH or len(set(token)) < _TOKEN_KINDS
    if weak or not token.isascii() or not token.isprintable() or " " in token:
        raise LmrError(
            f"Expected a token of at least {_TOKEN_LENGTH} visible ASCII characters, {_TOKEN_KINDS} of them different, "
            f"in {os.fspath(token_file)!r}; write one with: openssl rand -hex 32"
        )
    return token


def check_packages() -> None:
    """Raise an LmrError if the packages of the service are not installed."""
    for name in _NEEDED:
        require(name, "serve", "lmr serve")
