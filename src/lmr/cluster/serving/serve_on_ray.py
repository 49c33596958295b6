"""``lmr serve --ray``: the service of one machine as replicas on a cluster, until a signal ends it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from lmr.apps.serve import (
    ServingPlan,
    check_packages,
    choose_token,
    describe_states,
)
from lmr.cluster.nodes import check_nodes, digest_method, find_nodes, list_versions
from lmr.cluster.ray_connection import LOCAL, connect
from lmr.cluster.serving.ray_service import VARIABLES, RayService, ReplicaCount, import_serve
from lmr.cluster.serving.replica import ReplicaPlan
from lmr.core.errors import LmrError
from lmr.core.registry import split_address
from lmr.models.catalog import KNOWN_MODELS, OPENAI_SPELLINGS
from lmr.service.store.addresses import NO_STORE

LOOK_SECONDS = 0.2  # between looks at what signals ask for
# As in other servers: one replica more, one less.
STEPS = {signal.SIGTTIN: 1, signal.SIGTTOU: -1} if hasattr(signal, "SIGTTIN") else {}


def serve_on_ray(
    address: str,
    plan: ServingPlan,
    *,
    replicas: ReplicaCount,
    partitions: int = 1,
    host: str = "127.0.0.1",
    port: int = 8080,
    token_file: str | None = None,
    state_dir: str | os.PathLike[str] = NO_STORE,
    log_level: str = "info",
    say: Callable[[str], None] = print,
) -> None:
    """Serve on the cluster at ``address`` until SIGTERM or Ctrl-C; the other arguments are those of one machine.

    The stores are on the machine that this runs on, in ``state_dir``. Nodes with other versions are refused, and the
    model is loaded here once, to refuse what does not fit before anything is started. SIGTTIN adds a replica, and
    SIGTTOU takes one away.
    """
    check_packages()
    token = choose_token(host, token_file)
    _check(plan, state_dir, partitions)
    plan = _spread(plan)
    folder = Path(state_dir).absolute()
    with _Signals() as signals, connect(address, VARIABLES) as ray:
        import_serve()
        if address != LOCAL:  # which has one node, this machine
            for line in check_nodes(find_nodes(ray), list_versions()):
                say(line)
        backbone, method = replace(plan, options=replace(plan.options, device=None)).load()
        lines = plan.describe(backbone, method, f"states in {folder} of this machine, in {partitions} partition(s)")
        if (plan.options.device or "").startswith("cuda"):
            replicas = replace(replicas, gpus=1.0)
        service = RayService(
            ray,
            ReplicaPlan(plan, token, log_level, list_versions() | digest_method(plan.method)),
            describe_states(method, plan.watch),
            folder,
            partitions=partitions,
            replicas=replicas,
            host=host,
            port=port,
            ends_with_ray=address == LOCAL,
        )
        del backbone, method
        with service:
            signals.take()
            for line in lines:
                say(line)
            say(f"{replicas.text} replica(s) with {replicas.cpus:g} core(s) each")
            say(f"serving at {service.url}; press Ctrl-C to end")
            for step in signals.follow():
                _scale(service, service.replicas + step, say)
            say("ending: requests that wait are finished first")


def _scale(service: RayService, replicas: int, say: Callable[[str], None]) -> None:
    room = replicas <= service.replicas or service.has_room()
    try:
        service.scale(replicas)
    except LmrError as error:
        say(str(error))
    else:
        say(
            f"{replicas} replica(s) from now on"
            + ("" if room else "; the new one waits: no node has free cores for it")
        )


def _check(plan: ServingPlan, state_dir: str | os.PathLike[str], partitions: int) -> None:
    if os.fspath(state_dir) == NO_STORE:
        raise LmrError("Replicas share states through a store, so --ray needs a --store; 'none' is not one.")
    if plan.settings.durability != "answer":
        raise LmrError("On a cluster a state is on the disk before its answer is sent; leave --durability out.")
    if partitions < 1:
        raise LmrError(f"Expected at least one partition, got {partitions}.")


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


class _Signals:
    """Signals of the process, kept until somebody looks; those of before are back at the end."""

    def __init__(self) -> None:
        self._ended, self._steps = threading.Event(), list[int]()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Signals:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take(self) -> None:
        """From now on, signals end the service in order. A start that waits is ended by Ctrl-C and by Ray's SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM, *STEPS):
            self._before[number] = signal.signal(number, self._note)

    def follow(self) -> Iterator[int]:
        """Replicas to be added, as signals come, until one ends the service."""
        while not self._ended.wait(LOOK_SECONDS):
            while self._steps:
                yield self._steps.pop(0)

    def _note(self, number: int, frame: FrameType | None) -> None:
        step = STEPS.get(signal.Signals(number))
        if step is None:
            self._ended.set()
        else:
            self._steps.append(step)
