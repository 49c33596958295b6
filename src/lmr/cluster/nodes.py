"""The nodes of a cluster: what each has, and whether its rows would be those of this machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.registry import load_method_file, split_address
from lmr.version import __version__

PROBE_SECONDS = 120.0  # for a node to start a process that imports torch
SOURCES = Path(__file__).parents[1]  # the folder of the package
PACKAGES = {"torch": "torch", "numpy": "numpy", "Pillow": "PIL", "OpenCV": "cv2"}  # names, and what is imported


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with what its rows would carry."""

    name: str  # host name, and the beginning of Ray's id of the node where there are several
    cores: int
    memory: float  # bytes that Ray gives to its processes
    versions: Mapping[str, str]

    @property
    def description(self) -> str:
        """Return the node in a line."""
        return f"{self.name}: {self.cores} cores, {self.memory / 1e9:.1f} GB"


def choose_threads(small: bool, nodes: Sequence[Node]) -> int:
    """Return the threads of every task: one for small models, otherwise the cores of the smallest node."""
    return 1 if small else min(node.cores for node in nodes)


def list_versions() -> dict[str, str]:
    """Return the versions that determine the last digits of a result, without packages that are not installed."""
    found = {"lmr": __version__, "sources of lmr": digest_sources()}
    found |= {"python": platform.python_version(), "machine": platform.machine()}
    for name, package in PACKAGES.items():
        with contextlib.suppress(ImportError):
            found[name] = importlib.import_module(package).__version__
    return found


@functools.cache
def digest_sources(root: Path = SOURCES) -> str:
    """Return a short digest of the package's files: commits between two releases have the same version."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())  # of fixed length: names and contents stay apart
    return digest.hexdigest()[:12]


def digest_method(spec: str) -> dict[str, str]:
    """Return a short digest of the file that a spec takes its method from; nothing for the methods of packages."""
    file, _ = split_address(spec)
    return {} if file is None else {f"content of {file}": load_method_file(file)[:12]}


def probe() -> dict[str, Any]:
    """Describe this machine as a node."""
    return {"host": socket.gethostname(), "versions": list_versions()}


def find_nodes(ray: Any) -> list[Node]:
    """Return all nodes that are alive and have cores, each asked what it has."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    asked = ray.remote(num_cpus=0, max_retries=1)(probe)
    answers = [
        asked.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in alive
    ]
    nodes = []
    for node, answer in zip(alive, answers, strict=True):
        try:
            said = ray.get(answer, timeout=PROBE_SECONDS)
        except ray.exceptions.TaskUnschedulableError:  # it has gone, and Ray has not noticed it before
            continue
        except (ray.exceptions.RayError, ImportError) as error:
            name = node.get("NodeManagerHostname") or node["NodeID"]
            raise LmrError(f"The node {name} {_explain(ray, error)}") from error
        name = f"{said['host']}/{node['NodeID'][:4]}" if len(alive) > 1 else said["host"]
        cores, memory = int(node["Resources"]["CPU"]), node["Resources"].get("memory", 0.0)
        nodes.append(Node(name, cores, memory, said["versions"]))
    if not nodes:
        raise LmrError("The Ray cluster has no node with a free core; start one with 'ray start'.")
    return nodes


def check_nodes(nodes: Sequence[Node], own: Mapping[str, str]) -> None:
    """Refuse nodes whose rows would silently differ from ours."""
    for node in nodes:
        if wrong := describe_mismatch(node.versions, own):
            raise LmrError(
                f"The node {node.name} has {wrong}; rows of different versions are not mixed. Install the same "
                "versions on every node."
            )


def describe_mismatch(theirs: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Describe the versions that differ; empty if none does."""
    names = sorted(name for name in {*theirs, *own} if theirs.get(name) != own.get(name))
    return ", ".join(f"{name} {theirs.get(name, 'missing')} (here {own.get(name, 'missing')})" for name in names)


def _explain(ray: Any, error: Exception) -> str:
    """Return why a node has not answered, and what to do. If it lacks memory, Ray tries until the time is over."""
    lacking = ray.exceptions.GetTimeoutError, ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError
    if isinstance(error, lacking):
        return (
            f"does not answer ({type(error).__name__}); it may lack memory or free cores. End what uses them, or take "
            "it out of the cluster with 'ray stop' on that machine."
        )
    return f"cannot run lmr ({shorten(error)}); install the same version of lmr on every node."


def shorten(error: BaseException) -> str:
    """Return the last line of an error, which names it where Ray passes on a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
