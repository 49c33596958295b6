"""The service on Ray on this machine: replicas and the database are killed under load; and the cost of Ray Serve."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.cameras import SteadyCameras
from lab.load.child_service import ChildService
from lab.load.inputs import draw_image, find_pocket
from lab.load.kill import LONGEST_LIFE, kill_replicas
from lab.load.postgres_server import run_database
from lab.load.senders import ClientStats, find_percentile, run_senders
from lmr.core.errors import LmrError
from lmr.service.client.client import Client
from lmr.service.engine.requests import ServiceAnswer

KILLS = 20
REPLICAS, CAMERAS = 3, 16
REPLICA = "ray::ServeReplica:lmr"  # the title of a process of Ray
START_SECONDS = 300.0  # for a replica to be replaced
BLOCK = 50  # requests to one service before the other has its turn
_ON_RAY = ["--ray", "--replica-cpus", "0.5"]  # so that three replicas fit on two cores


def measure_replicas(bench: LoadBench) -> LoadResult:
    """Kill random replicas while cameras send, and twice the database."""
    model, replicas, count = find_pocket(), bench.count(REPLICAS, 2), bench.count(CAMERAS, 4)
    options = [*model.options, *_ON_RAY, "--replicas", str(replicas)]
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(run_database())
        service = stack.enter_context(ChildService([*options, "--store", database.url], bench.folder))
        service.wait_for_log("serving at")  # a start of Serve in which a replica dies has failed
        cameras = stack.enter_context(SteadyCameras(service.url, model, count))

        def kill_one(chance: random.Random) -> None:
            kill_replica(service.pid, replicas, chance)

        kills = bench.count(min(bench.kills, KILLS), 1)
        found = kill_replicas(bench, kills, cameras, database, service, kill_one)
        code, seconds = service.terminate()
    return found.make_result(
        "replicas on Ray",
        f"Ray Serve, {replicas} replicas",
        f"ended with code {code} after {seconds:.0f} s",
        {"exit_code": code, "seconds_to_end": seconds},
        code == 0,
    )


def kill_replica(root: int, replicas: int, chance: random.Random) -> None:
    """Kill -9 one of the replicas below a process, once there are ``replicas`` of them."""
    end = time.monotonic() + START_SECONDS
    while len(found := find_processes(root, REPLICA)) != replicas:
        if time.monotonic() > end:
            raise LmrError(f"Expected {replicas} replicas within {START_SECONDS:.0f} seconds, found {len(found)}.")
        time.sleep(0.1)
    time.sleep(chance.uniform(0, LONGEST_LIFE))
    os.kill(chance.choice(found), signal.SIGKILL)


def find_processes(root: int, title: str) -> list[int]:
    """Return the ids of the processes below ``root`` whose command lines start with ``title``, on Linux."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, line = (folder / "stat").read_text(), (folder / "cmdline").read_text(errors="replace")
        except OSError:  # it has ended
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
        titles[int(folder.name)] = line

    def is_below(process: int) -> bool:
        while process in parents and process != root:
            process = parents[process]
        return process == root

    return sorted(process for process, line in titles.items() if line.startswith(title) and is_below(process))


def measure_ray_latency(bench: LoadBench) -> LoadResult:
    """Measure one request in flight, alternating between the plain service and one replica on Ray, on PostgreSQL."""
    model, rounds = find_pocket(), bench.count(20, 1)
    images = [draw_image(number, model.side) for number in range(BLOCK)]

    def send(client: Client, thread: int, number: int) -> ServiceAnswer:
        return client.step("load-00000", images[number % BLOCK], top=1)

    def run_block(service: ChildService) -> ClientStats:
        return run_senders(service.url, 1, send, 600, most=BLOCK)[0]

    stats: list[tuple[ClientStats, ClientStats]] = []
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(run_database())
        plain, on_ray = (
            stack.enter_context(
                ChildService([*model.options, *words, "--store", database.make_database()], bench.folder)
            )
            for words in ([], [*_ON_RAY, "--replicas", "1"])
        )
        for service in (plain, on_ray):
            run_block(service)  # warm
        for turn in range(rounds):
            pair = (plain, on_ray) if turn % 2 == 0 else (on_ray, plain)
            found = {service.url: run_block(service) for service in pair}
            stats.append((found[plain.url], found[on_ray.url]))
        code, _ = on_ray.terminate()
    whole = [[seconds for pair in stats for seconds in pair[side].seconds] for side in (0, 1)]
    added = [[seconds for pair in stats for seconds in pair[side].added] for side in (0, 1)]
    middle, high = ([1000 * find_percentile(values, share) for values in whole] for share in (0.5, 0.99))
    beyond = [1000 * find_percentile(values, 0.5) for values in added]
    codes = sum((pair[side].codes for pair in stats for side in (0, 1)), start=type(stats[0][0].codes)())
    figures = {
        "requests_each": len(whole[0]), "plain_p50_ms": middle[0], "ray_p50_ms": middle[1], "plain_p99_ms": high[0],
        "ray_p99_ms": high[1], "plain_beyond_p50_ms": beyond[0], "ray_beyond_p50_ms": beyond[1],
        "codes": dict(codes), "exit_code": code,
    }  # fmt: skip
    return LoadResult(
        "latency on Ray",
        f"pocket on PostgreSQL, one request in flight, {len(whole[0])} requests each, by turns",
        "measured",
        f"p50 {middle[1]:.1f} against {middle[0]:.1f} ms (+{middle[1] - middle[0]:.1f}), p99 {high[1]:.1f} against "
        f"{high[0]:.1f} ms; beyond the computation p50 {beyond[1]:.1f} against {beyond[0]:.1f} ms",
        judge(set(codes) == {200}, code == 0),
        figures,
    )
