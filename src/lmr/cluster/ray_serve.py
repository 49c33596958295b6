"""``lmr serve --ray``: the service of one machine as replicas behind Ray Serve, which share states in PostgreSQL.

Ray Serve places the replicas, replaces those that die, and sends the requests of a stream to the same one by a header.
The epochs of the store make answers right wherever a request arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmr.apps.options import ServerOptions
from lmr.apps.serve import ServingPlan, check_packages, choose_token, open_store
from lmr.cluster.nodes import check_nodes, describe_mismatch, digest_method, find_nodes, list_versions, shorten
from lmr.cluster.ray_connection import LOCAL, connect
from lmr.core.errors import LmrError
from lmr.core.registry import split_address
from lmr.models.catalog import KNOWN_MODELS, OPENAI_SPELLINGS
from lmr.service.client.client import STREAM_HEADER
from lmr.service.network import find_free_port, is_loopback
from lmr.service.store.addresses import describe_store, is_shared

if TYPE_CHECKING:
    from fastapi import FastAPI

APP = "lmr-serve"
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
# By this header Serve's router finds the replica of a request; its proxies read the variable when they start.
VARIABLES = {"RAY_SERVE_SESSION_ID_HEADER_KEY": STREAM_HEADER.lower()}
LISTENERS = 100  # requests of a replica beside those in its queue, such as pages that follow events
HEALTH_SECONDS = 5.0  # between looks at a replica
LOOK_SECONDS = 0.2  # between looks for a signal


@dataclass(frozen=True)
class ReplicaCount:
    """A fixed number of replicas, or bounds of a number that follows the load. ``cpus`` are for each."""

    least: int = 1
    most: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise LmrError(f"Expected at least one replica, as in 3 or 2:8, got {self.text}.")
        if self.cpus <= 0:
            raise LmrError(f"Expected a positive number of cores for a replica, got {self.cpus:g}.")

    @property
    def text(self) -> str:
        """Return the number as it is written in an option."""
        return str(self.least) if self.most is None else f"{self.least}:{self.most}"


@dataclass(frozen=True)
class ReplicaPlan:
    """The service of a replica, and the versions, also of a method's file, that all replicas must have."""

    serving: ServingPlan
    store: str
    token: str | None
    log_level: str
    versions: Mapping[str, str]


def serve_on_ray(
    address: str, plan: ServingPlan, where: ServerOptions, replicas: ReplicaCount, report: Callable[[str], object]
) -> None:
    """Serve on the cluster at ``address`` until SIGTERM or Ctrl-C.

    Nodes with other versions are refused. Model and store are opened here once, to refuse what does not fit before
    anything is started.
    """
    check_packages()
    token = choose_token(where.host, where.token_file)
    if where.mqtt is not None:
        raise LmrError("--mqtt publishes the answers of one service on one machine; leave out --mqtt or --ray.")
    if not is_shared(where.store):
        raise LmrError(
            "Replicas on Ray share the states of streams in PostgreSQL, got the store "
            f"{describe_store(where.store)!r}; give --store postgresql://USER@HOST/DATABASE, or leave out --ray to "
            "serve from one process."
        )
    if (plan.options.device or "").startswith("cuda"):
        replicas = replace(replicas, gpus=1.0)
    plan = _spread(plan)
    with connect(address, VARIABLES) as ray:
        import_serve()
        if address != LOCAL:  # which has one node, this machine
            for line in check_nodes(find_nodes(ray), list_versions()):
                report(line)
        for line in _describe(plan, where.store):
            report(line)
        report(f"starting {replicas.text} replica(s) with {replicas.cpus:g} core(s) each; they wait for free cores")
        versions = list_versions() | digest_method(plan.method)
        told = ReplicaPlan(plan, where.store, token, where.log_level, versions)
        with run_replicas(ray, told, replicas, where.host, where.port) as url, _note_signals() as ended:
            report(f"serving at {url}; press Ctrl-C to end")
            while not ended.wait(LOOK_SECONDS):
                pass
            report("ending: requests that wait are finished first")


