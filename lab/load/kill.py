"""Kill -9 at random moments under load: no acknowledged request is lost, and none is applied twice."""

from __future__ import annotations

import random
import time

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.cameras import SteadyCameras
from lab.load.inputs import find_pocket

STREAMS = 6
LONGEST_LIFE = 1.5  # seconds of service between an answer and a kill, at most
COMPARED = 2  # streams whose states are compared
NEAR = 1e-3  # states: sums over a different number of streams in a batch round differently


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
