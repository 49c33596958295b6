"""The pool on a cluster that is not one: who gets workers, and what follows from a death."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from fake_ray import FakeActor, FakeFuture, FakeRay
from lmr.cluster import actor_pool
from lmr.cluster.actor_pool import ActorPool, PoolWorker
from lmr.core.errors import LmrError


@dataclass(frozen=True)
class Job:
    run: str
    group: tuple[str, ...] = ("group",)


@dataclass(frozen=True)
class Result:
    unfit: bool = False
    message: str = ""


Said = tuple[str, str, str]  # kind, run, message


class PlainPool(ActorPool[Job, Said, Result]):
    def create_actor(self, make: Any) -> Any:
        return make(object)()

    def choose_job(self, fitting: Sequence[Job], worker: PoolWorker[Job]) -> Job:
        return fitting[0]

    def start_job(self, actor: Any, job: Job) -> Any:
        return actor.run.remote(job.run)

    def report_progress(self, number: int, job: Job, progress: Any) -> Iterator[Said]:
        return iter(())

    def finish_job(self, number: int, job: Job, result: Result) -> Iterator[Said]:
        yield ("done", job.run, self.workers[number].name)

    def keep_unfinished(self, job: Job, result: Result) -> None:
        raise LmrError("The disk is full.")

    def make_event(self, kind: Literal["message", "failed"], number: int, job: Job, message: str) -> Said:
        return (kind, job.run, message)

    def name_work(self, job: Job) -> str:
        return "work"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(actor_pool, "HIRE_SECONDS", 0.0)


def list_jobs(count: int) -> list[Job]:
    return [Job(f"run {number}") for number in range(count)]


def take_turn(pool: PlainPool, left: list[Job]) -> None:
    """Look for nodes and workers, twice: those that were started are taken in at the second look."""
    for _ in range(2):
        pool.nodes = pool._list_nodes()
        pool._hire(left)


def test_workers_are_spread_by_the_cores_of_nodes() -> None:
    ray = FakeRay(lambda node, run: None, a=4, b=2)
    pool = PlainPool(ray, 3, 1)
    take_turn(pool, list_jobs(9))
    assert ray.count_actors() == {"a": 2, "b": 1}
    assert all(actor.strategy._spill_on_unavailable for actor in ray.actors)  # another may be quicker
    for number in [number for number, worker in pool.workers.items() if worker.node.startswith("a")]:
        ray.kill(pool.workers.pop(number).actor)  # what counts is who lives, not who was started
    take_turn(pool, list_jobs(9))
    assert ray.count_actors() == {"a": 2, "b": 1}


def test_node_that_others_fill_gets_no_worker() -> None:
    ray = FakeRay(lambda node, run: None, a=2, b=2)
    ray.taken["a" * 56] = 1
    pool = PlainPool(ray, 2, 2)
    take_turn(pool, list_jobs(3))
    assert ray.count_actors() == {"b": 1}  # three cores are free, and only two of them on one node


def test_node_that_joins_gets_workers_up_to_the_limit() -> None:
    ray = FakeRay(lambda node, run: None, a=1)
    pool = PlainPool(ray, 1, 1, most=3)
    take_turn(pool, list_jobs(9))
    assert ray.count_actors() == {"a": 1}
    ray.cores["b" * 56] = 8
    take_turn(pool, list_jobs(9))
    assert ray.count_actors() == {"a": 1, "b": 2}


def test_actors_that_start_hold_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cores may look free for a while."""
    ray = FakeRay(lambda node, run: None, a=2)
    pool = PlainPool(ray, 2, 1, most=9)
    monkeypatch.setattr(ray._private.state, "available_resources_per_node", lambda: {"a" * 56: {"CPU": 2.0}})
    take_turn(pool, list_jobs(9))
    take_turn(pool, list_jobs(9))
    assert len(ray.actors) == 2


def test_job_whose_worker_ran_out_of_memory_goes_to_another_node() -> None:
    def work(node: str, run: str) -> Any:
        return error if node.startswith("a") else Result()

    ray = FakeRay(work, a=8, b=1)
    error = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")
    with PlainPool(ray, 1, 1) as pool:
        events = list(pool.run(list_jobs(2)))
    assert [kind for kind, _, _ in events] == ["message", "done", "done"]
    assert "the worker on a died (out of memory)" in events[0][2]
    assert {where for kind, _, where in events if kind == "done"} == {"b"}


def test_node_where_a_worker_died_is_used_when_it_is_the_last() -> None:
    deaths: list[str] = []

    def work(node: str, run: str) -> Any:
        if not deaths:
            deaths.append(node)
            return ray.exceptions.ActorDiedError()  # killed, and its node is alive
        if node != deaths[0]:
            del ray.cores[node]
            return ray.exceptions.ActorDiedError()  # with its node
        return Result()

    ray = FakeRay(work, a=1, b=1)
    with PlainPool(ray, 1, 1) as pool:
        events = list(pool.run(list_jobs(1)))
    assert [kind for kind, _, _ in events] == ["message", "message", "done"]
    assert "(ActorDiedError)" in events[0][2]  # whatever its text says about memory
    assert "(its node is gone)" in events[1][2]
    assert events[2][2] == deaths[0][:1]


