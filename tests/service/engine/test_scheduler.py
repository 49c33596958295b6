"""The scheduler: examples of its rules, and what holds for every order of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmr.service.engine.batch import Job
from lmr.service.engine.requests import QueueFull
from lmr.service.engine.scheduler import FIRST, Scheduler
from lmr.service.settings import ServiceSettings


def make(**values: object) -> Scheduler:
    given = {"max_images": 8, "queue_images": 64, "max_wait_ms": 10.0, **values}
    return Scheduler(ServiceSettings(**given))  # type: ignore[arg-type]


def add(scheduler: Scheduler, stream: str, images: int = 1, now: float = 0.0, deadline: float = math.inf) -> Job:
    job = Job(stream, None, images, now, deadline)
    scheduler.add(job)
    return job


def name(batch: list[Job]) -> list[str]:
    return [job.stream for job in batch]


def test_batch_takes_one_job_of_each_stream_oldest_first() -> None:
    scheduler = make()
    for stream in "baabc":
        add(scheduler, stream)
    assert name(scheduler.form(1.0)) == ["b", "a", "c"]
    assert name(scheduler.form(1.0)) == ["a", "b"]
    assert scheduler.form(1.0) == []
    assert (scheduler.images, scheduler.requests) == (0, 0)


def test_batch_is_closed_by_images_or_by_waiting() -> None:
    scheduler = make(max_batch=4)
    add(scheduler, "c", now=-0.5)
    scheduler.form(-0.5)  # so that another request of c is expected
    add(scheduler, "a", 2)
    assert scheduler.form(0.009) == []
    assert scheduler.find_next_time() == 0.01
    add(scheduler, "b", 2, now=0.009)
    assert name(scheduler.form(0.009)) == ["a", "b"]
    add(scheduler, "a", 1, now=0.1)
    assert scheduler.form(0.1) == []
    assert name(scheduler.form(0.1, hurry=True)) == ["a"]
    add(scheduler, "a", 1, now=0.2)
    assert name(scheduler.form(0.211)) == ["a"]


def test_batch_waits_for_nobody_when_all_active_streams_are_there() -> None:
    scheduler = make()
    add(scheduler, "a")
    assert name(scheduler.form(0.0)) == ["a"]
    add(scheduler, "b", now=0.5)
    assert scheduler.form(0.5) == []
    add(scheduler, "a", now=0.502)
    assert name(scheduler.form(0.502)) == ["b", "a"]
    add(scheduler, "a", now=1.499)
    assert scheduler.form(1.499) == []  # b sent something in the last second
    assert name(scheduler.form(1.501)) == ["a"]


def test_limit_follows_the_measured_time_of_an_image() -> None:
    scheduler = make(max_batch=50, max_step_ms=1000)
    assert scheduler.limit == FIRST
    scheduler.note_batch(10, 1.0)
    assert scheduler.limit == 10
    for _ in range(50):
        scheduler.note_batch(10, 0.1)
    assert scheduler.limit == 50
    for _ in range(50):
        scheduler.note_batch(1, 9.0)
    assert scheduler.limit == 1
    scheduler.note_batch(0, 5.0)
    assert scheduler.limit == 1


def test_large_request_is_served_alone_and_small_ones_pass_it_once() -> None:
    scheduler = make(max_batch=4)
    for stream, images in (("a", 3), ("b", 8), ("c", 1), ("d", 1)):
        add(scheduler, stream, images)
    assert name(scheduler.form(0.0)) == ["a", "c"]
    assert name(scheduler.form(0.0)) == ["b"]
    assert name(scheduler.form(1.0)) == ["d"]


def test_queue_is_bounded_and_says_when_to_return() -> None:
    scheduler = make(queue_images=8, queue_per_stream=2, max_batch=4)
    scheduler.note_batch(10, 5.0)
    add(scheduler, "a", 1)
    add(scheduler, "a", 1)
    with pytest.raises(QueueFull, match="queue of stream 'a' is full") as one:
        add(scheduler, "a", 1)
    add(scheduler, "b", 6)
    with pytest.raises(QueueFull, match=r"try again in 4\.0 seconds") as all_full:
        add(scheduler, "c", 0)
    assert all_full.value.retry_after == pytest.approx(8 * 0.5)
    assert one.value.retry_after == pytest.approx(2 * 0.5)
    assert (scheduler.images, scheduler.requests) == (8, 3)


class AnyOrder(RuleBasedStateMachine):
    """Whatever arrives, leaves and is served: bounds, order and fairness hold."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = ServiceSettings(
            max_batch=8, max_images=6, queue_images=24, queue_per_stream=4, max_wait_ms=20.0, max_step_ms=100.0
        )
        self.scheduler, self.now = Scheduler(self.settings), 0.0
        self.waiting: list[Job] = []  # a plain model: in the order of arrival
        self.last_served: dict[str, int] = {}

    @rule(
        stream=st.sampled_from("abcdefgh"),
        images=st.integers(0, 6),
        patience=st.one_of(st.none(), st.floats(0.01, 0.2)),
    )
    def arrive(self, stream: str, images: int, patience: float | None) -> None:
        job = Job(stream, None, images, self.now, math.inf if patience is None else self.now + patience)
        own = sum(one.stream == stream for one in self.waiting)
        room = sum(one.weight for one in self.waiting) + job.weight <= self.settings.queue_images
        if room and own < self.settings.queue_per_stream:
            self.scheduler.add(job)
            self.waiting.append(job)
        else:
            with pytest.raises(QueueFull) as refusal:
                self.scheduler.add(job)
            assert refusal.value.retry_after > 0

    @rule(seconds=st.floats(0.001, 0.1))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.floats(0.001, 1.0), images=st.integers(1, 8))
    def measure(self, seconds: float, images: int) -> None:
        self.scheduler.note_batch(images, seconds)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.waiting))
        assert self.scheduler.drop(job)
        self.waiting.remove(job)

    @rule(hurry=st.booleans(), data=st.data())
    def serve(self, hurry: bool, data: st.DataObject) -> None:
        late = self.scheduler.expire(self.now)
        assert set(late) == {job for job in self.waiting if job.deadline <= self.now}
        self.waiting = [job for job in self.waiting if job not in late]
        shut = data.draw(st.sets(st.sampled_from("abcdefgh"), max_size=2))
        limit, due = self.scheduler.limit, self.scheduler.find_next_time()
        batch = self.scheduler.form(self.now, lambda stream: stream not in shut, hurry=hurry)
        streams = [job.stream for job in batch]
        assert len(set(streams)) == len(streams)
        assert not set(streams) & shut
        assert len(batch) == 1 or sum(job.images for job in batch) <= limit
        heads = {}
        for job in self.waiting:
            heads.setdefault(job.stream, job)
        open_heads = [job for job in heads.values() if job.stream not in shut]
        if batch:  # order within a stream, and the one that waited longest is there: nobody starves
            assert all(heads[job.stream] is job for job in batch)
            assert batch[0] is open_heads[0]
        elif open_heads:
            oldest = min(job.arrived for job in heads.values())
            assert not hurry
            assert self.now < oldest + self.settings.max_wait_ms / 1000
            assert sum(job.images for job in heads.values()) < limit
            assert due is not None
            assert due > self.now
        for job in batch:
            assert job.number > self.last_served.get(job.stream, -1)
            self.last_served[job.stream] = job.number
            self.waiting.remove(job)

    @invariant()
    def counts_are_right_and_bounded(self) -> None:
        assert self.scheduler.images == sum(job.weight for job in self.waiting) <= self.settings.queue_images
        assert self.scheduler.requests == len(self.waiting)
        for stream in "abcdefgh":
            own = sum(job.stream == stream for job in self.waiting)
            assert self.scheduler.count(stream) == own <= self.settings.queue_per_stream


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis_settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_late_and_dropped_jobs_wait_no_longer() -> None:
    scheduler = make()
    first, second = add(scheduler, "a", deadline=1.0), add(scheduler, "a", 5, deadline=2.0)
    third = add(scheduler, "b", 3)
    assert scheduler.expire(0.9) == []
    assert scheduler.expire(1.0) == [first]
    assert scheduler.drop(third)
    assert not scheduler.drop(third)
    assert scheduler.streams == {"a"}
    assert (scheduler.images, scheduler.requests, scheduler.count("a")) == (5, 1, 1)
    assert scheduler.clear() == [second]
    assert (scheduler.images, scheduler.find_next_time()) == (0, None)
