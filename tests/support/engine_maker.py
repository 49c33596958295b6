"""Engines of a small world, driven step by step with a clock that stands still, and stores that fail when told to."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lmr
import small_world
from few_views import create
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.requests import StepAnswer, StepRequest
from lmr.service.settings import ServiceSettings
from lmr.service.store.addresses import StateStore
from lmr.service.store.sqlite_store import SqliteStore
from lmr.service.store.stored_types import Refusals, StoreError, Transaction
from lmr.watch.settings import Thresholds, WatchSettings

NAMES = [f"class {k}" for k in range(small_world.CLASSES)]
CALM = WatchSettings(every=3, thresholds=Thresholds(drift=99, quiet=2, rest=2, doubt=99))


class Clock:
    """Seconds, as they are set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SharedSqliteStore(SqliteStore):
    """A store for several engines of this process, with the epochs of a store in PostgreSQL."""

    shared = True


class FragileStore(SqliteStore):
    """A store on a disk that is full as long as ``full`` says so."""

    full = False

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        self._check()
        return super().commit(transaction, keys)

    def probe(self, size: int) -> None:
        self._check()
        super().probe(size)

    def _check(self) -> None:
        if self.full:
            raise StoreError("database or disk is full")


def make_method(spec: str = "lmr", rows: int = 4, watch: WatchSettings | None = CALM) -> lmr.Method:
    clip = small_world.make_classifier()
    clip.logit_scale = 200.0  # so that it is sure of most images
    method = create(spec, clip, streams=rows)
    return method if watch is None else lmr.Watched(method, watch)


def make_engine(
    path: Path | None = None,
    *,
    spec: str = "lmr",
    resident: int = 4,
    watch: WatchSettings | None = CALM,
    threads: bool = False,
    clock: Clock | None = None,
    shared: StateStore | None = None,
    **settings: Any,
) -> Engine:
    """An engine that was started; without threads its clock stands still and no batch waits for more.

    ``shared`` is a store that it shares with other engines.
    """
    method = make_method(spec, resident, watch)
    store = shared if path is None else FragileStore(path, describe_identity(method))
    given = {"resident": resident, "max_wait_ms": 0.0, **settings}
    times = {} if threads else {"clock": clock or Clock()}
    engine = Engine(method, NAMES, ServiceSettings(**given), store, threads=threads, **times)
    engine.start()
    return engine


def make_images(stream: str, k: int, count: int = 3) -> Tensor:
    """The images of request ``k`` of a stream, the same at every call."""
    first = sum(stream.encode())
    wave = torch.arange(count * 4 * small_world.WIDTH, dtype=torch.float64)
    return torch.cos(wave * (0.9 + 0.01 * (first % 37) + 0.05 * k) + first + k).view(count, 4, small_world.WIDTH)


def make_request(stream: str, k: int, count: int = 3, **values: Any) -> StepRequest:
    return StepRequest(stream, make_images(stream, k, count), **{"top": small_world.CLASSES, **values})


def work_without_commit(engine: Engine) -> None:
    """Compute a batch, as the compute thread does while an earlier commit is under way."""
    with engine._changed:
        batch = engine._form()
    assert batch is not None
    engine._work(batch)


def check_state(engine: Engine, stream: str, requests: Sequence[int]) -> None:
    """The stream is as after these requests alone."""
    stored = read_tensors(load_state(wait(engine, engine.read_state(stream))))
    for key, value in read_tensors(run_alone(stream, requests)[0]).items():
        torch.testing.assert_close(stored[key], value, atol=1e-6, rtol=0)


def run(engine: Engine) -> None:
    """Do all that is due."""
    while engine.run_once():
        pass


def ask(engine: Engine, *requests: StepRequest) -> list[StepAnswer]:
    """Serve requests together."""
    futures = [engine.submit(request) for request in requests]
    run(engine)
    return [future.result(0) for future in futures]


def wait(engine: Engine, future: Future[Any]) -> Any:
    run(engine)
    return future.result(0)


def read_logits(answer: StepAnswer) -> Tensor:
    """Logarithms of the probabilities [n, C] of an answer with all classes."""
    rows = [[dict(one.top)[name] for name in NAMES] for one in answer.answers]
    return torch.tensor(rows, dtype=torch.float64).log()


def run_alone(
    stream: str, requests: Sequence[int], spec: str = "lmr", count: int = 3
) -> tuple[lmr.Method, list[Tensor]]:
    """The method after these requests of a stream alone, and the logarithms of the probabilities of its answers."""
    method = make_method(spec, 1)
    answers = [method.step(make_images(stream, k, count)).logits.log_softmax(1) for k in requests]
    return method, answers


def read_tensors(method: lmr.Method) -> dict[str, Tensor]:
    """The tensors of a watched method of one stream, without its watch."""
    assert isinstance(method, lmr.Watched)
    return method.method.state


def load_state(content: bytes, spec: str = "lmr") -> lmr.Method:
    """The state in a file, in a method of one stream, without its labels."""
    method = lmr.Labelled(make_method(spec, 1))
    method.restore(content)
    return method.method
