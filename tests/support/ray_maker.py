"""A small Ray cluster on this machine, for tests."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def make_cluster(nodes: int = 2) -> Iterator[tuple[Any, Any]]:
    """Ray, connected to a cluster of nodes with one core each, and the cluster, whose nodes can be removed."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    from lmr.cluster.ray_connection import import_ray

    ray = import_ray()
    from ray.cluster_utils import Cluster

    # A node that was killed is noticed after six seconds in place of fifteen; fewer end live nodes of a busy machine.
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 6}
    # Ray gives its workers the lowest priority but four; beside other programs they would hardly run.
    quick["worker_niceness"] = 0
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield ray, cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def wait_for_nodes(ray: Any, count: int) -> None:
    """Until so many nodes are alive."""
    end = time.monotonic() + 60
    while sum(node["Alive"] for node in ray.nodes()) < count:
        assert time.monotonic() < end
        time.sleep(0.2)


def expect_free(ray: Any, cores: int) -> None:
    """Nothing runs any more: soon all cores are free again."""
    end = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) < cores:
        assert time.monotonic() < end, ray.available_resources()
        time.sleep(0.2)


@contextlib.contextmanager
def taking_interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
