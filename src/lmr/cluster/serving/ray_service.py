"""RayService: stores and replicas on a cluster, started, scaled and ended."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lmr.cluster.nodes import count_free_places, shorten
from lmr.cluster.serving.remote_store import RemoteStore
from lmr.cluster.serving.replica import ReplicaPlan, StreamReplica
from lmr.cluster.serving.store_actor import StoreActor, name_files
from lmr.core.errors import LmrError
from lmr.service.client.client import STREAM_HEADER
from lmr.service.network import find_free_port, is_loopback

APP = "lmr-serve"
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
# By this header Serve's router finds the replica of a request; its proxies read the variable when they start.
VARIABLES = {"RAY_SERVE_SESSION_ID_HEADER_KEY": STREAM_HEADER.lower()}
CALLS = 8  # that a store works on at once
LISTENERS = 100  # requests of a replica beside those in its queue, such as pages that follow events
HEALTH_SECONDS = 5.0  # between looks at a replica
FREE_SECONDS = 5.0  # for cores to be free again
SCALE_SECONDS = 30.0  # for Serve to take a new number of replicas
CLOSE_SECONDS = 10.0  # for a store to close its file


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


class RayService:
    """A service on the cluster that Ray is connected to; a context. ``ends_with_ray``: the cluster ends right after it.

    The stores are on the node of this process, whose disk has ``folder``; they end with this process, as does nothing
    else: replicas that are left over answer that their store is away until a new service takes their place.
    """

    def __init__(
        self,
        ray: Any,
        plan: ReplicaPlan,
        identity: Mapping[str, str],
        folder: Path,
        *,
        partitions: int = 1,
        replicas: ReplicaCount | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        ends_with_ray: bool = False,
    ) -> None:
        self._ray, self._serve = ray, import_serve()
        self._plan, self._identity, self._folder = plan, identity, folder
        self._partitions, self._count = partitions, replicas or ReplicaCount()
        self._host, self._port = host, port or find_free_port(host)
        self._ends_with_ray = ends_with_ray
        self._stack = contextlib.ExitStack()
        self.replicas = self._count.least
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def scale(self, replicas: int) -> None:
        """Set the number of replicas. The others stay, so that only the necessary streams move."""
        if self._count.most is not None:
            raise LmrError(f"The number of replicas follows the load ({self._count.text}); it cannot be set.")
        if replicas < 1:
            raise LmrError(f"Expected at least one replica, got {replicas}.")
        from ray.serve._private.common import DeploymentID

        # What the HTTP interface of Ray's dashboard calls, which a cluster need not have.
        target = DeploymentID(name=StreamReplica.__name__, app_name=APP)
        client = self._find_client()
        if client is None:
            raise LmrError("Ray Serve has been ended on this cluster; start the service again.")
        try:
            self._ray.get(client._controller.update_deployment_replicas.remote(target, replicas), timeout=SCALE_SECONDS)
        except self._ray.exceptions.RayError as error:  # the service goes on as it is
            kind = type(error).__name__
            raise LmrError(f"Ray Serve did not change the number of replicas ({kind}); try it again.") from error
        self.replicas = replicas

    def has_room(self) -> bool:
        """Return True if there is a node for one more replica now; without it, Serve waits until there is."""
        return self._count_places() > 0

    def stop(self) -> None:
        """Finish what waits, within the limit, end the replicas and close the stores."""
        self._stack.close()

    def _start(self) -> None:
        store = self._start_stores()
        self._start_serve()
        if APP in self._serve.status().applications:
            self._serve.delete(APP)  # of a service whose process, and with it the stores, is gone
        self._check_room()
        self._stack.callback(self._try, lambda: self._serve.delete(APP))
        try:
            self._serve.run(
                self._deploy().bind(self._plan, store),
                name=APP,
                route_prefix="/",
                logging_config={"enable_access_log": False, "log_level": "WARNING"},
                external_scaler_enabled=self._count.most is None,
            )
        except RuntimeError as error:
            raise LmrError(f"The replicas cannot be started: {_find_reason(error)}") from error

    def _check_room(self) -> None:
        """Refuse replicas for which Serve would wait forever. Cores of ended replicas are freed late."""
        count, end = self._count, time.monotonic() + FREE_SECONDS
        while count.least > (places := self._count_places()) and time.monotonic() < end:
            time.sleep(0.2)
        if count.least > places:
            gpus = f" and {count.gpus:g} GPUs" if count.gpus else ""
            raise LmrError(
                f"The nodes of the cluster have room for {places} replicas with {count.cpus:g} free cores{gpus} each "
                f"on one node, and {count.least} are to be started; lower --replicas or --replica-cpus, or add nodes."
            )

    def _count_places(self) -> int:
        return sum(count_free_places(self._ray, self._count.cpus, self._count.gpus).values())

    def _start_stores(self) -> RemoteStore:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actors: list[Any] = []
        ray, node = self._ray, self._ray.get_runtime_context().get_node_id()
        options = {
            "num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": CALLS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }  # fmt: skip
        for number, path in enumerate(name_files(self._folder, self._partitions)):
            named = options | {"name": f"store-{number}", "namespace": APP}
            try:
                actor = ray.remote(StoreActor).options(**named).remote(str(path), dict(self._identity))
            except ValueError as error:  # the name is taken
                raise LmrError("A service of lmr runs on this cluster already; end it first.") from error
            self._stack.callback(self._try, functools.partial(self._end_store, actor))
            actors.append(actor)
        store = RemoteStore(actors, self._folder)
        store.summarise()  # opens the files: another model's are refused here
        return store

    def _end_store(self, actor: Any) -> None:
        try:
            self._ray.get(actor.close.remote(), timeout=CLOSE_SECONDS)
        finally:  # also one that is busy or being started again: its name and its file would stay taken
            self._ray.kill(actor)

    def _start_serve(self) -> None:
        if self._find_client() is None:
            where = "HeadOnly" if is_loopback(self._host) else "EveryNode"
            if not self._ends_with_ray:
                self._stack.callback(self._try, self._serve.shutdown)
            try:
                self._serve.start(proxy_location=where, http_options={"host": self._host, "port": self._port})
            except (self._ray.exceptions.RayError, RuntimeError, TimeoutError) as error:
                reason = shorten(error).removeprefix("RuntimeError: ").rstrip(".")
                raise LmrError(f"Ray Serve cannot be started: {reason}; choose another --port or --host.") from error
        options = self._find_client().http_config
        self.url = f"http://{options.host}:{options.port}"

    def _deploy(self) -> Any:
        from ray.serve.config import RequestRouterConfig

        settings, count = self._plan.serving.settings, self._count
        scaling: dict[str, Any] = {"num_replicas": count.least}
        if count.most is not None:
            busy = max(1, settings.max_batch // 2)
            bounds = {"min_replicas": count.least, "max_replicas": count.most, "target_ongoing_requests": busy}
            scaling = {"autoscaling_config": bounds}
        return self._serve.deployment(
            name=StreamReplica.__name__,
            ray_actor_options={"num_cpus": count.cpus, "num_gpus": count.gpus},
            # More than its queue holds, so that the engine is the one to refuse, with 429 and a time to come back.
            max_ongoing_requests=2 * settings.queue_images + LISTENERS,
            graceful_shutdown_timeout_s=settings.drain_s,
            graceful_shutdown_wait_loop_s=0.2,
            health_check_period_s=HEALTH_SECONDS,
            request_router_config=RequestRouterConfig(
                request_router_class=ROUTER, request_router_kwargs={"num_fallback_replicas": 0}
            ),
            **scaling,
        )(self._serve.ingress()(StreamReplica))

    def _find_client(self) -> Any:
        """Return Serve's connection to its controller; None if Serve does not run on the cluster."""
        from ray.serve.context import _get_global_client

        return _get_global_client(raise_if_no_controller_running=False)

    def _try(self, end: Callable[[], object]) -> None:
        """End a part; if it is gone already, the others are ended all the same."""
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError, RuntimeError, KeyError):
            end()


def _find_reason(error: BaseException) -> str:
    """Return the sentence of an LmrError in the report of a deployment; otherwise its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.partition("LmrError: ")[2] for line in lines if "LmrError: " in line]
    return (own or lines or [type(error).__name__])[-1]
