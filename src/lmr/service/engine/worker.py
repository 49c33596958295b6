"""Worker: computes the jobs of a batch. One thread uses it at a time; it knows no queue and no lock.

Results of a batch become visible after the commit of its transaction, except answers that changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch

from lmr.core.answer import Answer, make_answers, rank
from lmr.core.errors import LmrError
from lmr.core.foreign_text import shorten
from lmr.core.labelled import Labelled
from lmr.core.log import LOGGER
from lmr.core.method import Phase
from lmr.service.engine.batch import Batch, Job
from lmr.service.engine.camera import (
    CAMERA_MESSAGES,
    NOT_TRUSTED,
    CameraHealth,
    CameraState,
    is_silent,
    note_pictures,
    note_silence,
)
from lmr.service.engine.compute import Compute, Inputs, RowAnswer
from lmr.service.engine.delivery import replay
from lmr.service.engine.packing import Packer
from lmr.service.engine.records import (
    DELETED,
    StepNote,
    StreamRecord,
    add_labels,
    describe_estimate,
    describe_labels,
    find_counted,
    note_answers,
    note_domain,
)
from lmr.service.engine.requests import (
    BadInput,
    QueuedImage,
    Refused,
    StepAnswer,
    StepRequest,
    StoreFailed,
    StreamDamaged,
    StreamLimit,
    StreamTask,
    UnknownStream,
)
from lmr.service.engine.residents import Resident, Residents
from lmr.service.engine.status import ACTION_MESSAGES, describe_health
from lmr.service.settings import ServiceSettings
from lmr.service.store.addresses import StateStore
from lmr.service.store.sql_store import MOST_STEPS
from lmr.service.store.stored_types import Claim, KeptAnswer, StoreError, StreamChange, Transaction

POINT = ("concentration", "entropy", "frozen_entropy", "agreement", "drift")  # signals in the history of a stream
QUIET: Phase = "quiet"
TOLD = (1, 10, 20, 50, 100)  # labels of a stream that are an event
FEW_NOTES = 8  # kept in memory where the store has the others

_EMPTY = RowAnswer(torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.bool))


@dataclass(eq=False)
class _LoadedRequest:
    """A job, its resident stream, and the answer of the method."""

    job: Job
    resident: Resident
    record: StreamRecord  # after the request
    answer: RowAnswer = _EMPTY
    restore: Callable[[], None] = lambda: None  # makes the state what it was before the request
    shows: Sequence[CameraState] = ()  # what each image shows of the camera, where its statistics are known

    @property
    def learns(self) -> bool:
        """True if every image of the request can be trusted."""
        return not any(state in NOT_TRUSTED for state in self.shows)


class Worker:
    """The method and its resident streams."""

    def __init__(
        self,
        method: Labelled,
        names: Sequence[str],
        settings: ServiceSettings,
        store: StateStore,
        clock: Callable[[], float],
    ) -> None:
        self.settings, self.store, self._clock = settings, store, clock
        self.residents = Residents(method.streams)
        self.method, self.names = method, list(names)
        self._compute, self._packer = Compute(method, self.names), Packer(method)
        self._classes = {name: k for k, name in enumerate(names)}
        self._at_once = settings.durability == "answer"
        self._may_delete = self._at_once and not store.shared  # also on a full disk, to make room
        self._most_notes = FEW_NOTES if self._at_once else MOST_STEPS

    def serve(self, batch: Batch) -> None:
        """Compute all jobs of a batch, which are of different streams, and add their results to it."""
        started = self._clock()
        steps, answers, tasks = [], [], []
        for job in batch.jobs:
            try:
                resident, kept = self._admit(job, batch), self._find_kept(job)
            except Exception as error:
                if not isinstance(error, (Refused, StoreError)):
                    LOGGER.exception("Stream %r cannot be read", job.stream)
                batch.refuse(job, error)
                continue
            entry = self._look(job, resident, batch)
            if kept is not None:
                batch.answer(job, kept)
            elif not isinstance(job.task, StepRequest):
                tasks.append(entry)
            elif job.task.mode == "adapt":
                steps.append(entry)
            else:
                answers.append(entry)
        steps = self._try_all(self._adapt, steps, batch)
        answers = self._try_all(self._answer, answers, batch)
        batch.images = sum(entry.job.images for entry in steps + answers)  # failed ones took no time
        batch.seconds = self._clock() - started
        for entry in steps:
            self._finish(self._finish_step, entry, batch)
        for entry in answers:
            self._finish(self._finish_answer, entry, batch)
        self._begin(tasks)
        for entry in tasks:
            self._finish(self._do_task, entry, batch)
        if self._at_once:
            self.pack(batch.transaction)
        if self.store.shared and not batch.failure:
            found = {job.stream: self.residents.get(job.stream) for job in batch.jobs}
            batch.transaction.epochs |= {stream: one.epoch for stream, one in found.items() if one is not None}
            for job in batch.jobs:  # the store confirms first that this engine still serves the streams
                job.early = False

    def pack(self, transaction: Transaction) -> None:
        """Add the states of all streams that changed since they were last packed."""
        changed = self.residents.list_changed()
        if not changed:
            return
        residents = [one for _, one in changed]
        rows = [one.row for one in residents]
        states = self._packer.pack(rows, [one.written for one in residents])
        for (stream, resident), state in zip(changed, states, strict=True):
            resident.changed = False
            transaction.add(stream, StreamChange(state=state))

    def forget(self, epochs: Mapping[str, int]) -> None:
        """Drop streams whose changes were not committed, so that they are read from the store when needed again.

        A stream that was read since, under a later epoch, stays.
        """
        for stream, epoch in epochs.items():
            found = self.residents.get(stream)
            if found is not None and found.epoch <= epoch:
                self.residents.forget(stream)

    # Residents.

    def _admit(self, job: Job, batch: Batch) -> Resident:
        """Return the stream of a job with its state in a row of the method."""
        adapts = isinstance(job.task, StepRequest) and job.task.mode == "adapt"
        if batch.failure and adapts:
            raise StoreFailed(f"{batch.failure} This request was not applied; try again later.")
        resident = self.residents.use(job.stream)
        if resident is not None and not resident.exists and self.store.shared and job.stream not in batch.unsaved:
            self.residents.forget(job.stream)  # another engine may have created it since
            resident = None
        resident = resident or self._load(job, batch)
        creates = isinstance(job.task, StepRequest) or job.task.action == "write"
        if not resident.exists and not creates:
            raise UnknownStream(f"There is no stream {job.stream!r}.")
        if not resident.exists and (adapts or isinstance(job.task, StreamTask)):
            if batch.room <= 0:
                raise StreamLimit(
                    f"The new stream {job.stream!r} exceeds the limit of {self.settings.max_streams} streams; "
                    "delete one, or raise --max-streams."
                )
            batch.room -= 1
        return resident

    def _load(self, job: Job, batch: Batch) -> Resident:
        if self.store.shared and batch.failure:  # to wait for it would keep all other streams waiting
            raise StoreFailed("The store cannot be used now, and this stream is not in memory; try again later.")
        claim, row = self.store.claim(job.stream), self._find_row(batch)
        try:
            resident = self._read_stored(job, row, claim)
            if resident is None:
                self._compute.clear(row)
                (record,) = self._compute.describe([(row, StreamRecord(job.stream))])
                resident = Resident(row, record, exists=False)
            resident.epoch = claim.epoch
        except BaseException:
            self.residents.give_back(row)
            raise
        self.residents.add(job.stream, resident)
        return resident

    def _read_stored(self, job: Job, row: int, claim: Claim) -> Resident | None:
        """Return a stream as it is in the store, or None; one that is damaged can be deleted, and nothing else."""
        try:
            record = None if claim.record is None else StreamRecord.from_json(claim.record.content)
            if claim.damage:
                raise LmrError(claim.damage)
            if record is not None and record.stream != job.stream:
                raise LmrError(f"the record is that of stream {record.stream!r}")
            if record is None or claim.state is None:
                return None
            return Resident(row, record, True, self._packer.unpack(row, claim.state))
        except (ValueError, LookupError, TypeError, RuntimeError) as error:  # also of pydantic and torch
            if isinstance(job.task, StreamTask) and job.task.action == "delete":
                assert claim.record is not None
                return Resident(row, StreamRecord(job.stream, health=claim.record.health), True)
            raise StreamDamaged(
                f"What is stored of stream {job.stream!r} is damaged ({error}); restore the store from a copy, or "
                "delete the stream."
            ) from error

    def _find_row(self, batch: Batch) -> int:
        row = self.residents.take_row()
        if row is None:
            evicted = self.residents.pick_eviction(batch.pinned, batch.needed)
            assert evicted is not None  # the batch was formed with a row for each of its streams
            self.residents.forget(evicted)
            row = self.residents.take_row()
            assert row is not None
        return row

    def _find_kept(self, job: Job) -> StepAnswer | None:
        """Return the answer that another engine gave to a request, where this one answers before it commits."""
        task = job.task
        if self._at_once or not self.store.shared or not isinstance(task, StepRequest) or task.key is None:
            return None
        found = self.store.read_answer(job.stream, task.key)
        return None if found is None else replay(task, found)

    # Requests.

    def _look(self, job: Job, resident: Resident, batch: Batch) -> _LoadedRequest:
        """Return the loaded request of a job, with the health of its camera."""
        record = resident.record
        if not isinstance(job.task, StepRequest) or not job.task.pictures:
            return _LoadedRequest(job, resident, record)
        picture, shows = note_pictures(record.picture, job.task.pictures, batch.time)
        return _LoadedRequest(job, resident, replace(record, picture=picture), shows=shows)

    def _begin(self, entries: list[_LoadedRequest]) -> None:
        """Remember how to undo what follows."""
        for entry, restore in zip(entries, self._compute.copy([entry.resident.row for entry in entries]), strict=True):
            entry.restore = restore

    def _try_all(
        self, serve: Callable[[list[_LoadedRequest]], None], entries: list[_LoadedRequest], batch: Batch
    ) -> list[_LoadedRequest]:
        """Serve requests together, or if that fails each alone; return those that were answered."""
        self._begin(entries)
        try:
            serve(entries)
            return entries
        except Exception as error:
            for entry in entries:
                entry.restore()
            if len(entries) > 1:
                return [done for entry in entries for done in self._try_all(serve, [entry], batch)]
            LOGGER.exception("A request of stream %r failed", entries[0].job.stream)
            batch.refuse(entries[0].job, error)
            return []

    def _finish(self, finish: Callable[[_LoadedRequest, Batch], None], entry: _LoadedRequest, batch: Batch) -> None:
        """Finish a request that was computed, or a task; one that fails is undone, and the others are not touched."""
        try:
            finish(entry, batch)
        except Exception as error:
            if not isinstance(error, Refused):
                LOGGER.exception("A request of stream %r failed", entry.job.stream)
            entry.restore()
            batch.refuse(entry.job, error)

    def _adapt(self, entries: list[_LoadedRequest]) -> None:
        """Adapt on the images, answer them, and describe the streams afterwards."""
        self._give_answers(self._compute.step, [entry for entry in entries if entry.learns])
        self._give_answers(self._compute.answer, [entry for entry in entries if not entry.learns])
        records = self._compute.describe([(entry.resident.row, _count_step(entry)) for entry in entries])
        for entry, record in zip(entries, records, strict=True):
            entry.record = record

    def _answer(self, entries: list[_LoadedRequest]) -> None:
        self._give_answers(self._compute.answer, entries)

    def _give_answers(self, compute: Callable[[Inputs], list[RowAnswer]], entries: list[_LoadedRequest]) -> None:
        """Add the answers, and the frozen model's where a request asks for them."""
        answers = compute([(entry.resident.row, entry.job.task.images) for entry in entries])
        for entry, answer in zip(entries, answers, strict=True):
            entry.answer = answer
        if not (asking := [entry for entry in entries if entry.job.task.compare]):
            return
        found = self._compute.compare([(entry.resident.row, entry.job.task.images) for entry in asking])
        for entry, logits in zip(asking, found, strict=True):
            labels = dict(enumerate(logits.argmax(1).tolist()))
            entry.answer = replace(entry.answer, frozen=labels, frozen_logits=logits)

    def _finish_step(self, entry: _LoadedRequest, batch: Batch) -> None:
        job, resident, answer = entry.job, entry.resident, entry.answer
        request: StepRequest = job.task
        given = self._make_answer(entry, entry.record, batch, saved=self._at_once and self.store.durable)
        record = batch.stamp(note_answers(note_domain(entry.record, batch.time), given.answers))
        before = resident.record
        quiet = before.adapting == record.adapting == QUIET and record.adapts and entry.learns
        note = self._make_note(request, record, given, quiet)
        note = note if entry.learns else replace(note, first=-1)
        change = StreamChange(record.store(), None, {note.seq: note.to_json()}, self._keep_answer(request, given))
        messages = [describe_health(event) for event in answer.events]
        self._note_change(resident, record, batch)
        self._keep_note(resident, note)
        batch.finish(job, given, change)
        batch.steps += answer.stepped
        for event, message in zip(answer.events, messages, strict=True):
            health, signals = (event["before"], event["after"]), {**event["signals"], "alarms": list(event["alarms"])}
            batch.add_event(job.stream, "health", health, message, signals)
        self._tell_camera(before.picture, record, batch)

    def _tell_camera(self, before: CameraHealth, record: StreamRecord, batch: Batch) -> None:
        state = record.picture.state
        if state is not before.state:
            batch.add_event(record.stream, "camera", (before.state, state), CAMERA_MESSAGES[state], {})

    def _finish_answer(self, entry: _LoadedRequest, batch: Batch) -> None:
        """Add an answer without a step: the stream is unchanged, and a retry is answered anew."""
        saved = self.store.durable and entry.job.stream not in batch.unsaved
        batch.answer(entry.job, self._make_answer(entry, entry.resident.record, batch, saved=saved))

    def _make_answer(self, entry: _LoadedRequest, record: StreamRecord, batch: Batch, *, saved: bool) -> StepAnswer:
        job, answer = entry.job, entry.answer
        request: StepRequest = job.task
        results = {place: Answer(error=message) for place, message in request.errors.items()}
        plain = [] if answer.frozen_logits is None else rank(answer.frozen_logits, self.names, request.top)
        frozen = {k: self.names[kind] for k, kind in answer.frozen.items()}
        rankings = rank(answer.logits, self.names, request.top)
        known, unknown = answer.known.tolist(), answer.unknown.tolist()
        given = make_answers(rankings, known, unknown, frozen, plain, answer.reused)
        for place, one, state in zip_longest(request.places, given, entry.shows):
            results[place] = replace(one, trusted=False) if state in NOT_TRUSTED else one
        answers = tuple(results[place] for place in range(request.sent))
        adaptation = {"mode": request.mode, "stepped": answer.stepped, **answer.facts, "health": record.health}
        adaptation |= describe_estimate(record) | ({"camera": str(record.picture.state)} if entry.shows else {})
        timing = {
            "queue_ms": 1000 * (job.started - job.arrived),
            "step_ms": 1000 * batch.seconds,
            "batch_images": batch.images,
            "batch_streams": len(batch.jobs),
        }
        return StepAnswer(job.stream, record.seq, saved, answers, adaptation, timing)

    def _make_note(self, request: StepRequest, record: StreamRecord, answer: StepAnswer, quiet: bool) -> StepNote:
        given = [answer.answers[place] for place in request.places]
        best = tuple((one.label, one.probability or 0.0) for one in given)
        frozen = {k: one.frozen for k, one in enumerate(given) if one.frozen is not None}
        point = {"seq": record.seq, **{key: record.signals.get(key) for key in POINT}, **record.measure_shares()}
        first = record.seen - len(best)
        return StepNote(record.seq, request.sent, tuple(request.places), best, frozen, point, quiet=quiet, first=first)

    def _keep_answer(self, request: StepRequest, answer: StepAnswer) -> list[KeptAnswer]:
        """Return an answer as it is stored, if it has a key; it is saved when somebody reads it there."""
        if request.key is None:
            return []
        return [KeptAnswer(request.key, request.digest, replace(answer, saved=self.store.durable).to_json())]

    # Records and notes.

    def _note_change(self, resident: Resident, record: StreamRecord, batch: Batch) -> None:
        """Give a resident whose state has changed its new record, which has its time and number."""
        batch.records.append((resident.record.health if resident.exists else "", record))
        resident.record, resident.exists, resident.changed = record, True, True

    def _find_note(self, resident: Resident, seq: int) -> StepNote | None:
        if seq in resident.notes:
            return resident.notes[seq]
        found = self.store.read_steps(resident.record.stream, seq)
        return StepNote.from_json(found[0]) if found else None

    def _keep_note(self, resident: Resident, note: StepNote) -> None:
        resident.notes[note.seq] = note
        for seq in sorted(resident.notes)[: -self._most_notes]:
            del resident.notes[seq]

    # Tasks of operators.

    def _do_task(self, entry: _LoadedRequest, batch: Batch) -> None:
        job, resident = entry.job, entry.resident
        if job.task.action == "read":
            labelled = resident.record.taught > 0  # a method without labels reads the other files as well
            batch.answer(job, (self.method if labelled else self.method.method).dump([resident.row]))
        elif batch.failure and not (job.task.action == "delete" and self._may_delete):
            raise StoreFailed("The store cannot be written, so nothing was changed; try again later.")
        elif job.task.action == "label":
            self._add_labels(job, resident, batch)
        elif job.task.action == "ask":
            self._remember(job, resident, batch)
        elif job.task.action == "silent":
            self._note_silence(job, resident, batch)
        elif job.task.action == "delete":
            self._delete(job, resident, batch)
        else:
            self._change_state(job, resident, batch)

    def _change_state(self, job: Job, resident: Resident, batch: Batch) -> None:
        action, before = job.task.action, resident.record
        if action != "write":
            self._compute.act(resident.row, action)
        else:
            try:
                self.method.restore(job.task.content, [resident.row])
            except LmrError as error:
                raise BadInput(str(error)) from error
        (after,) = self._compute.describe([(resident.row, before)], estimate=True)
        if action in ("reset", "write"):
            seen = int(self.method.own["seen"][resident.row])
            after = note_domain(replace(after, seen=seen, forgot=before.seq, outdated=None), batch.time)
        if action == "reset":
            after = replace(after, picture=CameraHealth())
        record = batch.stamp(after)
        self._note_change(resident, record, batch)
        batch.finish(job, record, StreamChange(record.store()))
        health = before.health, record.health
        batch.add_event(job.stream, "operator", health, ACTION_MESSAGES[action], record.signals)

    def _note_silence(self, job: Job, resident: Resident, batch: Batch) -> None:
        """Note that a camera sends nothing, unless a frame has come meanwhile."""
        before = resident.record
        if not is_silent(before.picture, batch.time):
            batch.answer(job, before)
            return
        record = replace(before, picture=note_silence(before.picture, batch.time), change=batch.take_number())
        batch.records.append((before.health, record))
        resident.record = record
        batch.finish(job, record, StreamChange(record.store()))
        self._tell_camera(before.picture, record, batch)

    def _delete(self, job: Job, resident: Resident, batch: Batch) -> None:
        """Delete a stream. It keeps its row until that is committed, so that nobody reads what is being deleted."""
        before = resident.record
        self._compute.clear(resident.row)
        (resident.record,) = self._compute.describe([(resident.row, StreamRecord(job.stream))])
        resident.exists = False
        resident.written, resident.notes, resident.changed = {}, {}, False
        deleted = batch.change(before.health, replace(before, health=DELETED, adapts=False))
        batch.finish(job, deleted, StreamChange(fresh=True))
        batch.add_event(job.stream, "operator", (before.health, DELETED), ACTION_MESSAGES["delete"], {})

    def _remember(self, job: Job, resident: Resident, batch: Batch) -> None:
        """Remember images for labels that come later; answer with those that are not forgotten yet."""
        found: dict[int, QueuedImage] = {}
        for one in job.task.images:
            note = self._find_note(resident, one.seq)
            if note is not None and note.seq > resident.record.forgot and note.first >= 0 and one.image in note.places:
                found[note.first + note.places.index(one.image)] = one
        known = self.method.list_learnable(list(found), resident.row)
        kept = {number: one for (number, one), learnable in zip(found.items(), known, strict=True) if learnable}
        if not kept:
            batch.answer(job, [])
            return
        self.method.remember(list(kept), resident.row)
        resident.changed = True
        batch.finish(job, list(kept.values()), StreamChange(resident.record.store()))

    def _add_labels(self, job: Job, resident: Resident, batch: Batch) -> None:
        task: StreamTask = job.task
        note = self._find_note(resident, task.seq) if task.seq <= resident.record.seq else None
        if note is None:
            raise BadInput(
                f"Stream {job.stream!r} has no request {task.seq} among its last {MOST_STEPS}; use the seq of one of "
                "their answers."
            )
        if len(task.labels) != note.count:
            raise BadInput(f"Expected {note.count} labels for request {task.seq}, got {len(task.labels)}.")
        labels = {place: name for place, name in enumerate(task.labels) if name is not None}
        unknown = sorted({name for name in labels.values() if name not in self._classes})
        if unknown:
            name = repr(shorten(unknown[0]))
            raise BadInput(f"The classes of this service do not include {name}; use their names, or null.")
        unread = sorted(labels.keys() - {*note.places})
        if unread:
            raise BadInput(f"Image {unread[0]} of request {task.seq} has no answer; give null for it.")
        truth = {k: labels[place] for k, place in enumerate(note.places) if place in labels}
        record, after = add_labels(resident.record, note, truth)
        if task.teach and note.seq > record.forgot:
            known = list(note.taught or [None] * len(note.answers))
            new = {k: name for k, name in truth.items() if known[k] != name}
            if new:
                self._teach(resident, note, new)
                (record,) = self._compute.describe([(resident.row, record)], estimate=True)
                record = note_domain(record, batch.time)
                if any(resident.record.taught < count <= record.taught for count in TOLD):
                    message = describe_labels(record)
                    batch.add_event(job.stream, "label", (record.health, record.health), message, {})
                resident.changed = True
            after = replace(after, taught=tuple(new.get(k, name) for k, name in enumerate(known)))
        note = after
        resident.record = record = batch.change(record.health, record)
        self._keep_note(resident, note)
        batch.finish(job, record, StreamChange(record.store(), steps={note.seq: note.to_json()}))

    def _teach(self, resident: Resident, note: StepNote, labels: Mapping[int, str]) -> None:
        """Learn labels of the last images; those of older ones are counted, where the method counts class shares."""
        row, places = resident.row, list(labels)
        known = self.method.list_learnable([note.first + k for k in places], row) if note.first >= 0 else []
        recent = [k for k, learnable in zip(places, known, strict=False) if learnable]
        older = [k for k in labels if k not in recent]
        if recent:
            numbers, truth = [note.first + k for k in recent], [self._classes[labels[k]] for k in recent]
            self.method.learn_labels(numbers, truth, [row] * len(recent), replace_counts=note.quiet)
        if older:
            counted = [self._classes.get(find_counted(note, k) or "", -1) for k in older]
            self._compute.count_labels(row, [self._classes[labels[k]] for k in older], counted)


def _count_step(entry: _LoadedRequest) -> StreamRecord:
    record, images = entry.record, entry.job.images
    learnt = images if entry.learns else 0
    return replace(record, seq=record.seq + 1, images=record.images + images, seen=record.seen + learnt)
