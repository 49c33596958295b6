"""Kill -9 at random moments under load: no acknowledged request is lost, and none is applied twice.

The same of replicas and of their database, for the experiments with replicas behind nginx and on Ray.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.cameras import SoloGap, SteadyCameras
from lab.load.child_service import ChildService
from lab.load.inputs import find_pocket
from lab.load.postgres_server import PostgresServer

STREAMS = 6
LONGEST_LIFE = 1.5  # seconds of service between an answer and a kill, at most
COMPARED = 2  # streams whose states are compared
NEAR = 1e-3  # states: sums over a different number of streams in a batch round differently
NEAR_ANSWER = 1e-4  # probabilities


def measure_kills(bench: LoadBench) -> LoadResult:
    """Kill and restart the service while cameras send requests, with retries under one key."""
    model, kills = find_pocket(), bench.count(bench.kills, 1)
    chance = random.Random(bench.seed)
    with bench.make_service(model, "kills") as service, SteadyCameras(service.url, model, STREAMS) as cameras:
        spec, watched = service.read_spec()
        busy = 0
        for kill in range(kills):
            busy += cameras.wait_for_answer()
            time.sleep(chance.uniform(0, bench.choose(LONGEST_LIFE, 0.5)))
            service.kill()
            if kill % 10 == 9:
                bench.report(f"kill -9: {kill + 1} of {kills}")
            service.start()
        busy += cameras.wait_for_answer()
        wrong = cameras.finish()
        gap = cameras.compare(spec, watched, COMPARED).state
    figures = {
        "kills": kills, "lives_with_answers": busy, "acknowledged": cameras.acknowledged,
        "answered_from_a_key": cameras.replayed, "wrong": wrong[:10], "state_gap": gap,
    }  # fmt: skip
    return LoadResult(
        "kill -9",
        f"pocket, {STREAMS} cameras, {kills} kills",
        "every acknowledged request is there, a retry is applied once",
        f"{cameras.acknowledged} requests acknowledged, {cameras.replayed} of them from a kept answer, "
        f"{len(wrong)} wrong; states within {gap:.0e} of runs without a kill",
        judge(not wrong, gap <= NEAR, cameras.acknowledged > 0),
        figures,
    )


@dataclass(frozen=True)
class ReplicaKills:
    """What became of the requests of cameras while replicas and their database were killed."""

    cameras: SteadyCameras
    kills: int
    database_kills: int
    seconds: float
    wrong: list[str]
    gap: SoloGap

    def make_result(
        self, experiment: str, setting: str, end: str, figures: dict[str, Any], *claims: bool
    ) -> LoadResult:
        """Return the result; ``setting``, ``end`` of the findings, ``figures`` and ``claims`` are of one experiment."""
        cameras, gap, wrong = self.cameras, self.gap, self.wrong
        return LoadResult(
            experiment,
            f"pocket, {len(cameras.cameras)} cameras, {setting} for {self.seconds:.0f} s; {self.kills} replicas and "
            f"{self.database_kills} times the database killed",
            "every acknowledged request is there, a retry is applied once, answers are those of solo runs (1e-4)",
            f"{cameras.acknowledged} requests acknowledged, {cameras.replayed} of them from a kept answer, "
            f"{len(wrong)} wrong; {gap.labels} labels differ from solo runs, probabilities within "
            f"{gap.probability:.0e}, states within {gap.state:.0e}; {end}",
            judge(
                not wrong, gap.state <= NEAR, gap.probability <= NEAR_ANSWER, gap.labels == 0,
                cameras.acknowledged > 0, *claims,
            ),
            {
                "kills": self.kills, "database_kills": self.database_kills, "seconds": self.seconds,
                "acknowledged": cameras.acknowledged, "answered_from_a_key": cameras.replayed, "wrong": wrong[:10],
                "state_gap": gap.state, "probability_gap": gap.probability, "other_labels": gap.labels, **figures,
            },
        )  # fmt: skip


def kill_replicas(
    bench: LoadBench,
    kills: int,
    cameras: SteadyCameras,
    database: PostgresServer,
    service: ChildService,
    kill_one: Callable[[random.Random], None],
) -> ReplicaKills:
    """Kill random replicas with ``kill_one`` while cameras send, and twice the database; then compare with solo runs.

    ``service`` is one that says what is served.
    """
    chance = random.Random(bench.seed)
    spec, watched = service.read_spec()
    began, crashes = time.monotonic(), 0
    for kill in range(kills):
        cameras.wait_for_answer()
        time.sleep(chance.uniform(0, bench.choose(LONGEST_LIFE, 0.3)))
        if kill in (kills // 3, 2 * kills // 3):
            database.stop("immediate")
            database.start()
            crashes += 1
            cameras.wait_for_answer()
        kill_one(chance)
        bench.report(f"{kill + 1} of {kills} replicas killed, {cameras.acknowledged} requests acknowledged")
    cameras.wait_for_answer()
    seconds = time.monotonic() - began
    wrong = cameras.finish()
    return ReplicaKills(cameras, kills, crashes, seconds, wrong, cameras.compare(spec, watched))
