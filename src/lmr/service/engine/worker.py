"""Worker: computes the jobs of a batch. One thread uses it at a time; it knows no queue and no lock.

Results of a batch become visible after the commit of its transaction, except answers that changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.log import LOGGER
from lmr.core.method import Phase
from lmr.service.engine.batch import Batch, Job
from lmr.service.engine.compute import Compute, Inputs, RowAnswer, ServedMethod, list_top
from lmr.service.engine.delivery import replay
from lmr.service.engine.packing import Packer, WaitingImage
from lmr.service.engine.records import DELETED, StepNote, StreamRecord, add_labels, find_new_labels, note_answers
from lmr.service.engine.requests import (
    BadInput,
    ImageResult,
    Refused,
    StepAnswer,
    StepRequest,
    StoreFailed,
    StreamDamaged,
    StreamLimit,
    StreamTask,
    TooManyStreams,
    UnknownStream,
)
from lmr.service.engine.residents import Resident, Residents
from lmr.service.engine.status import ACTION_MESSAGES, describe_health
from lmr.service.settings import ServiceSettings
from lmr.service.store.addresses import StateStore
from lmr.service.store.sql_store import MOST_STEPS
from lmr.service.store.stored_types import Claim, DamagedText, KeptAnswer, StoreError, StreamChange, Transaction

POINT = ("concentration", "entropy", "frozen_entropy", "agreement", "drift")  # signals in the history of a stream
QUIET: Phase = "quiet"
FEW_NOTES = 8  # kept in memory where the store has the others
NOT_FINITE = "The model gave no finite answer to this image."

_EMPTY = RowAnswer(torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.bool))


@dataclass(eq=False)
class _Turn:
    """A job, its resident stream, and the answer of the method."""

    job: Job
    resident: Resident
    record: StreamRecord  # after the request
    answer: RowAnswer = _EMPTY
    earlier: dict[int, dict[int, int]] = field(default_factory=dict)  # frozen answers to images of earlier requests
    restore_row: Callable[[], None] = lambda: None
    waiting: list[WaitingImage] = field(default_factory=list)  # before the request

    def undo(self) -> None:
        """Make the stream what it was before the request."""
        self.restore_row()
        self.resident.waiting = self.waiting


class Worker:
    """The method and its resident streams."""

    def __init__(
        self,
        method: ServedMethod,
        names: Sequence[str],
        settings: ServiceSettings,
        store: StateStore,
        clock: Callable[[], float],
    ) -> None:
        self.settings, self.store, self._clock = settings, store, clock
        self.residents = Residents(method.streams)
        self.use(method, names)
        self._durable = store.durable
        self._at_once = self._durable and settings.durability == "answer"
        self._most_notes = MOST_STEPS if self._durable and not self._at_once else FEW_NOTES

    def use(self, method: ServedMethod, names: Sequence[str]) -> None:
        """Serve with a method of these classes, whose rows hold the states of the residents."""
        self.method, self.names = method, list(names)
        self._compute, self._packer = Compute(method, self.names), Packer(method)
        self._classes = {name: k for k, name in enumerate(names)}

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
            turn = _Turn(job, resident, resident.record)
            if kept is not None:
                batch.answer(job, kept)
            elif not isinstance(job.task, StepRequest):
                tasks.append(turn)
            elif _may_adapt(job, batch):
                steps.append(turn)
            else:
                answers.append(turn)
        steps = self._try_all(self._adapt, steps, batch)
        answers = self._try_all(self._answer, answers, batch)
        batch.images = sum(turn.job.images for turn in steps + answers)  # failed ones took no time
        batch.seconds = self._clock() - started
        for turn in steps:
            self._finish(self._finish_step, turn, batch)
        for turn in answers:
            self._finish(self._finish_answer, turn, batch)
        self._begin(tasks)
        for turn in tasks:
            self._finish(self._do_task, turn, batch)
        if self._at_once:
            self.pack(batch.transaction)
        if self.store.shared and batch.adapt:
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
        states = self._packer.pack(rows, [one.waiting for one in residents], [one.written for one in residents])
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
        if batch.refusal and isinstance(job.task, StepRequest) and job.task.mode == "adapt":
            raise StoreFailed(f"{batch.refusal} This request was not applied; try again later.")
        resident = self.residents.use(job.stream)
        if resident is not None and not resident.exists and self.store.shared and job.stream not in batch.unsaved:
            self.residents.forget(job.stream)  # another engine may have created it since
            resident = None
        resident = resident or self._bring(job, batch)
        creates = isinstance(job.task, StepRequest) or job.task.action == "write"
        if not resident.exists and not (creates and self.settings.create == "auto"):
            hint = "; streams are not created here (--create never)" if self.settings.create == "never" else ""
            raise UnknownStream(f"There is no stream {job.stream!r}{hint}.")
        if not resident.exists and (not isinstance(job.task, StepRequest) or _may_adapt(job, batch)):
            if batch.room <= 0:
                raise StreamLimit(
                    f"The new stream {job.stream!r} exceeds the limit of {self.settings.max_streams} streams; "
                    "delete one, or raise --max-streams."
                )
            batch.room -= 1
        return resident

    def _bring(self, job: Job, batch: Batch) -> Resident:
        """Make a stream resident: as it is in the store, or in its initial state."""
        if self.store.shared and not batch.adapt:  # to wait for it would keep all other streams waiting
            raise StoreFailed("The store cannot be used now, and this stream is not in memory; try again later.")
        claim, row = self.store.claim(job.stream), self._find_row(batch)
        try:
            resident = self._load(job, row, claim)
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

    def _load(self, job: Job, row: int, claim: Claim) -> Resident | None:
        """Return a stream as it is in the store, or None; one that is damaged can be deleted, and nothing else."""
        try:
            record = None if claim.record is None else StreamRecord.from_json(claim.record.content)
            if claim.damage:
                raise DamagedText(claim.damage)
            if record is None or claim.state is None:
                return None
            waiting, written = self._packer.unpack(row, claim.state)
            # Where a request is a step, nothing waits for one: images of an earlier --step N are not kept any longer.
            return Resident(row, record, True, waiting if self.settings.step else [], written)
        except (DamagedText, ValueError, LookupError, TypeError, RuntimeError) as error:  # also of pydantic and torch
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
            leaver = self.residents.choose_leaver(batch.stay, batch.needed)
            if leaver is None:
                raise TooManyStreams(
                    f"All {self.residents.rows} rows are in use, and this service has no store; delete a stream, start "
                    "the service with --store, or raise --resident."
                )
            self.residents.forget(leaver)
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

    def _begin(self, turns: list[_Turn]) -> None:
        """Remember how to undo what follows."""
        for turn, restore in zip(turns, self._compute.copy([turn.resident.row for turn in turns]), strict=True):
            turn.restore_row, turn.waiting = restore, turn.resident.waiting

    def _try_all(self, serve: Callable[[list[_Turn]], None], turns: list[_Turn], batch: Batch) -> list[_Turn]:
        """Serve requests together, or if that fails each alone; return those that were answered."""
        self._begin(turns)
        try:
            serve(turns)
            return turns
        except Exception as error:
            for turn in turns:
                turn.undo()
            if len(turns) > 1:
                return [done for turn in turns for done in self._try_all(serve, [turn], batch)]
            LOGGER.exception("A request of stream %r failed", turns[0].job.stream)
            batch.refuse(turns[0].job, error)
            return []

    def _finish(self, finish: Callable[[_Turn, Batch], None], turn: _Turn, batch: Batch) -> None:
        """Finish a request that was computed, or a task; one that fails is undone, and the others are not touched."""
        try:
            finish(turn, batch)
        except Exception as error:
            if not isinstance(error, Refused):
                LOGGER.exception("A request of stream %r failed", turn.job.stream)
            turn.undo()
            batch.refuse(turn.job, error)

    def _adapt(self, turns: list[_Turn]) -> None:
        """Adapt on the images, answer them, and describe the streams afterwards."""
        if self.settings.step:
            self._step_counted(turns)
        else:
            self._give_answers(self._compute.step, turns)
        self._compare(turns)
        records = self._compute.describe([(turn.resident.row, _count_step(turn)) for turn in turns])
        for turn, record in zip(turns, records, strict=True):
            turn.record = record

    def _answer(self, turns: list[_Turn]) -> None:
        """Answer the images with the present state."""
        self._give_answers(self._compute.answer, turns)
        self._compare(turns)

    def _compare(self, turns: list[_Turn]) -> None:
        """Add the frozen model's answers for the requests that ask for them."""
        if not (asking := [turn for turn in turns if turn.job.task.compare]):
            return
        found = self._compute.compare([(turn.resident.row, turn.job.task.images) for turn in asking])
        for turn, logits in zip(asking, found, strict=True):
            labels = dict(enumerate(logits.argmax(1).tolist()))
            turn.answer = replace(turn.answer, frozen=labels, frozen_logits=logits)

    def _give_answers(self, compute: Callable[[Inputs], list[RowAnswer]], turns: list[_Turn]) -> None:
        answers = compute([(turn.resident.row, turn.job.task.images) for turn in turns])
        for turn, answer in zip(turns, answers, strict=True):
            turn.answer = answer

    def _step_counted(self, turns: list[_Turn]) -> None:
        """Answer every image with the present state, and step whenever a stream has ``settings.step`` images."""
        counted = [_CountedRequest(turn, self.settings.step) for turn in turns]
        while active := [one for one in counted if one.is_left]:
            answers = self._compute.answer([(one.row, one.take_part()) for one in active])
            for one, answer in zip(active, answers, strict=True):
                one.answers.append(answer)
            full = [one for one in active if len(one.waiting) >= one.size]
            steps = self._compute.step([(one.row, torch.stack([w.image for w in one.waiting])) for one in full])
            for one, answer in zip(full, steps, strict=True):
                one.note_step(answer)
        for one in counted:
            one.finish()

    def _finish_step(self, turn: _Turn, batch: Batch) -> None:
        """Add the results of a step to the batch, after all that can fail."""
        job, resident, answer = turn.job, turn.resident, turn.answer
        request: StepRequest = job.task
        given = self._make_answer(job, turn.record, answer, batch, saved=self._at_once)
        record = batch.stamp(note_answers(turn.record, given.answers))
        quiet = resident.record.adapting == record.adapting == QUIET and record.adapts
        note = self._make_note(request, record, given, quiet)
        notes = {note.seq: note}
        for seq, frozen in turn.earlier.items():
            if (found := self._find_note(resident, seq)) is not None:
                named = {place: self.names[kind] for place, kind in frozen.items()}
                notes[seq] = replace(found, frozen=found.frozen | named)
        texts = {seq: one.to_json() for seq, one in notes.items()}
        change = StreamChange(record.store(), steps=texts, answers=self._keep_answer(request, given))
        messages = [describe_health(event) for event in answer.events]
        self._note_change(resident, record, batch)
        self._keep_notes(resident, notes)
        batch.finish(job, given, change)
        batch.steps += answer.stepped
        for event, message in zip(answer.events, messages, strict=True):
            health, signals = (event["before"], event["after"]), {**event["signals"], "alarms": list(event["alarms"])}
            batch.add_event(job.stream, "health", health, message, signals)

    def _finish_answer(self, turn: _Turn, batch: Batch) -> None:
        """Add an answer without a step: the stream is unchanged, but an answer with a key is stored."""
        job, resident, record = turn.job, turn.resident, turn.resident.record
        request: StepRequest = job.task
        saved = self._durable and job.stream not in batch.unsaved
        answer = self._make_answer(job, record, turn.answer, batch, saved=saved)
        if request.mode == "adapt":
            answer.adaptation["reason"] = "overload" if job.overloaded else "store"
        if request.key is None or not batch.adapt or not resident.exists or job.overloaded:
            batch.answer(job, answer)
            return
        batch.finish(job, answer, StreamChange(record.store(), answers=self._keep_answer(request, answer)))

    def _make_answer(
        self, job: Job, record: StreamRecord, answer: RowAnswer, batch: Batch, *, saved: bool
    ) -> StepAnswer:
        request: StepRequest = job.task
        results = {place: ImageResult(error=message) for place, message in request.errors.items()}
        tops = self._name_top(answer.logits, request.top)
        plain = [()] * len(tops) if answer.frozen_logits is None else self._name_top(answer.frozen_logits, request.top)
        known, unknown = answer.known.tolist(), answer.unknown.tolist()
        for k, (place, top, frozen_top) in enumerate(zip(request.places, tops, plain, strict=True)):
            frozen = self.names[answer.frozen[k]] if k in answer.frozen else None
            result = ImageResult(error=NOT_FINITE)
            if top:
                result = ImageResult(None if unknown[k] else top[0][0], top[0][1], top, known=known[k])
            results[place] = replace(result, frozen=frozen, frozen_top=frozen_top)
        answers = tuple(results[place] for place in range(request.sent))
        adaptation = {"mode": request.mode, "stepped": answer.stepped, **answer.facts, "health": record.health}
        timing = {
            "queue_ms": 1000 * (job.started - job.arrived),
            "step_ms": 1000 * batch.seconds,
            "batch_images": batch.images,
            "batch_streams": len(batch.jobs),
        }
        return StepAnswer(job.stream, record.seq, saved, answers, adaptation, timing)

    def _name_top(self, logits: Tensor, count: int) -> list[tuple[tuple[str, float], ...]]:
        return [tuple((self.names[kind], share) for kind, share in best) for best in list_top(logits, count)]

    def _make_note(self, request: StepRequest, record: StreamRecord, answer: StepAnswer, quiet: bool) -> StepNote:
        given = [answer.answers[place] for place in request.places]
        best = tuple((one.label, one.probability or 0.0) for one in given)
        frozen = {k: one.frozen for k, one in enumerate(given) if one.frozen is not None}
        point = {"seq": record.seq, **{key: record.signals.get(key) for key in POINT}, **record.measure_shares()}
        return StepNote(record.seq, request.sent, tuple(request.places), best, frozen, point, quiet=quiet)

    def _keep_answer(self, request: StepRequest, answer: StepAnswer) -> list[KeptAnswer]:
        """Return an answer as it is stored, if it has a key; it is saved when somebody reads it there."""
        if request.key is None:
            return []
        return [KeptAnswer(request.key, request.digest, replace(answer, saved=self._durable).to_json())]

    # Records and notes.

    def _note_change(self, resident: Resident, record: StreamRecord, batch: Batch) -> None:
        """Give a resident whose state has changed its new record, which has its time and number."""
        batch.records.append((resident.record.health if resident.exists else "", record))
        resident.record, resident.exists, resident.changed = record, True, self._durable

    def _find_note(self, resident: Resident, seq: int) -> StepNote | None:
        if seq in resident.notes:
            return resident.notes[seq]
        found = self.store.read_steps(resident.record.stream, seq)
        return StepNote.from_json(found[0]) if found else None

    def _keep_notes(self, resident: Resident, notes: Mapping[int, StepNote]) -> None:
        """Keep notes that are not in the store yet."""
        resident.notes |= notes
        for seq in sorted(resident.notes)[: -self._most_notes]:
            del resident.notes[seq]

    # Tasks of operators.

    def _do_task(self, turn: _Turn, batch: Batch) -> None:
        job, resident = turn.job, turn.resident
        if job.task.action == "read":
            batch.answer(job, self.method.dump([resident.row]))
        elif not batch.adapt:
            raise StoreFailed("The store cannot be written, so nothing was changed; try again later.")
        elif job.task.action == "label":
            self._add_labels(job, resident, batch)
        elif job.task.action == "delete":
            self._delete(job, resident, batch)
        else:
            self._change_state(job, resident, batch)

    def _change_state(self, job: Job, resident: Resident, batch: Batch) -> None:
        """Do what an operator asks of a stream: an action, or another state for it."""
        action, before = job.task.action, resident.record
        if action != "write":
            self._compute.act(resident.row, action)
        else:
            try:
                self.method.restore(job.task.content, [resident.row])
            except LmrError as error:
                raise BadInput(str(error)) from error
        if action in ("reset", "write"):
            resident.waiting = []
        (after,) = self._compute.describe([(resident.row, before)])
        record = batch.stamp(after)
        self._note_change(resident, record, batch)
        batch.finish(job, record, StreamChange(record.store()))
        health = before.health, record.health
        batch.add_event(job.stream, "operator", health, ACTION_MESSAGES[action], record.signals)

    def _delete(self, job: Job, resident: Resident, batch: Batch) -> None:
        """Delete a stream. It keeps its row until that is committed, so that nobody reads what is being deleted."""
        before = resident.record
        self._compute.clear(resident.row)
        (resident.record,) = self._compute.describe([(resident.row, StreamRecord(job.stream))])
        resident.exists = False
        resident.waiting, resident.written, resident.notes, resident.changed = [], {}, {}, False
        deleted = batch.change(before.health, replace(before, health=DELETED, adapts=False))
        batch.finish(job, deleted, StreamChange(fresh=True))
        batch.add_event(job.stream, "operator", (before.health, DELETED), ACTION_MESSAGES["delete"], {})

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
        unknown = sorted({name for name in task.labels if name is not None and name not in self._classes})
        if unknown:
            raise BadInput(f"The classes of this service do not include {unknown[0]!r}; use their names, or null.")
        truth = {k: name for k, place in enumerate(note.places) if (name := task.labels[place]) is not None}
        new, counted = ([self._classes.get(name or "", -1) for name in names] for names in find_new_labels(note, truth))
        if new and self._compute.count_labels(resident.row, new, counted):
            resident.changed = self._durable
        record, note = add_labels(resident.record, note, truth)
        resident.record = record = batch.change(record.health, record)
        self._keep_notes(resident, {note.seq: note})
        batch.finish(job, record, StreamChange(record.store(), steps={note.seq: note.to_json()}))


