"""Runner: how a method runs. ``core/contract.py`` says what a method defines, ``core/state.py`` what a state is.

``step`` is a transaction: it takes the rows of the batch's streams from the state, calls ``adapt``, checks the result
and commits the streams that pass.
"""

from __future__ import annotations

import copy
import os
import threading
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lmr.core.card import Scores
from lmr.core.classifier import ZeroShot, is_dense, leave_autocast, leave_inference_mode
from lmr.core.contract import Contract
from lmr.core.errors import LmrError, WrongType
from lmr.core.known import Verdict, score_known
from lmr.core.log import LOGGER
from lmr.core.prediction import AdaptedParameters, Prediction, State
from lmr.core.saved import Saved
from lmr.core.spec import find_hints, format_spec, list_arguments
from lmr.core.state import (
    begin_rows,
    carry_rows,
    check_identity,
    check_rows,
    convert_rows,
    find_within,
    identify,
    move_together,
    put_rows,
)
from lmr.core.streams import StreamIds, Streams, choose_rows

# A lock for each method: threads that share one take turns. Kept outside, so that methods can be copied and pickled.
_LOCKS: WeakKeyDictionary[object, threading.RLock] = WeakKeyDictionary()
_REGISTRY = threading.Lock()


class Runner(Contract, Saved):
    """The running of a method, in the words of its contract."""

    def _start(self) -> None:
        """Prepare the method and begin its streams."""
        try:
            with leave_inference_mode(), leave_autocast(self.classifier.device):
                self.prepare()
                self.state: State = self.begin_rows(self.streams)
                self._placement = self.classifier.placement
        except (RuntimeError, OverflowError, MemoryError) as error:
            raise LmrError(
                f"The state of {self!r} does not fit in memory; use fewer streams or a smaller capacity. ({error})"
            ) from error

    # For users. Threads may share a method: each call holds the towers it uses.

    def step(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Adapt on this batch and answer it. With several streams, ``streams`` [B] gives the stream of each image.

        A method that ``takes_views`` makes views of each image, or takes given ones: images [B, V, ...], of which the
        first view is the image itself.

        With a threshold of ``unknown`` images, the frozen model scores all images first. Unknown ones are answered by
        it, and the method adapts on the others as if they were alone.
        """
        with self.session():
            images, batch = self.check(images, streams)
            with self.transaction(batch.active):
                verdict = self._judge(images, batch)
                if verdict is None:
                    logits, info = self._adapt_batch(images, batch)
                else:
                    logits, info = self._adapt_known(images, batch, verdict)
                answer = self._make_prediction(logits, verdict, info)
                answer.info["top_class_share"] = self._count_predictions(answer, batch)
            return answer

    def predict(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Answer with the present state and change nothing."""
        with self.session(), torch.no_grad():
            images, batch = self.check(images, streams)
            verdict = self._judge(images, batch)
            logits = self.answer(images, self._take(batch), batch)
            if verdict is not None:
                logits = choose_rows(verdict.unknown, verdict.logits, logits)
            return self._make_prediction(logits, verdict, {})

    def count_labels(
        self, labels: Sequence[int] | Tensor, streams: StreamIds = None, counted: Sequence[int] | Tensor | None = None
    ) -> bool:
        """Count true labels of images, where the method estimates class shares; return True if the state changed.

        ``labels`` [B] are the numbers of classes and ``streams`` [B] the streams that the images came from. ``counted``
        [B] are the answers that these labels replace in the counts, -1 where none was counted.

        Examples:
            >>> import lmr
            >>> clip = lmr.load().classifier(["cat", "dog", "ship"])
            >>> lmr.create("steady", clip).count_labels([0, 0, 2])
            True
            >>> lmr.create("lmr", clip).count_labels([0, 0, 2])  # it has no use for labels
            False
        """
        with self.session(), torch.no_grad():
            classes = self.classifier.classes, "numbers of classes"
            truth = read_whole(labels, 0, *classes)
            known = torch.full_like(truth, -1) if counted is None else read_whole(counted, -1, *classes)
            ids = self._read_ids([0] * len(truth) if streams is None and self.streams == 1 else streams)
            if not len(truth) == len(known) == len(ids):
                raise LmrError(
                    f"Expected a stream and a counted answer for each label, got {len(truth)} labels, {len(ids)} "
                    f"streams and {len(known)} answers."
                )
            batch = find_streams(ids, self.classifier.device)
            moved = move_together({"truth": truth, "known": known}, self.classifier.device)
            new = self.add_labels(moved["truth"], moved["known"], self._take(batch), batch)
            self._put(new, batch.active)
            return bool(new)

    def export_parameters(self, stream: int = 0) -> AdaptedParameters:
        """Return the present model of one stream as constants that need no method to run."""
        with self.session(), torch.no_grad():
            row = self.find_rows(stream)
            return self.export({key: value[row] for key, value in self.state.items()})

    def reset(self, streams: StreamIds = None) -> None:
        """Return all streams, or the named ones, to their start."""
        with self.session():
            rows = self.find_rows(streams)
            self._put(self.begin_rows(len(rows)), rows)

    def state_dict(self, streams: StreamIds = None) -> dict[str, Any]:
        """Return a copy of the state of all streams, or of the named ones, with the method and model it belongs to."""
        with self.session():
            rows = self.find_rows(streams)
            tensors = {key: value[rows].clone() for key, value in self.state.items()}
            return {**identify(self.spec, self.classifier), "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any], streams: StreamIds = None) -> None:
        """Load a state into all streams, or into the named ones. A state that does not fit changes nothing."""
        with self.session():
            rows = self.find_rows(streams)
            checked = self.check_rows(check_identity(state, self.spec, self.classifier), len(rows))
            self._put({key: value.clone() for key, value in checked.items()}, rows)

    def with_classes(self, classifier: ZeroShot) -> Self:
        """Return this method for other classes of the same model, with the states of all its streams.

        What the state keeps per class follows the name of the class: it stays for names that both have, and is that of
        a new stream, or the mean of the other classes, for new names. Norms and moments stay. Prompts may differ too.

        Examples:
            >>> import lmr, torch
            >>> backbone = lmr.load()
            >>> method = lmr.create("lmr", backbone.classifier(["cat", "dog"]))
            >>> _ = method.step(torch.randn(4, 3, 32, 32))
            >>> wider = method.with_classes(backbone.classifier(["dog", "ship", "cat"]))
            >>> wider.state["predicted"][0, [2, 0]].equal(method.state["predicted"][0]), wider.state["mass"].shape
            (True, torch.Size([1, 3]))
        """
        if not isinstance(classifier, ZeroShot):
            raise WrongType(f"Expected a classifier of the new classes, got {type(classifier).__name__}.")
        if classifier.fingerprint["backbone"] != self.classifier.fingerprint["backbone"]:
            raise LmrError("The classifier of the new classes has other weights than this method; load the same model.")
        values = {key: getattr(self, key) for key in list_arguments(type(self))}
        check_follows(self, values)
        make: Callable[..., Self] = type(self)
        new = make(classifier, streams=self.streams, unknown=self.unknown, **values)
        with self.session():
            new.state = self.carry(self.state, new)
        return new

    @property
    def spec(self) -> str:  # type: ignore[override]  # a wrapper takes it from its method
        """The spec string of the method: its name and every argument with its value."""
        return format_spec(self.name, {key: getattr(self, key) for key in list_arguments(type(self))})

    def __repr__(self) -> str:
        return self.spec if self.streams == 1 else f"{self.spec} x {self.streams} streams"

    # For wrappers: see core/wrapper.py.

    @contextmanager
    def session(self) -> Iterator[None]:
        """Keep other threads off the state, and leave a caller's inference mode and autocast.

        Where the classifier was moved since the last call, the state follows.
        """
        clip = self.classifier
        with hold(self), leave_inference_mode(), leave_autocast(clip.device):
            if self._placement != clip.placement:
                self.prepare()
                self.state = self.convert(self.state)
                self._placement = clip.placement
            yield

    @contextmanager
    def transaction(self, rows: Tensor) -> Iterator[None]:
        """Give the streams ``rows`` their old state back if this context raises: an answer and its update go together.

        What fails may be anything, such as a MemoryError or Ctrl-C after the update.
        """
        before = {key: value[rows] if self._is_written(key) else value for key, value in self.state.items()}
        try:
            yield
        except BaseException:
            self._put(before, rows)
            raise

    def _is_written(self, key: str) -> bool:
        """Return True for a tensor of the state that a step writes to, instead of replacing it."""
        return self.streams > 1 or key == "predicted"

    def check(self, images: Tensor, streams: StreamIds | Streams) -> tuple[Tensor, Streams]:
        """Return a checked batch and its streams. Streams that this has returned mark a checked batch."""
        if isinstance(streams, Streams):
            return images, streams
        if holds_views(self, images):
            self.classifier.check_views(images)
        else:
            self.classifier.check(images)
        images = images.detach().clone() if images.is_inference() else images.detach()
        if streams is None:
            if self.streams > 1:
                raise LmrError(f"This method serves {self.streams} streams; name them with step(images, streams=ids).")
            nothing = torch.zeros(len(images), dtype=torch.int64, device=images.device)
            return images, Streams(nothing[:1], nothing)
        ids = self._read_ids(streams)
        if ids.shape != (len(images),):
            raise LmrError(f"Expected one stream id for each of the {len(images)} images, got shape {list(ids.shape)}.")
        return images, find_streams(ids, images.device)

    def find_rows(self, streams: StreamIds) -> Tensor:
        """Return the numbers [n] of all streams, or of the named ones, each once."""
        if streams is None:
            return torch.arange(self.streams, device=self.classifier.device)
        rows = self._read_ids(streams)
        if len(set(rows.tolist())) != len(rows):
            raise LmrError(f"Expected every stream once, got {streams!r}.")
        return rows.to(self.classifier.device)

    def begin_rows(self, streams: int) -> State:
        """Return the state [streams, ...] of new streams."""
        start = dict(self.begin())
        start["predicted"] = torch.zeros(self.classifier.classes, dtype=torch.int64)
        return begin_rows(start, streams, self.classifier.device)

    def convert(self, tensors: Mapping[str, Tensor]) -> State:
        """Return the tensors of a state where the classifier is now, in the types they would begin with there."""
        return convert_rows(tensors, self.begin_rows(1))

    def check_rows(self, tensors: Mapping[str, Tensor], rows: int) -> Mapping[str, Tensor]:
        """Return the tensors of a state of so many streams; refuse a state that does not fit.

        Names that begin with "_" are of wrappers that only save work; they are left out.
        """
        tensors = {key: value for key, value in tensors.items() if not key.startswith("_")}
        if wrappers := sorted({key.partition("/")[0] for key in tensors if "/" in key}):
            raise LmrError(
                f"The state is that of a method in a wrapper ({', '.join(wrappers)}); load it into that wrapper, such "
                "as lmr.Watched(method), instead."
            )
        check_rows(tensors, self.state, rows, self.ranges(tensors), self.name, self.grows)
        return tensors

    def stand_in(self, names: Sequence[str], digest: str, streams: int) -> Self:
        """Return a copy of this method with new streams of other classes, which holds states but cannot step."""
        check_follows(self, {})
        other = copy.copy(self)
        other.classifier, other.streams = self.classifier.stand_in(names, digest), streams
        other.state = other.begin_rows(streams)
        return other

    def carry(self, tensors: Mapping[str, Tensor], new: Self) -> State:
        """Return the tensors [n, ...] of a state of this method for the classes of ``new``."""
        names = self.classifier.names
        wider = self.stand_in([*names, ""], "", 1).state
        return carry_rows(tensors, new.begin_rows(1), wider, (names, new.classifier.names), self.class_sums)

    # The transaction of a step.

    def _take(self, batch: Streams) -> State:
        """Return the rows [A, ...] of the batch's streams. A single row is the state itself: never write to it."""
        tensors = {key: value for key, value in self.state.items() if key != "predicted"}
        return tensors if self.streams == 1 else {key: value[batch.active] for key, value in tensors.items()}

    def _put(self, tensors: Mapping[str, Tensor], rows: Tensor) -> None:
        """Make these tensors the state of the streams ``rows``."""
        put_rows(self.state, tensors, rows, self.streams)

    def _adapt_batch(self, images: Tensor, batch: Streams) -> tuple[Tensor, dict[str, Any]]:
        """Adapt on a checked batch, commit the streams that pass, and return logits [B, C] and the info."""
        old = self._take(batch)
        step = self.adapt(images, old, batch)
        logits, ranges = step.logits, self.ranges(step.state)
        usable = torch.ones_like(batch.active, dtype=torch.bool)
        for key, value in step.state.items():
            usable = usable & find_within(value, *ranges.get(key, (None, None)))
        valid = usable & batch.all(logits.isfinite().all(1))
        new = {key: value for key, value in step.state.items() if key in old}
        several = self.streams > 1
        info = summarise({**step.info, **self.describe(old | new), "finite": valid}, batch, several=several)
        if not info["finite"]:
            logits = self._answer_invalid(images, old, batch, logits, usable)
            new = {key: choose_rows(valid, value, old[key]) for key, value in new.items()} if valid.any() else {}
            facts = {**step.info, **self.describe(old | new), "finite": valid}
            if "stepped" in facts:
                facts["stepped"] = facts["stepped"] & valid
            info = summarise(facts, batch, several=several)
        self._put(new, batch.active)
        return logits, info

    def _judge(self, images: Tensor, batch: Streams) -> Verdict | None:
        """Return the scores of a checked batch and which images are unknown; None without a threshold."""
        if self.unknown is None:
            return None
        with torch.no_grad():
            logits = self.classifier(choose_first(self, images))
            scores = score_known(logits)
            return Verdict(logits, scores, scores < self.unknown)

    def _adapt_known(self, images: Tensor, batch: Streams, verdict: Verdict) -> tuple[Tensor, dict[str, Any]]:
        """Adapt on the images that are not unknown, as if they were alone; return logits of all, and the info.

        Streams with unknown images only are left as they are.
        """
        known = (~verdict.unknown).nonzero()[:, 0]
        if len(known) == len(images):
            return self._adapt_batch(images, batch)
        idle: dict[str, Any] = {"stepped": False, "finite": True}
        logits, info = verdict.logits, idle
        present = torch.zeros_like(batch.active, dtype=torch.bool)
        if len(known):
            active, index = torch.unique(batch.index[known], return_inverse=True)
            present[active] = True
            some, info = self._adapt_batch(images[known], Streams(batch.active[active], index))
            logits = logits.to(some.dtype).index_put((known,), some.detach())
        if self.streams > 1:
            others = {number: dict(idle) for number in batch.active[~present].tolist()}
            info = info | {"streams": info.get("streams", {}) | others}
        return logits, dict(info)

    def _make_prediction(self, logits: Tensor, verdict: Verdict | None, info: dict[str, Any]) -> Prediction:
        scores, unknown = (None, None) if verdict is None else (verdict.scores, verdict.unknown)
        return Prediction(logits, info, self.classifier.names, scores, unknown)

    def _answer_invalid(self, images: Tensor, old: State, batch: Streams, logits: Tensor, usable: Tensor) -> Tensor:
        """Return logits in which invalid answers are replaced: those of streams whose state is not ``usable`` [A].

        A stream that remembers is answered with its old state. Images without a finite answer even then, and those of
        methods that remember nothing, are answered by the frozen classifier.
        """
        logits = logits.detach().clone()
        with torch.no_grad():
            invalid = ~batch.repeat(usable) | ~logits.isfinite().all(1)
            if self.memory_span == "stream":
                samples = batch.repeat(~batch.all(~invalid))
                logits[samples] = self.answer(images[samples], old, batch.take(samples))
                invalid = ~logits.isfinite().all(1)
            if bool(invalid.any()):
                LOGGER.info("%s: %d of %d answers are not valid", self.name, int(invalid.sum()), len(invalid))
                frozen = self.classifier(choose_first(self, images[invalid]))
                logits[invalid] = frozen if self.scores is Scores.COSINES else frozen.log_softmax(1)
        return logits

    def _count_predictions(self, answer: Prediction, batch: Streams) -> float:
        """Count the classes of an answer, and return the share of each stream's most predicted class, averaged."""
        counted = answer.logits.isfinite().all(1)
        if answer.unknown is not None:
            counted &= ~answer.unknown
        places = batch.repeat(batch.active), answer.labels
        self.state["predicted"].index_put_(places, counted.long(), accumulate=True)
        counts = self.state["predicted"][batch.active].double()
        return (counts.amax(1) / counts.sum(1).clamp(min=1)).mean().item()

    def _read_ids(self, streams: StreamIds) -> Tensor:
        ids = [streams] if isinstance(streams, int) else streams
        return read_whole(ids, 0, self.streams, "stream ids")


def check_follows(method: Runner, values: Mapping[str, Any]) -> None:
    """Refuse to change the classes of a method whose state or arguments cannot follow."""
    if method.classes_reason:
        raise LmrError(f"{method.name} cannot change its classes: {method.classes_reason}; start a new one.")
    hints = find_hints(type(method))
    for key, value in values.items():
        kinds = (hints[key], *typing.get_args(hints[key]))
        if isinstance(value, tuple) and any(typing.get_args(kind)[1:] == (...,) for kind in kinds):
            raise LmrError(
                f"{method.name} cannot change its classes: {key!r} has a number for each of the old ones; start a "
                "new one with numbers for the new classes."
            )


def holds_views(method: Runner, images: Tensor) -> bool:
    """Return whether images are given views [B, V, ...] of images."""
    return method.takes_views and method.classifier.holds_views(images)


def choose_first(method: Runner, images: Tensor) -> Tensor:
    """Return the images themselves: the first of given views, which every method with views takes as the image."""
    return images[:, 0] if holds_views(method, images) else images


def find_streams(ids: Tensor, device: torch.device) -> Streams:
    """Return the streams of a batch on a device, from the stream id [B] of each sample on the CPU."""
    active, index = torch.unique(ids, return_inverse=True)
    return Streams(**move_together({"active": active, "index": index}, device))


def read_whole(values: Any, low: int, end: int, what: str) -> Tensor:
    """Return whole numbers from ``low`` to below ``end`` as a tensor [n] on the CPU; refuse anything else."""

    def refuse() -> LmrError:
        return LmrError(f"Expected a list of {what} from {low} to {end - 1}, got {values!r}.")

    try:
        numbers = torch.as_tensor(values).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise refuse() from error
    whole = not numbers.is_floating_point() and not numbers.is_complex() and numbers.dtype != torch.bool
    plain = whole and is_dense(numbers) and numbers.ndim == 1 and len(numbers) > 0
    if not plain or bool(((numbers < low) | (numbers >= end)).any()):
        raise refuse()
    return numbers.long()


def summarise(facts: Mapping[str, Tensor], batch: Streams, *, several: bool) -> dict[str, Any]:
    """Return the info of a batch from facts [A] about its streams, in plain Python values.

    Over the streams, counts are added and other numbers averaged; a bool is true if it is for any stream, "finite" if
    it is for all. A method of several streams also gives the facts of each one, in ``info["streams"]``.
    """
    fetched = move_together({**facts, "": batch.active}, torch.device("cpu"))
    columns = {key: value.tolist() for key, value in fetched.items()}
    numbers = columns.pop("")
    info: dict[str, Any] = {}
    for key, column in columns.items():
        if isinstance(column[0], bool):
            info[key] = all(column) if key == "finite" else any(column)
        else:
            total = sum(column)
            info[key] = total / len(column) if isinstance(column[0], float) else total
    if several:
        info["streams"] = {
            number: {key: column[k] for key, column in columns.items()} for k, number in enumerate(numbers)
        }
    return info


def join_info(info: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info of a batch with more of it, also in the facts of each stream."""
    streams: dict[int, dict[str, Any]] = more.get("streams", {})
    both = {**info, **more}
    if streams:
        before = info.get("streams", {})
        both["streams"] = before | {number: before.get(number, {}) | facts for number, facts in streams.items()}
    return both


def hold(method: Runner) -> AbstractContextManager[bool]:
    """Return a context within which no other thread holds ``method``; a thread may hold it several times."""
    with _REGISTRY:
        return _LOCKS.setdefault(method, threading.RLock())


def _forget_locks() -> None:
    """Let a forked process begin without locks: the threads that held them exist in its parent alone."""
    global _REGISTRY
    _REGISTRY = threading.Lock()
    _LOCKS.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_forget_locks)