@contextlib.contextmanager
def run_replicas(
    ray: Any, plan: ReplicaPlan, replicas: ReplicaCount, host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Run replicas on a cluster within this context, and return their address; requests that wait are finished."""
    serve = import_serve()
    gone = (ray.exceptions.RayError, RuntimeError, TimeoutError, KeyError)  # errors of parts that have ended already
    _check_room(ray, replicas)
    with contextlib.ExitStack() as stack:
        holder = _hold_name(ray)
        stack.callback(ray.kill, holder)
        client = _find_client()
        if client is None:
            stack.callback(_try, serve.shutdown, gone)
            _start_serve(serve, host, port or find_free_port(host), gone)
            client = _find_client()
        stack.callback(_try, lambda: serve.delete(APP), gone)
        try:
            serve.run(
                _deploy(serve, plan, replicas),
                name=APP,
                route_prefix="/",
                logging_config={"enable_access_log": False, "log_level": "WARNING"},
            )
        except RuntimeError as error:
            raise LmrError(f"The replicas cannot be started: {_find_reason(error)}") from error
        yield f"http://{client.http_config.host}:{client.http_config.port}"


def import_serve() -> Any:
    """Return the package ray.serve; an LmrError that says how to get it where parts of it are missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own, about its own code
            from ray import serve
            from ray.serve.experimental import consistent_hash_router  # noqa: F401
    except ImportError as error:
        raise LmrError(f"Ray Serve is not complete ({error}); install it with: pip install 'lmr[ray]'") from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return serve


class StreamReplica:
    """A replica; Ray Serve creates it, gives it requests, and waits for their answers before it ends it."""

    async def __init__(self, plan: ReplicaPlan) -> None:  # type: ignore[misc]  # awaited by Serve
        from lmr.service.app.log import write_json_log
        from lmr.service.app.service import LiveService

        self._stack = contextlib.ExitStack()
        self._stack.enter_context(write_json_log(plan.log_level))
        self._token = plan.token
        self._service = LiveService(plan.serving.settings)
        await asyncio.to_thread(self._load, plan)

    def _load(self, plan: ReplicaPlan) -> None:
        serving = plan.serving
        if wrong := describe_mismatch(list_versions() | digest_method(serving.method), plan.versions):
            raise LmrError(f"A node has {wrong}; replicas must not differ. Have the same on every node.")
        backbone, method = serving.load()
        engine = serving.start_engine(method, open_store(plan.store, method, serving.watch))
        self._stack.callback(engine.close)
        self._service.install(engine, backbone.preprocess, backbone.name, backbone.facts)

    def __serve_build_asgi_app__(self) -> FastAPI:
        from lmr.service.app.app import make_app

        return make_app(self._service, token=self._token)

    async def __del__(self) -> None:
        await asyncio.to_thread(self._stack.close)


def _deploy(serve: Any, plan: ReplicaPlan, replicas: ReplicaCount) -> Any:
    from ray.serve.config import RequestRouterConfig

    settings = plan.serving.settings
    scaling: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.most is not None:
        busy = max(1, settings.max_batch // 2)
        bounds = {"min_replicas": replicas.least, "max_replicas": replicas.most, "target_ongoing_requests": busy}
        scaling = {"autoscaling_config": bounds}
    deployment = serve.deployment(
        name=StreamReplica.__name__,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        # More than its queue holds, so that the engine is the one to refuse, with 429 and a time to come back.
        max_ongoing_requests=2 * settings.queue_images + LISTENERS,
        graceful_shutdown_timeout_s=settings.drain_s,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_SECONDS,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, request_router_kwargs={"num_fallback_replicas": 0}
        ),
        **scaling,
    )
    return deployment(serve.ingress()(StreamReplica)).bind(plan)


def _describe(plan: ServingPlan, store: str) -> list[str]:
    """Load the model and open the store on this machine, and return lines that describe them."""
    backbone, method = replace(plan, options=replace(plan.options, device=None)).load()
    opened = open_store(store, method, plan.watch)
    if opened is not None:
        opened.close()
    return plan.describe(backbone, method, f"states in {describe_store(store)}")


def _spread(plan: ServingPlan) -> ServingPlan:
    """Return the plan for other folders and machines: full paths, and prompts in place of their file."""
    file, spec = split_address(plan.method)
    if file is not None:
        plan = replace(plan, method=f"{os.path.abspath(file)}:{spec}")
    if plan.model not in (*KNOWN_MODELS, *OPENAI_SPELLINGS) and os.path.exists(plan.model):
        plan = replace(plan, model=os.path.abspath(plan.model))
    if isinstance(plan.prompts, (str, os.PathLike)):
        plan = replace(plan, prompts=json.loads(Path(plan.prompts).read_text("utf-8-sig")))
    return plan


def _check_room(ray: Any, replicas: ReplicaCount) -> None:
    """Refuse replicas that the cluster could never place, for which Serve would wait forever."""
    needs = {name: amount for name, amount in (("CPU", replicas.cpus), ("GPU", replicas.gpus)) if amount}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    places = sum(min(int(node.get(name, 0.0) / amount) for name, amount in needs.items()) for node in nodes)
    if replicas.least > places:
        gpus = f" and {replicas.gpus:g} GPUs" if replicas.gpus else ""
        raise LmrError(
            f"The nodes of the cluster have room for {places} replicas with {replicas.cpus:g} cores{gpus} each on one "
            f"node, and {replicas.least} are to be started; lower --replicas or --replica-cpus, or add nodes."
        )


def _hold_name(ray: Any) -> Any:
    """Return an actor that ends with this process and tells other commands that it serves."""
    try:
        return ray.remote(num_cpus=0)(type("Holder", (), {})).options(name=APP, namespace=APP).remote()
    except ValueError as error:  # the name is taken
        raise LmrError("A service of lmr runs on this cluster already; end it first.") from error


def _start_serve(serve: Any, host: str, port: int, errors: tuple[type[Exception], ...]) -> None:
    where = "HeadOnly" if is_loopback(host) else "EveryNode"
    try:
        serve.start(proxy_location=where, http_options={"host": host, "port": port})
    except errors as error:
        reason = shorten(error).removeprefix("RuntimeError: ").rstrip(".")
        raise LmrError(f"Ray Serve cannot be started: {reason}; choose another --port or --host.") from error


def _find_client() -> Any:
    """Return Serve's connection to its controller; None if Serve does not run on the cluster."""
    from ray.serve.context import _get_global_client

    return _get_global_client(raise_if_no_controller_running=False)


def _try(end: Callable[[], object], errors: tuple[type[Exception], ...]) -> None:
    with contextlib.suppress(*errors):
        end()


@contextlib.contextmanager
def _note_signals() -> Iterator[threading.Event]:
    """Return an event that SIGTERM and Ctrl-C set; Ray's own handlers are back at the end."""
    ended = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: ended.set()) for number in numbers]
    try:
        yield ended
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _find_reason(error: BaseException) -> str:
    """Return the sentence of an LmrError in the report of a deployment; otherwise its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.partition("LmrError: ")[2] for line in lines if "LmrError: " in line]
    return (own or lines or [type(error).__name__])[-1]