class _CountedRequest:
    """A request of a service with ``--step N``, whose images are taken in parts up to the next step.

    More than N images may wait, if a service with a larger N stored them: the next image makes a step of all of them.
    """

    def __init__(self, turn: _Turn, size: int) -> None:
        self._turn, self.row, self.size = turn, turn.resident.row, size
        self.waiting = list(turn.resident.waiting)
        self.answers: list[RowAnswer] = []  # of its parts
        self._seq = turn.resident.record.seq + 1
        self._taken = 0
        self._last = _EMPTY
        self._frozen: dict[int, dict[int, int]] = {}  # answers of the frozen model, by request and place

    @property
    def is_left(self) -> bool:
        """Return True if there are images without an answer."""
        return self._taken < self._turn.job.images

    def take_part(self) -> Tensor:
        """Return the images up to the next step, which wait for it from now on."""
        count = max(1, self.size - len(self.waiting))
        part: Tensor = self._turn.job.task.images[self._taken : self._taken + count]
        for image in part:
            self.waiting.append(WaitingImage(image.clone(), self._seq, self._taken))
            self._taken += 1
        return part

    def note_step(self, answer: RowAnswer) -> None:
        """Note a step on the waiting images."""
        for place, kind in answer.frozen.items():
            image = self.waiting[place]
            self._frozen.setdefault(image.seq, {})[image.place] = kind
        self._last = replace(answer, events=self._last.events + answer.events)
        self.waiting = []

    def finish(self) -> None:
        """Give the turn the answers to all images, with the facts of the last step."""
        frozen = self._frozen.pop(self._seq, {})
        parts = ((part.logits, part.known, part.unknown) for part in self.answers)
        logits, known, unknown = (torch.cat(column) for column in zip(*parts, strict=True))
        self._turn.answer = replace(self._last, logits=logits, known=known, unknown=unknown, frozen=frozen)
        self._turn.earlier, self._turn.resident.waiting = self._frozen, self.waiting


def _may_adapt(job: Job, batch: Batch) -> bool:
    """Return True for a request that adapts its stream: it asks for it, and there is time and a store for it."""
    return bool(job.task.mode == "adapt") and batch.adapt and not job.overloaded


def _count_step(turn: _Turn) -> StreamRecord:
    record = turn.resident.record
    return replace(record, seq=record.seq + 1, images=record.images + turn.job.images)
