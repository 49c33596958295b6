"""Worker: what is done with the jobs of a batch. One thread at a time; it knows no queue and no lock.

Nothing that it gives is known to anybody before its transaction is committed, except answers that changed nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmr.core.errors import LmrError
from lmr.core.log import LOGGER
from lmr.core.method import Method
from lmr.service.engine.records import StepNote, StreamRecord
from lmr.service.engine.scheduler import Job
from lmr.service.engine.step_types import Refused, StepAnswer, StepRequest, TooManyStreams, UnknownStream
from lmr.service.engine.tasks import ActTask, WriteTask
from lmr.service.engine.telling import describe_health
from lmr.service.engine.working.bookkeeping import Bookkeeper
from lmr.service.engine.working.compute import Compute, Condition, RowAnswer
from lmr.service.engine.working.counted import CountedRequest
from lmr.service.engine.working.operating import Operating, begin_record
from lmr.service.engine.working.packing import Packer
from lmr.service.engine.working.residents import Resident, Residents
from lmr.service.engine.working.served import Served, Situation, name_failure
from lmr.service.settings import ServiceSettings
from lmr.service.store.store_interface import StateStore
from lmr.service.store.stored_types import KeptAnswer, StreamChange, Transaction

POINT = ("concentration", "entropy", "frozen_entropy", "agreement", "drift")  # signals in the history of a stream


@dataclass(frozen=True)
class _Done:
    """A request and what the method gave for it."""

    job: Job
    resident: Resident
    outcome: RowAnswer
    earlier: dict[int, dict[int, int]] = field(default_factory=dict)  # frozen answers to images of requests before


class Worker:
    """The streams that are resident, and the method."""

    def __init__(
        self,
        method: Method,
        names: Sequence[str],
        settings: ServiceSettings,
        store: StateStore,
        clock: Callable[[], float],
        take_number: Callable[[], int],
    ) -> None:
        self.method, self.names, self.settings, self.store = method, list(names), settings, store
        self.residents = Residents(method.streams)
        self._compute, self._packer = Compute(method), Packer(method)
        self._clock, self._durable = clock, store.path is not None
        self._at_once = self._durable and settings.durability == "answer"
        self._books = Bookkeeper(store, take_number, at_once=self._at_once or not self._durable)
        self._operating = Operating(method, names, self._compute, self._books)

    def serve(self, jobs: Sequence[Job], situation: Situation) -> Served:
        """Do all jobs, of different streams; each of them is in the results, the early answers or the failures."""
        served, started = Served(list(jobs)), self._clock()
        steps, answers, others = [], [], []
        for job in jobs:
            try:
                resident = self._admit(job, situation)
            except (Refused, LmrError, sqlite3.Error, OSError) as error:
                served.failures.append((job, name_failure(error)))
                continue
            request = job.task
            if not isinstance(request, StepRequest):
                others.append((job, resident))
            elif request.mode == "adapt" and situation.adapt and not job.overloaded:
                steps.append((job, resident))
            else:
                answers.append((job, resident))
        stepped = self._try_all(self._step_counted if self.settings.step else self._step, steps, served)
        answered = self._try_all(self._answer, answers, served)
        served.images = sum(done.job.images for done in stepped + answered)  # refused ones took no time
        served.seconds = self._clock() - started
        self._finish_steps(stepped, served, situation)
        for done in answered:
            self._finish_answer(done, served, situation)
        for job, resident in others:
            self._operating.do(job, resident, served, situation)
        if self._at_once:
            self.pack(served.transaction)
        if not self._durable:
            self._books.unpacked.clear()  # states stay in the method
        if self.store.shared and situation.adapt:
            epochs = {job.stream: self.residents.find_epoch(job.stream) for job in jobs}
            served.transaction.epochs |= {stream: epoch for stream, epoch in epochs.items() if epoch is not None}
            served.wait_for_store()
        return served

    def pack(self, transaction: Transaction) -> None:
        """Add the states of all streams that have changed since they were packed."""
        streams = sorted(self._books.unpacked)
        found = [self.residents.get(stream) for stream in streams]
        residents = [one for one in found if one is not None]
        assert len(residents) == len(streams)
        self._books.unpacked.clear()
        if not residents:
            return
        rows = [one.row for one in residents]
        states = self._packer.pack(rows, [one.waiting for one in residents], [one.written for one in residents])
        for stream, state in zip(streams, states, strict=True):
            transaction.add(stream, StreamChange(state=state))

    def forget(self, epochs: Mapping[str, int]) -> None:
        """Read these streams from the store when they are needed again: what is in the method was not committed.

        A stream that was read since, under a later epoch, stays.
        """
        for stream, epoch in epochs.items():
            found = self.residents.find_epoch(stream)
            if found is not None and found <= epoch:
                self.residents.forget(stream)
                self._books.unpacked.discard(stream)

    # Residents.

    def _admit(self, job: Job, situation: Situation) -> Resident:
        """The row of a stream, with its state."""
        resident = self.residents.get(job.stream)
        if resident is not None and self._may_exist_by_now(job.stream, resident, situation):
            self.residents.forget(job.stream)
            resident = None
        resident = resident or self._bring(job, situation)
        may_create = isinstance(job.task, (StepRequest, WriteTask)) and self.settings.create == "auto"
        if not resident.exists and not may_create:
            hint = "; streams are not created here (--create never)" if self.settings.create == "never" else ""
            raise UnknownStream(f"There is no stream {job.stream!r}{hint}.")
        return resident

    def _may_exist_by_now(self, stream: str, resident: Resident, situation: Situation) -> bool:
        """Whether another engine may have begun a stream that did not exist when this one asked."""
        return self.store.shared and not resident.exists and stream not in situation.unsaved

    def _bring(self, job: Job, situation: Situation) -> Resident:
        """Make a stream resident: as it is in the store, or at its start."""
        claim, row = self.store.claim(job.stream), self._find_row(situation)
        try:
            resident = None if claim.record is None else self._load(job, row, StreamRecord.read(claim.record))
            if resident is None:
                self._compute.clear(row)
                resident = Resident(row, begin_record(job.stream, row, self._compute), exists=False)
            resident.epoch = claim.epoch
        except BaseException:
            self.residents.give_back(row)
            raise
        self.residents.add(job.stream, resident)
        return resident

    def _load(self, job: Job, row: int, record: StreamRecord) -> Resident | None:
        try:
            state = self.store.read_state(job.stream)
            if state is None:
                return None
            waiting, written = self._packer.unpack(row, state)
            # Where a request is a step, nothing waits for one: images of an earlier --step N are not kept any longer.
            return Resident(row, record, True, waiting if self.settings.step else [], written)
        except LmrError:
            if isinstance(job.task, ActTask) and job.task.action == "delete":
                return Resident(row, record, True)  # a damaged state can be deleted
            raise

    def _find_row(self, situation: Situation) -> int:
        row = self.residents.take_row()
        if row is None:
            leaver = self.residents.choose_leaver(situation.stay, situation.needed)
            if leaver is None:
                raise TooManyStreams(
                    f"This service keeps {self.residents.rows} streams, as it has no store; delete one, start it with "
                    "--state-dir, or raise --resident."
                )
            self.residents.forget(leaver)
            row = self.residents.take_row()
            assert row is not None
        return row

    # Requests.

    def _try_all(
        self,
        serve: Callable[[list[tuple[Job, Resident]]], list[_Done]],
        pairs: list[tuple[Job, Resident]],
        served: Served,
    ) -> list[_Done]:
        """Serve requests together; if that fails each alone, so that one does not spoil the others."""
        try:
            with self._compute.keep([resident.row for _, resident in pairs]):
                return serve(pairs)
        except Exception as error:
            if len(pairs) > 1:
                return [done for pair in pairs for done in self._try_all(serve, [pair], served)]
            LOGGER.exception("A request of stream %r failed", pairs[0][0].stream)
            served.failures.append((pairs[0][0], name_failure(error)))
            return []

    def _answer(self, pairs: list[tuple[Job, Resident]]) -> list[_Done]:
        outcomes = self._compute.answer([(resident.row, job.task.images) for job, resident in pairs])
        return [_Done(job, one, outcome) for (job, one), outcome in zip(pairs, outcomes, strict=True)]

    def _step(self, pairs: list[tuple[Job, Resident]]) -> list[_Done]:
        outcomes = self._compute.step([(resident.row, job.task.images) for job, resident in pairs])
        return [_Done(job, one, outcome) for (job, one), outcome in zip(pairs, outcomes, strict=True)]

    def _step_counted(self, pairs: list[tuple[Job, Resident]]) -> list[_Done]:
        """Answer every image with the present state, and step whenever N images of a stream have come together."""
        counted = [CountedRequest(job, one, self.settings.step) for job, one in pairs]
        while active := [one for one in counted if one.is_left]:
            outcomes = self._compute.answer([(one.resident.row, one.take_part()) for one in active])
            for one, outcome in zip(active, outcomes, strict=True):
                one.logits.append(outcome.logits)
            full = [one for one in active if one.is_full]
            steps = self._compute.step([(one.resident.row, one.join_waiting()) for one in full])
            for one, outcome in zip(full, steps, strict=True):
                one.note_step(outcome)
        for one in counted:
            one.resident.waiting = one.waiting
        return [_Done(one.job, one.resident, one.sum_up(), one.earlier) for one in counted]

    # Answers.

    def _finish_steps(self, stepped: list[_Done], served: Served, situation: Situation) -> None:
        conditions = self._compute.describe([done.resident.row for done in stepped])
        for done, condition in zip(stepped, conditions, strict=True):
            job, resident, outcome = done.job, done.resident, done.outcome
            request: StepRequest = job.task
            before = resident.record
            record = replace(before, seq=before.seq + 1, images=before.images + job.images)
            note = self._note(request, record, outcome, condition)
            record = self._books.note_change(resident, record, condition, served, situation)
            answer = self._make_answer(job, record.seq, outcome, condition, served, saved=self._at_once)
            kept = []
            if request.key is not None:
                text = replace(answer, saved=self._durable).to_json()
                kept = [KeptAnswer(request.key, request.digest, text)]
            notes = {note.seq: note} | self._add_frozen(resident, done.earlier)
            self._books.keep_notes(resident, notes)
            steps = {seq: one.store() for seq, one in notes.items()}
            served.transaction.add(job.stream, StreamChange(record.store(), steps=steps, answers=kept))
            for event in outcome.events:
                words = describe_health(event)
                change = event["before"], event["after"]
                signals = {**event["signals"], "alarms": list(event["alarms"])}
                self._books.add_event(served, situation, job.stream, "health", change, words, signals)
            served.results.append((job, answer))
            served.steps += outcome.stepped

    def _finish_answer(self, done: _Done, served: Served, situation: Situation) -> None:
        """An answer without a step: nothing of the stream changes, but an answer under a key is kept."""
        job, resident = done.job, done.resident
        request: StepRequest = job.task
        condition = Condition(resident.record.health, resident.record.adapts, {}, (), ())
        saved = self._durable and job.stream not in situation.unsaved
        answer = self._make_answer(job, resident.record.seq, done.outcome, condition, served, saved=saved)
        if request.mode == "adapt":
            answer.adaptation["reason"] = "overload" if job.overloaded else "store"
        if request.key is None or not situation.adapt or not resident.exists or job.overloaded:
            served.early.append((job, answer))
            return
        kept = KeptAnswer(request.key, request.digest, replace(answer, saved=self._durable).to_json())
        served.transaction.add(job.stream, StreamChange(resident.record.store(), answers=[kept]))
        served.results.append((job, answer))

    def _make_answer(
        self, job: Job, seq: int, outcome: RowAnswer, condition: Condition, served: Served, *, saved: bool
    ) -> StepAnswer:
        request: StepRequest = job.task
        top = [[(self.names[kind], share) for kind, share in best] for best in outcome.list_top(request.top)]
        adaptation = {"mode": request.mode, "stepped": outcome.stepped, **outcome.facts, "health": condition.health}
        timing = {
            "queue_ms": 1000 * (job.started - job.arrived),
            "step_ms": 1000 * served.seconds,
            "batch_images": served.images,
            "batch_streams": len(served.jobs),
        }
        return StepAnswer(job.stream, seq, saved, top, adaptation, timing, dict(request.note))

    def _note(self, request: StepRequest, record: StreamRecord, outcome: RowAnswer, condition: Condition) -> StepNote:
        best = [one[0] if one else (None, 0.0) for one in outcome.list_top(1)]
        places = tuple(request.places) or tuple(range(len(best)))
        point = {"seq": record.seq, **{key: condition.signals.get(key) for key in POINT}}
        point |= record.measure_accuracy()
        return StepNote(record.seq, request.sent or len(best), places, tuple(best), outcome.frozen, point)

    def _add_frozen(self, resident: Resident, earlier: dict[int, dict[int, int]]) -> dict[int, StepNote]:
        """The notes of earlier requests with answers of the frozen model that came with a later step."""
        found = {seq: self._books.find_note(resident, seq) for seq in earlier}
        return {
            seq: replace(note, frozen=note.frozen | earlier[seq]) for seq, note in found.items() if note is not None
        }
