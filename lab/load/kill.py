"""Kill -9 at random moments under load: no acknowledged request is lost, and none is applied twice."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.cameras import SteadyCameras
from lab.load.child_service import ChildService
from lab.load.inputs import find_photo
from lab.load.nginx import Proxy
from lab.load.postgres_server import PostgresServer, run_database
from lmr.service.client.client import Client

LONGEST_LIFE = 1.5  # seconds of service between an answer and a kill, at most
NEAR = 1e-3  # states: sums over a different number of streams in a batch round differently
NEAR_ANSWER = 1e-4  # probabilities


def measure_kills(bench: LoadBench) -> LoadResult:
    """Kill and restart a service with its states in SQLite while cameras send."""
    model, count = find_photo(), 6

    def restart(chance: random.Random) -> None:
        service.kill()
        service.start()

    with bench.make_service(model, "kills") as service, SteadyCameras(service.url, model, count) as cameras:
        return _kill(bench, cameras, service, restart, None, "kill -9", f"photo, {count} cameras")


def measure_replicas(bench: LoadBench) -> LoadResult:
    """Kill random replicas behind nginx while cameras send, and twice their PostgreSQL database."""
    model, replicas, count = find_photo(), bench.count(3, 2), bench.count(64, 4)

    def restart(chance: random.Random) -> None:
        service = chance.choice(services)
        service.kill()
        service.start()

    with contextlib.ExitStack() as stack:
        database = stack.enter_context(run_database())
        options = [*model.options, "--store", database.url]
        services = [stack.enter_context(ChildService(options, bench.folder)) for _ in range(replicas)]
        proxy = stack.enter_context(Proxy([service.port for service in services], bench.folder))
        cameras = stack.enter_context(SteadyCameras(proxy.url, model, count))
        setting = f"photo, {count} cameras, nginx, {replicas} replicas"
        result = _kill(bench, cameras, services[0], restart, database, "replicas on PostgreSQL", setting)
        with Client(services[-1].url) as client:
            result.figures["listed_by_one"] = sum(1 for _ in client.streams())
    return result


def _kill(
    bench: LoadBench,
    cameras: SteadyCameras,
    service: ChildService,
    restart: Callable[[random.Random], None],
    database: PostgresServer | None,
    experiment: str,
    setting: str,
) -> LoadResult:
    """Kill at random moments, then compare what cameras were told with the service and with solo runs."""
    chance, kills, crashes, began = random.Random(bench.seed), bench.count(bench.kills, 1), 0, time.monotonic()
    spec, watched = service.read_spec()
    for kill in range(kills):
        cameras.wait_for_answer()
        time.sleep(chance.uniform(0, bench.choose(LONGEST_LIFE, 0.3)))
        if database is not None and kill in (kills // 3, 2 * kills // 3):
            database.stop("immediate")
            database.start()
            crashes += 1
            cameras.wait_for_answer()
        restart(chance)
        bench.report(f"{kill + 1} of {kills} killed, {cameras.acknowledged} requests acknowledged")
    cameras.wait_for_answer()
    wrong, gap = cameras.finish(), cameras.compare(spec, watched)
    return LoadResult(
        experiment,
        f"{setting}, {kills} kills" + (f", {crashes} of the database" if crashes else ""),
        "every acknowledged request is there, a retry is applied once, answers are those of solo runs (1e-4)",
        f"{cameras.acknowledged} requests acknowledged, {cameras.replayed} of them from a kept answer, "
        f"{len(wrong)} wrong; {gap.labels} labels differ from solo runs, probabilities within "
        f"{gap.probability:.0e}, states within {gap.state:.0e}",
        judge(
            not wrong, gap.state <= NEAR, gap.probability <= NEAR_ANSWER, gap.labels == 0, cameras.acknowledged > 0
        ),
        {
            "kills": kills, "database_kills": crashes, "seconds": time.monotonic() - began,
            "acknowledged": cameras.acknowledged, "answered_from_a_key": cameras.replayed, "wrong": wrong[:10],
            "state_gap": gap.state, "probability_gap": gap.probability, "other_labels": gap.labels,
        },
    )  # fmt: skip
