"""SIGTERM under load: accepted requests are finished or refused in time, and no acknowledged one is lost."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from pathlib import Path

from lab.load.bench import STORE_FILE, LoadBench, LoadResult, judge
from lab.load.child_service import ChildService
from lab.load.inputs import draw_image, find_pocket, name_streams
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError
from lmr.service.engine.records import StreamRecord
from lmr.service.store.schema import unseal

DRAIN_SECONDS = 10.0
STREAMS = 16
ENOUGH_SECONDS = 120.0  # to wait for a few answers on a slow machine


def measure_drain(bench: LoadBench) -> LoadResult:
    """Check the responses during SIGTERM, the exit code and the time, and that every acknowledged step is stored."""
    model, names = find_pocket(), name_streams(STREAMS)
    images = [draw_image(number, model.side) for number in range(8)]
    seqs, codes, stop = dict[str, int](), list[int](), threading.Event()
    lock = threading.Lock()
    folder = bench.make_state_dir("drain")
    options = ["--store", f"sqlite:{folder / STORE_FILE}", "--drain-s", f"{DRAIN_SECONDS:g}"]
    service = ChildService([*model.options, *options], bench.folder)

    def work(name: str) -> None:
        with Client(service.url, patience=0) as client:
            while not stop.is_set():
                try:
                    seq, code = client.step(name, images).seq, 200
                except ServiceError as error:
                    seq, code = 0, error.status or 0
                with lock:
                    codes.append(code)
                    seqs[name] = max(seqs.get(name, 0), seq)
                if code == 0:
                    return  # the service has ended
                if code != 200:
                    time.sleep(0.05)

    with service:
        workers = [threading.Thread(target=work, args=(name,), daemon=True) for name in names]
        for worker in workers:
            worker.start()
        end = time.monotonic() + ENOUGH_SECONDS
        time.sleep(bench.choose(10, 0.1))
        while codes.count(200) < 2 * STREAMS and time.monotonic() < end:
            time.sleep(0.05)
        code, seconds = service.terminate()
        stop.set()
        for worker in workers:
            worker.join()
    stored = _read_seqs(folder / STORE_FILE)
    lost = [name for name in names if stored.get(name, 0) < seqs.get(name, 0)]
    counts = {value: codes.count(value) for value in sorted(set(codes))}
    answered = counts.get(200, 0)
    figures = {"exit_code": code, "seconds": seconds, "codes": counts, "lost": lost}
    return LoadResult(
        "SIGTERM",
        f"pocket, {STREAMS} streams under load, --drain-s {DRAIN_SECONDS:g}",
        "only 200 and 503 until it ends; exit code 0 within --drain-s and 5 s; nothing lost",
        f"{answered} answered, codes {counts} (0: no connection), exit code {code} after {seconds:.1f} s, "
        f"{len(lost)} streams lost a step",
        judge(set(counts) <= {0, 200, 503}, code == 0, seconds <= DRAIN_SECONDS + 5, not lost, answered > 0),
        figures,
    )


def _read_seqs(path: Path) -> dict[str, int]:
    """Return the number of stored requests of each stream."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        texts = [unseal(sealed) for (sealed,) in database.execute("SELECT record FROM streams")]
    records = [StreamRecord.from_json(text) for text in texts if text is not None]  # a damaged one counts as lost
    return {record.stream: record.seq for record in records}
