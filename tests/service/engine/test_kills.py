"""A service that is killed at random points: what it acknowledged is there, labels too, and a retry is applied once.

``LMR_KILLS=200 pytest tests/service/engine/test_kills.py`` kills it 200 times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import pytest
import torch

from engine_maker import load_state, make_engine, read_tensors, run_alone, wait
from lmr.core.labelled import MOST
from lmr.core.state import decode_state
from lmr.service.engine.engine import Engine

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LMR_KILLS", "12"))
STREAMS = ["cam-a", "cam-b", "cam-c", "cam-d", "cam-e"]
ANSWER = tuple[str, int, int, bool, str]  # stream, request, seq, replayed, error

# One process imports everything and makes a copy of itself for every life of the service.
NURSERY = """
import os, sys, threading
from multiprocessing.connection import Client
from pathlib import Path
import torch
from engine_maker import ask, make_engine, make_request

torch.set_num_threads(1)
ask(make_engine(), make_request("warm", 0))  # imports what is imported late
path, address = sys.argv[1:]

def serve():
    with Client(address) as connection:
        lock = threading.Lock()
        engine = make_engine(Path(path), threads=True, resident=3)
        def tell(stream, k, future):
            error = future.exception()
            replayed = not error and k >= 0 and future.result().replayed
            facts = (0, False, repr(error)) if error else (future.result().seq, replayed, "")
            with lock:
                connection.send((stream, k, *facts))
        while True:
            stream, k = connection.recv()
            if k < 0:  # a label for the first image of request -k
                labelled = engine.add_labels(stream, -k, ["class 1", None, None])
                labelled.add_done_callback(lambda future, s=stream, n=k: tell(s, n, future))
                continue
            request = make_request(stream, k, key=f"key-{k}", digest=f"digest-{k}")
            engine.submit(request).add_done_callback(lambda future, s=stream, n=k: tell(s, n, future))

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        serve()
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
"""


class Driver:
    """Sends requests with keys, two of each stream at a time, and remembers what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.next = dict.fromkeys(STREAMS, 0)  # the first request of each stream that is not acknowledged
        self.sent: set[tuple[str, int]] = set()
        self.replays = 0
        self.labelled: set[tuple[str, int]] = set()  # streams and requests whose label is acknowledged

    def begin(self, connection: Connection, chance: random.Random) -> None:
        """A new life: what is not acknowledged is sent again, and something that is, too."""
        self.sent.clear()
        recent = [one for one in sorted(self.acknowledged) if one[1] >= self.next[one[0]] - 50]  # 64 keys are kept
        if recent:
            connection.send(chance.choice(recent))
        for stream in STREAMS:
            self.send(connection, stream)

    def send(self, connection: Connection, stream: str, limit: int = sys.maxsize) -> None:
        for k in range(self.next[stream], min(self.next[stream] + 2, limit)):
            if (stream, k) not in self.sent:
                self.sent.add((stream, k))
                connection.send((stream, k))

    def take(self, answer: ANSWER) -> None:
        stream, k, seq, replayed, error = answer
        assert error == ""
        if k < 0:
            self.labelled.add((stream, -k))
            return
        self.replays += replayed
        assert seq == k + 1  # applied once: a request that was lost or applied twice would shift the numbers
        if (stream, k) in self.acknowledged:
            assert replayed
        else:
            assert k == self.next[stream]
            self.acknowledged[stream, k] = seq
            self.next[stream] = k + 1


def find_labels(engine: Engine, stream: str) -> list[int]:
    """The numbers of the labelled images in the state of a stream."""
    content = wait(engine, engine.read_state(stream))
    numbers = decode_state(content, "it")[0].get("labels/number", torch.empty(0))
    return [number for number in numbers.flatten().tolist() if number >= 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_nothing_acknowledged_is_lost_when_the_service_is_killed(tmp_path: Path) -> None:
    chance, driver = random.Random(5), Driver()
    store, address = tmp_path / "s.sqlite", str(tmp_path / "socket")
    support = Path(__file__).parents[2] / "support"
    paths = os.pathsep.join([str(support), os.environ.get("PYTHONPATH", "")])
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(store), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    with nursery, Listener(address) as listener:
        for _ in range(KILLS):
            nursery.stdin.write("\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            with listener.accept() as connection:
                driver.begin(connection, chance)
                for _ in range(chance.randrange(24)):
                    assert connection.poll(60)
                    answer = connection.recv()
                    driver.take(answer)
                    if answer[1] >= 0:
                        driver.send(connection, answer[0])
                        connection.send((answer[0], -answer[2]))
                time.sleep(chance.uniform(0, 0.02))
                os.kill(child, signal.SIGKILL)
                while True:  # what was sent before the end was acknowledged
                    try:
                        driver.take(connection.recv())
                    except (EOFError, OSError):
                        break
        nursery.stdin.close()
    engine = make_engine(store, resident=2)
    for stream in STREAMS:
        detail = engine.find(stream) if driver.next[stream] else None
        if detail is None:
            continue
        seq = detail.status.seq
        assert driver.next[stream] <= seq <= driver.next[stream] + 2  # what was under way may have been committed
        stored = read_tensors(load_state(wait(engine, engine.read_state(stream))))
        for key, value in read_tensors(run_alone(stream, range(seq))[0]).items():
            torch.testing.assert_close(stored[key], value, atol=1e-6, rtol=0)
        numbers = set(find_labels(engine, stream))
        last = sorted(request for name, request in driver.labelled if name == stream)[-MOST // 2 :]
        assert {3 * (request - 1) for request in last} <= numbers
        assert detail.status.taught >= len(last)
    assert len(driver.labelled) >= KILLS // 2
    assert len(driver.acknowledged) >= KILLS
    assert driver.replays > 0
    engine.close()
