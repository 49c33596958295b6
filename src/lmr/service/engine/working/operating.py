"""Operating: what operators ask for, beside requests: actions, states as files, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.service.engine.records import DELETED, StreamRecord, add_labels
from lmr.service.engine.scheduler import Job
from lmr.service.engine.step_types import BadInput, StoreFailed
from lmr.service.engine.tasks import ActTask, LabelTask, ReadTask, WriteTask
from lmr.service.engine.telling import describe_action
from lmr.service.engine.working.bookkeeping import Bookkeeper
from lmr.service.engine.working.compute import Compute
from lmr.service.engine.working.residents import Resident
from lmr.service.engine.working.served import Served, Situation, name_failure
from lmr.service.store.store import MOST_STEPS
from lmr.service.store.stored_types import StreamChange


class Operating:
    """Does tasks; a task that fails changes nothing."""

    def __init__(self, method: Method, names: Sequence[str], compute: Compute, books: Bookkeeper) -> None:
        self._method, self._compute, self._books = method, compute, books
        self._classes = {name: k for k, name in enumerate(names)}

    def do(self, job: Job, resident: Resident, served: Served, situation: Situation) -> None:
        """Do the task of a job."""
        try:
            if isinstance(job.task, ReadTask):
                served.early.append((job, self._method.dump([resident.row])))
                return
            if not situation.adapt:
                raise StoreFailed("The store cannot be written, so nothing was changed; try again later.")
            with self._compute.keep([resident.row]):
                if isinstance(job.task, LabelTask):
                    self._add_labels(job, resident, served, situation)
                elif isinstance(job.task, WriteTask):
                    self._write_state(job, resident, served, situation)
                elif job.task.action == "delete":
                    self._delete(job, resident, served, situation)
                else:
                    self._act(job, resident, served, situation)
        except Exception as error:
            served.failures.append((job, name_failure(error)))

    def _act(self, job: Job, resident: Resident, served: Served, situation: Situation) -> None:
        task: ActTask = job.task
        self._compute.act(resident.row, task.action)
        if task.action == "reset":
            resident.waiting = []
        self._finish_task(job, resident, served, situation, describe_action(task.action))

    def _write_state(self, job: Job, resident: Resident, served: Served, situation: Situation) -> None:
        try:
            self._method.restore(job.task.content, [resident.row])
        except LmrError as error:
            raise BadInput(str(error)) from error
        resident.waiting = []
        self._finish_task(job, resident, served, situation, "An operator gave the stream a state from a file.")

    def _finish_task(self, job: Job, resident: Resident, served: Served, situation: Situation, words: str) -> None:
        """Note that an operator has changed the state of a stream."""
        before = resident.record
        (condition,) = self._compute.describe([resident.row])
        record = self._books.note_change(resident, before, condition, served, situation)
        served.transaction.add(job.stream, StreamChange(record.store()))
        self._books.add_event(
            served, situation, job.stream, "operator", (before.health, record.health), words, record.signals
        )
        served.results.append((job, record))

    def _delete(self, job: Job, resident: Resident, served: Served, situation: Situation) -> None:
        """Delete a stream. Its row stays its own until that is committed, so that nobody reads what is deleted."""
        before = resident.record
        self._compute.clear(resident.row)
        self._books.unpacked.discard(job.stream)
        resident.record, resident.exists = begin_record(job.stream, resident.row, self._compute), False
        resident.waiting, resident.written, resident.notes = [], {}, {}
        served.transaction.add(job.stream, StreamChange(fresh=True))
        gone = replace(before, health=DELETED, adapts=False, updated=situation.wall, change=self._books.take_number())
        served.records.append((before.health, gone))
        words = describe_action("delete")
        self._books.add_event(served, situation, job.stream, "operator", (before.health, DELETED), words, {})
        served.results.append((job, gone))

    def _add_labels(self, job: Job, resident: Resident, served: Served, situation: Situation) -> None:
        task: LabelTask = job.task
        note = self._books.find_note(resident, task.seq) if task.seq <= resident.record.seq else None
        if note is None:
            raise BadInput(
                f"Stream {job.stream!r} has no request {task.seq} among its last {MOST_STEPS}; label those, by the seq "
                "of their answers."
            )
        if len(task.labels) != note.count:
            raise BadInput(f"Expected {note.count} labels for request {task.seq}, got {len(task.labels)}.")
        unknown = sorted({name for name in task.labels if name is not None and name not in self._classes})
        if unknown:
            raise BadInput(f"The classes of this service do not include {unknown[0]!r}; use their names, or null.")
        truth = {
            k: self._classes[name] for k, place in enumerate(note.places) if (name := task.labels[place]) is not None
        }
        before = resident.record
        record, note = add_labels(before, note, truth, situation.wall)
        resident.record = record = replace(record, change=self._books.take_number())
        self._books.keep_notes(resident, {note.seq: note})
        served.transaction.add(job.stream, StreamChange(record.store(), steps={note.seq: note.store()}))
        served.records.append((before.health, record))
        served.results.append((job, record))


def begin_record(stream: str, row: int, compute: Compute) -> StreamRecord:
    """The record of a stream at its start."""
    (condition,) = compute.describe([row])
    return replace(StreamRecord(stream), **vars(condition))