def test_node_where_a_worker_died_is_used_when_the_others_stay_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "START_SECONDS", 0.2)
    deaths: list[str] = []

    def work(node: str, run: str) -> Any:
        if not deaths:
            deaths.append(node)
            return ray.exceptions.ActorDiedError()
        return Result()

    ray = FakeRay(work, a=1, b=1)
    ray.taken["b" * 56] = 1  # by other programs, for good
    with PlainPool(ray, 1, 1) as pool:
        events = list(pool.run(list_jobs(2)))
    assert [kind for kind, _, _ in events] == ["message", "done", "done"]
    assert {where for kind, _, where in events if kind == "done"} == {"a"}


def test_no_free_core_ends_the_pool_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "START_SECONDS", 0.2)
    ray = FakeRay(lambda node, run: Result(), a=1)
    ray.taken["a" * 56] = 1
    with PlainPool(ray, 1, 1) as pool, pytest.raises(LmrError, match="'ray status' shows what uses them"):
        list(pool.run(list_jobs(1)))


def test_workers_end_whatever_goes_wrong_at_the_stop() -> None:
    ray = FakeRay(lambda node, run: None, a=2)
    pool = PlainPool(ray, 2, 1)
    take_turn(pool, list_jobs(2))
    pool._give(pool.workers[0], list_jobs(2))
    pool.workers[0].progress = None
    with pytest.raises(LmrError, match="The disk is full"):
        pool.stop()
    assert ray.killed == ray.actors
    assert all(actor.calls[-1] == "close" for actor in ray.actors)


def test_workers_without_work_remove_their_folders_before_they_are_ended() -> None:
    ray = FakeRay(lambda node, run: Result(unfit=node.startswith("a"), message="It is too old."), a=8, b=1)
    pool = PlainPool(ray, 1, 1)
    events = list(pool.run(list_jobs(1)))
    assert [kind for kind, _, _ in events] == ["message", "done"]
    (dismissed,) = ray.killed
    assert dismissed.node.startswith("a")
    assert dismissed.calls[-1] == "close"


def test_job_without_memory_goes_to_another_node_and_its_worker_is_ended() -> None:
    """The worker says so itself: it is alive, and its memory is needed."""

    def work(node: str, run: str) -> Any:
        return RayTaskError("run", "", MemoryError("no room")).as_instanceof_cause() if node[0] == "a" else Result()

    ray = FakeRay(work, a=8, b=1)
    RayTaskError = ray.exceptions.RayTaskError
    with PlainPool(ray, 1, 1) as pool:
        events = list(pool.run(list_jobs(1)))
    assert [kind for kind, _, _ in events] == ["message", "done"]
    assert "the worker on a died (out of memory)" in events[0][2]
    assert ray.killed[0].node.startswith("a")
    assert ray.killed[0].calls[-1] == "close"


def test_node_where_no_worker_starts_is_left_out_after_a_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that joined without lmr; it would be tried every few seconds until the end."""
    ray = FakeRay(lambda node, run: Result(), a=9, b=1)
    fail_to_start(ray, "a", monkeypatch)
    with PlainPool(ray, 1, 1) as pool:
        events = list(pool.run(list_jobs(2)))
    assert [kind for kind, _, _ in events] == ["message", "done", "done"]
    assert events[0][2] == "The node box/aaaa gets no more workers: 3 did not start there (No module named 'lmr')."
    assert {where for kind, _, where in events if kind == "done"} == {"b"}
    assert sum(actor.node.startswith("a") for actor in ray.actors) == 3


def test_jobs_fail_with_the_reason_where_no_worker_starts_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(lambda node, run: Result(), a=1)
    fail_to_start(ray, "a", monkeypatch)
    with PlainPool(ray, 1, 1) as pool:
        events = list(pool.run(list_jobs(2)))
    assert [kind for kind, _, _ in events] == ["message", "failed", "failed"]
    assert events[1][2] == "No node can run it. Workers do not start there (No module named 'lmr')."


def fail_to_start(ray: FakeRay, letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors on a node die before they can say where they are."""
    real, nodes = FakeActor._call, ray.nodes
    message = "The actor died because of an error raised in its creation task\nNo module named 'lmr'"

    def call(self: FakeActor, name: str, *given: Any) -> FakeFuture:
        if name == "get_place" and self.node.startswith(letter):
            ray.kill(self)
            return FakeFuture(ray.exceptions.RaySystemError(message))
        return real(self, name, *given)

    monkeypatch.setattr(FakeActor, "_call", call)
    monkeypatch.setattr(ray, "nodes", lambda: [one | {"NodeManagerHostname": "box"} for one in nodes()])


def test_workers_that_do_not_start_in_time_are_not_taken_for_full_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "START_SECONDS", 0.2)
    ray = FakeRay(lambda node, run: Result(), a=1)
    monkeypatch.setattr(FakeActor, "_call", lambda self, name, *given: FakeFuture(ready=False))
    with PlainPool(ray, 1, 1) as pool, pytest.raises(LmrError, match="No worker has started within 0 s"):
        list(pool.run(list_jobs(1)))
