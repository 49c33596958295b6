"""Replicas that share a PostgreSQL database behind nginx: killed under load; and the cost compared with SQLite."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lab.load import postgres_server
from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.cameras import SteadyCameras
from lab.load.child_service import ChildService
from lab.load.inputs import LoadModel, draw_image, find_photo, find_pocket, name_streams
from lab.load.kill import kill_replicas
from lab.load.postgres_server import run_database
from lab.load.replicas import find_processes
from lab.load.senders import find_percentile, run_senders
from lab.load.throughput import ImageCost, sum_costs
from lmr.core.errors import LmrError
from lmr.service.client.client import Client
from lmr.service.engine.requests import ServiceAnswer
from lmr.service.network import find_free_port

REPLICAS, CAMERAS = 3, 64
STREAMS = 16  # of a replica, when throughput is measured
BLOCK = 50  # requests to one service before the next has its turn
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
MISSING = postgres_server.MISSING or ("" if shutil.which("nginx") else "nginx is not installed (Debian: nginx-light)")


class Proxy:
    """A context with nginx on a free port, as ``deploy/nginx.conf`` configures it, before services of this machine."""

    def __init__(self, services: Sequence[ChildService], folder: Path) -> None:
        if MISSING:
            raise LmrError(f"{MISSING}; install it for this experiment.")
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder / f"nginx-{self.port}"
        self._folder.mkdir()
        text = CONFIGURATION.read_text("utf-8").replace("listen 8080", f"listen 127.0.0.1:{self.port}")
        server = re.findall(r" *server lmr-\d+:8080(.*;)\n", text)[0]
        servers = "".join(f"server 127.0.0.1:{service.port}{server}\n" for service in services)
        text = re.sub(r"( *server lmr-\d+:8080.*;\n)+", servers, text)
        paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        temporary = "".join(f"{name}_temp_path {self._folder / name};\n" for name in paths)
        whole = f"daemon off; pid {self._folder / 'pid'};\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{text}}}\n"
        (self._folder / "nginx.conf").write_text(whole, "utf-8")

    def __enter__(self) -> Self:
        log = self._folder / "error.log"
        command = ["nginx", "-e", str(log), "-c", str(self._folder / "nginx.conf")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        with Client(self.url, patience=0) as client:
            while not client.is_ready():
                if self._process.poll() is not None or time.monotonic() > end:
                    raise LmrError(f"nginx did not start:\n{log.read_text('utf-8', errors='replace')[-2000:]}")
                time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid


def start_replicas(
    stack: contextlib.ExitStack, bench: LoadBench, model: LoadModel, url: str, count: int
) -> list[ChildService]:
    """Start services that share a store, until the end of a context."""
    made = [ChildService([*model.options, "--store", url], bench.folder) for _ in range(count)]
    return [stack.enter_context(service) for service in made]


def measure_shared_store(bench: LoadBench) -> LoadResult:
    """Kill random replicas while cameras send through the proxy, and twice the database itself."""
    model, replicas, count = find_pocket(), bench.count(REPLICAS, 2), bench.count(CAMERAS, 4)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(run_database())
        services = start_replicas(stack, bench, model, database.url, replicas)
        proxy = stack.enter_context(Proxy(services, bench.folder))
        cameras = stack.enter_context(SteadyCameras(proxy.url, model, count))

        def kill_one(chance: random.Random) -> None:
            service = chance.choice(services)
            service.kill()
            service.start()

        kills = bench.count(bench.kills, 1)
        found = kill_replicas(bench, kills, cameras, database, services[0], kill_one)
        with Client(services[-1].url) as client:
            listed = sum(1 for _ in client.streams())
    return found.make_result(
        "replicas on PostgreSQL",
        f"nginx, {replicas} replicas",
        f"one replica lists {listed} streams",
        {"cameras": count, "listed_by_one": listed},
        listed == count,
    )


@dataclass
class _Setup:
    """Services that answer at one address, and what was measured of them."""

    name: str
    url: str
    services: Sequence[ChildService]
    others: Sequence[int] = ()  # processes of the proxy and of the database
    own: list[ImageCost] = field(default_factory=list)  # without the others
    whole: list[ImageCost] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of answers, one at a time
    codes: Counter[int] = field(default_factory=Counter)

    def read_cpu(self) -> tuple[float, float]:
        """Return the processor seconds of the services, and of the others."""
        own = sum(service.read_cpu_seconds() for service in self.services)
        return own, sum(read_cpu_seconds(process) for root in self.others for process in find_processes(root, ""))


def measure_store_cost(bench: LoadBench) -> LoadResult:
    """Measure one service on SQLite, one on PostgreSQL, and three on PostgreSQL behind nginx, by turns."""
    model, turns = find_photo(), bench.count(4, 1)
    images = [draw_image(number, model.side) for number in range(BLOCK)]
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(run_database())
        alone = stack.enter_context(bench.make_service(model, "sqlite"))
        (one,) = start_replicas(stack, bench, model, database.make_database(), 1)
        several = start_replicas(stack, bench, model, database.make_database(), bench.count(REPLICAS, 2))
        proxy = stack.enter_context(Proxy(several, bench.folder))
        setups = [
            _Setup("1 on SQLite", alone.url, [alone]),
            _Setup("1 on PostgreSQL", one.url, [one], [database.pid]),
            _Setup(f"{len(several)} on PostgreSQL", proxy.url, several, [database.pid, proxy.pid]),
        ]
        for setup in setups * (turns + 1):  # the first turn warms
            _measure_turn(setup, images, bench.choose(12, 0.5), bench.count(BLOCK * 2, 3))
    for setup in setups:
        del setup.own[0], setup.whole[0]
    base, rows = setups[0], dict[str, dict[str, float]]()
    for setup in setups:
        rows[setup.name] = {
            "per_cpu_second": sum_costs(setup.own).per_cpu_second,
            "per_cpu_second_with_database": sum_costs(setup.whole).per_cpu_second,
            "share": _share(setup.own, base.own),
            "share_with_database": _share(setup.whole, base.whole),
            "per_second": sum_costs(setup.own).images / sum_costs(setup.own).seconds,
            "p50_ms": 1000 * find_percentile(setup.seconds, 0.5),
            "p99_ms": 1000 * find_percentile(setup.seconds, 0.99),
        }
    found = "; ".join(
        f"{name}: {row['per_cpu_second']:.0f} images per CPU second ({row['share']:.2f}; with proxy and database "
        f"{row['share_with_database']:.2f}), p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms"
        for name, row in rows.items()
    )
    codes = sum((setup.codes for setup in setups), Counter[int]())
    return LoadResult(
        "cost of PostgreSQL",
        f"photo, 1 image a request, {STREAMS} streams a replica, by turns; then one request in flight",
        "measured",
        found,
        judge(set(codes) == {200}),
        {"setups": rows, "codes": dict(codes)},
    )


def _measure_turn(setup: _Setup, images: Sequence[bytes], seconds: float, requests: int) -> None:
    """Saturate the services for some seconds, then send one request after the other."""
    names = name_streams(STREAMS * len(setup.services))

    def send(client: Client, thread: int, number: int) -> ServiceAnswer:
        return client.step(names[thread], images[(thread + number) % BLOCK], top=1)

    before = setup.read_cpu()
    stats, wall = run_senders(setup.url, len(names), send, seconds, patience=60)
    own, others = (after - start for after, start in zip(setup.read_cpu(), before, strict=True))
    setup.own.append(ImageCost(stats.images, own, wall))
    setup.whole.append(ImageCost(stats.images, own + others, wall))
    single, _ = run_senders(setup.url, 1, send, 600, most=requests)
    setup.codes += stats.codes + single.codes
    if len(setup.own) > 1:
        setup.seconds += single.seconds


def _share(costs: Sequence[ImageCost], base: Sequence[ImageCost]) -> float:
    """Return the median ratio of the turns, in which a slower machine slows both."""
    pairs = zip(costs, base, strict=True)
    return statistics.median(one.per_cpu_second / other.per_cpu_second for one, other in pairs)


def read_cpu_seconds(process: int) -> float:
    """Return the processor time of a process, with that of its children that have ended; 0 if it has ended itself."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
