"""Method: the contract of every test-time adaptation method.

A step is a pure function from a batch and a state to an answer and a new state. The base class does the rest: it takes
the rows of the batch's streams from the state, calls ``adapt``, checks the result and commits it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from lmr.core.card import Card, Emission, Scores, Tower
from lmr.core.classifier import ZeroShot, is_dense, leave_autocast, leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.functional.prior import share_names
from lmr.core.known import (
    BLOCK,
    BLOCK_SCORES,
    KEPT,
    SCORES,
    THRESHOLD,
    Unknown,
    Verdict,
    begin_scores,
    check_unknown,
    judge,
    score_known,
)
from lmr.core.locks import hold
from lmr.core.log import LOGGER
from lmr.core.placement import Device
from lmr.core.prediction import AdaptedParameters, Prediction, State, Step
from lmr.core.spec import convert, find_hints, format_spec
from lmr.core.state import Saved, carry_classes, convert_tensor, find_tensors, find_within, number_names, read_names
from lmr.core.streams import StreamIds, Streams, choose_rows

Ranges = dict[str, tuple[float | None, float | None]]  # smallest and largest value of state tensors; None: any finite
COUNTS: tuple[float, float] = (0, 2**53)  # the range of counts
SHARES: tuple[float, float] = (0, 1.001)  # the range of shares and probabilities, with room for rounding
Phase = Literal["quiet", "looking", "adapting"]  # as the frozen model; the same, after a change; adapting
UNIT: tuple[float, float] = (-1.001, 1.001)  # the range of unit vectors, their means and cosines


@dataclass(kw_only=True, eq=False, repr=False)
class Method(Saved):
    """Base of all methods. A method adapts only in ``step``, and sees labels only in ``count_labels``.

    A subclass is one file with one decorated class. Its annotated fields are its arguments. ``begin`` returns the state
    of a new stream, ``adapt`` maps a batch and a state to a ``Step``, ``answer`` computes logits without adapting.

    ``step`` is a transaction. A stream whose logits or new state are not finite, or whose state leaves its ``ranges``,
    keeps its old state and is answered with it; the other streams of the batch go on.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("centred")
        ... class Centred(lmr.Method):
        ...     'Subtract the running mean of the logits of each stream.'
        ...
        ...     memory: float = 0.9
        ...
        ...     def begin(self):
        ...         return {"mean": torch.zeros(self.classifier.classes)}
        ...
        ...     def adapt(self, images, state, streams):
        ...         logits = self.answer(images, state, streams)
        ...         mean = state["mean"] + (1 - self.memory) * streams.mean(logits)
        ...         return lmr.Step(logits, {"mean": mean})
        ...
        ...     def answer(self, images, state, streams):
        ...         return self.classifier(images) - streams.spread(state["mean"])
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star", "green heart"])
        >>> method = lmr.create("centred(memory=0.5)", clip)
        >>> images = torch.randn(8, 3, 32, 32)
        >>> method.step(images).logits.shape
        torch.Size([8, 3])
        >>> method
        centred(memory=0.5)
    """

    name: ClassVar[str]  # set by ``register``, as is the card
    card: ClassVar[Card] = Card()
    towers: ClassVar[tuple[Tower, ...]] = ()  # the towers that it adapts
    trained: ClassVar[Literal["norms", "context words"]] = "norms"  # the parameters of these towers that it adapts
    memory_span: ClassVar[Literal["stream", "batch", "image"]] = "stream"  # how long it keeps what it has learnt
    emission: ClassVar[Emission] = "before"  # answers before or after the batch's own update; see ``emits``
    scores: ClassVar[Scores] = Scores.COSINES
    single_stream_reason: ClassVar[str] = ""  # why it serves one stream only; empty if it serves many
    export_reason: ClassVar[str] = "it does not define '_export'"  # why it cannot be exported
    classes_reason: ClassVar[str] = ""  # why its state cannot follow other classes; empty if it can
    class_sums: ClassVar[tuple[str, ...]] = ()  # state tensors [C] in which a new class begins with the others' mean
    needs_images: ClassVar[bool] = True  # False: images are only passed to the classifier, so tokens will do
    takes_views: ClassVar[bool] = False  # ``step`` also takes given views [B, V, ...] of each image, the image first
    grows: ClassVar[tuple[str, ...]] = ()  # state tensors [1, n, ...] whose n grows with the stream

    classifier: ZeroShot = dataclasses.field(kw_only=False)
    streams: int = 1
    unknown: Unknown = None  # the score below which an image belongs to no class; "auto": chosen for each stream

    def __post_init__(self) -> None:
        hints = find_hints(type(self))
        for key in list_arguments(type(self)):
            value = getattr(self, key)
            if isinstance(value, Mapping):  # numbers by class name
                value = share_names(value, self.classifier.names)
            setattr(self, key, convert(value, hints[key], f"{key!r} of {self.name}"))
            self._check_size(key)
        self.streams = convert(self.streams, int, "the number of streams")
        self.unknown = check_unknown(self.unknown)
        if self.streams < 1:
            raise LmrError(f"Expected a number of streams of at least 1, got {self.streams!r}.")
        if self.streams > 1 and self.single_stream_reason:
            raise LmrError(
                f"{self.name} serves one stream ({self.single_stream_reason}); create one {self.name} per stream."
            )
        try:
            with leave_inference_mode(), leave_autocast(self.classifier.device):
                self.prepare()
                self.state: State = self._begin_streams(self.streams)
                self._placement = self.classifier.device, self.classifier.prototypes.dtype
        except (RuntimeError, OverflowError, MemoryError) as error:
            raise LmrError(
                f"The state of {self!r} does not fit in memory; use fewer streams or a smaller capacity. ({error})"
            ) from error

    # The contract: what a method defines.

    def prepare(self) -> None:
        """Check the arguments and build what the method works with; called again if the classifier was moved."""

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the state of one new stream: tensors, or numbers for counts."""
        return {}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Adapt on a checked batch and answer it, without changing ``state``: rows [A, ...] of its streams."""
        raise NotImplementedError

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits [B, C] of a checked batch with the rows [A, ...] of a state."""
        return self.classifier(images)

    def add_labels(self, labels: Tensor, counted: Tensor, state: State, streams: Streams) -> State:
        """Return the tensors of ``state`` that change with true labels [B], or none if labels change nothing.

        ``counted`` [B] are the labels that the method itself counted for these images, -1 where that is not known.
        """
        return {}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the range of values of the tensors of ``state``; tensors without one may hold any finite value."""
        return {"predicted": COUNTS, SCORES: (0, None), BLOCK_SCORES: (0, BLOCK), THRESHOLD: (0, 1)}

    def fit_source(self, batches: Iterable[Tensor]) -> None:
        """Learn from batches of clean images before the stream starts; ``reset`` keeps the result."""

    def _export(self, state: State) -> AdaptedParameters:
        """Return what ``answer`` computes with the state [1, ...] of one stream, as copies."""
        raise LmrError(f"{self.name} cannot be exported: {self.export_reason}.")

    def _describe(self, state: State) -> Mapping[str, Tensor]:
        """Return facts [A] about the rows of a committed state, for ``info``."""
        return {}

    # Facts that benchmarks and listings read.

    @classmethod
    def choose_values(cls, classes: int) -> dict[str, Any]:
        """Return arguments that suit this number of classes better than the defaults; preset "auto" applies them."""
        return {}

    @property
    def emits(self) -> Emission:
        """The answer that ``step`` gives: from before or after the batch's own update."""
        emission: Emission = getattr(self, "emit", self.emission)
        return emission

    @property
    def trainable(self) -> int:
        """The number of model parameters that one stream adapts."""
        return 0

    @property
    def margin_width(self) -> float:
        """The width, in cosines, of the candidate set against which local margins are measured."""
        return 0.03

    @property
    def cycle(self) -> int:
        """The number of images of a stream after which the work repeats; 1 if all steps are alike."""
        return 1

    def fill_state(self, images: Tensor) -> None:
        """Fill the state as after a long stream of such images, where that decides what a step costs."""

    def logit_offset(self) -> Tensor | None:
        """Return the part of the present logits that is not similarity: [streams, C], or None."""
        return None

    def logit_floor(self) -> float | None:
        """Return the logit of probability 0, for methods whose logits have a floor."""
        return None

    # The interface for users. Threads may share a method: each call holds the towers it uses.

    def step(self, images: Tensor, streams: StreamIds = None) -> Prediction:
        """Adapt on this batch and answer it. With several streams, ``streams`` [B] gives the stream of each image.

        A method that ``takes_views`` makes views of each image, or takes given ones: images [B, V, ...], of which the
        first view is the image itself.

        With a threshold of ``unknown`` images, the frozen model scores all images first. Unknown ones are answered by
        it, and the method adapts on the others as if they were alone.
        """
        with self._session():
            images, batch = self._check(images, streams)
            verdict = self._judge(images, batch)
            if verdict is None:
                logits, info = self._adapt_batch(images, batch)
            else:
                logits, info = self._adapt_known(images, batch, verdict)
                self._replace(verdict.state, batch.active)
            answer = self._make_prediction(logits, verdict, info)
            answer.info["top_class_share"] = self._count_predictions(answer, batch)
            return answer

    def predict(self, images: Tensor, streams: StreamIds = None) -> Prediction:
        """Answer with the present state and change nothing."""
        with self._session(), torch.no_grad():
            images, batch = self._check(images, streams)
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
            >>> clip = lmr.load("pocket").classifier(["red ring", "blue star", "green heart"])
            >>> lmr.create("steady", clip).count_labels([0, 0, 2])
            True
            >>> lmr.create("lmr", clip).count_labels([0, 0, 2])  # it has no use for labels
            False
        """
        with self._session(), torch.no_grad():
            classes = self.classifier.classes, "numbers of classes"
            truth = self._read_whole(labels, 0, *classes)
            known = torch.full_like(truth, -1) if counted is None else self._read_whole(counted, -1, *classes)
            ids = self._ids([0] * len(truth) if streams is None and self.streams == 1 else streams)
            if not len(truth) == len(known) == len(ids):
                raise LmrError(
                    f"Expected a stream and a counted answer for each label, got {len(truth)} labels, {len(ids)} "
                    f"streams and {len(known)} answers."
                )
            batch = Streams(*torch.unique(ids, return_inverse=True))
            new = self.add_labels(truth, known, self._take(batch), batch)
            self._replace(new, batch.active)
            return bool(new)

    def phases(self) -> list[Phase] | None:
        """Return what each stream does now, for methods that do not always adapt; None for the others."""
        return None

    def as_module(self) -> nn.Module:
        """Return an ``nn.Module`` whose ``forward(images)`` adapts on the batch and returns its logits.

        Examples:
            >>> import lmr, torch
            >>> method = lmr.create("tent", lmr.load("pocket").classifier(["red ring", "blue star"]))
            >>> model = method.as_module()
            >>> model(torch.randn(4, 3, 32, 32)).shape
            torch.Size([4, 2])
            >>> model.reset()
        """
        return MethodModule(self)

    def export_parameters(self, stream: int = 0) -> AdaptedParameters:
        """Return the present model of one stream as constants that need no method to run."""
        with self._session(), torch.no_grad():
            row = self._rows(stream)
            return self._export({key: value[row] for key, value in self.state.items()})

    def reset(self, streams: StreamIds = None) -> None:
        """Return all streams, or the named ones, to their start."""
        with self._session():
            rows = self._rows(streams)
            self._replace(self._begin_streams(len(rows)), rows)

    def to(self, device: Device | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move the classifier as ``ZeroShot.to`` does, and the state with it, in place.

        The state is never below float32. Other methods on the same classifier follow at their next call.
        """
        self.classifier.to(device, dtype)
        with self._session():
            return self

    def with_classes(self, classifier: ZeroShot) -> Self:
        """Return this method for other classes of the same model, with the states of all its streams.

        What the state keeps per class follows the name of the class: it stays for names that both have, and is that of
        a new stream, or the mean of the other classes, for new names. Norms and moments stay. Prompts may differ too.

        Examples:
            >>> import lmr, torch
            >>> backbone = lmr.load("pocket")
            >>> method = lmr.create("lmr", backbone.classifier(["red ring", "blue star"]))
            >>> _ = method.step(torch.randn(4, 3, 32, 32))
            >>> wider = method.with_classes(backbone.classifier(["blue star", "green heart", "red ring"]))
            >>> wider.state["predicted"][0, [2, 0]].equal(method.state["predicted"][0]), wider.state["mass"].shape
            (True, torch.Size([1, 3]))
        """
        if not isinstance(classifier, ZeroShot):
            raise LmrError(f"Expected a classifier of the new classes, got {type(classifier).__name__}.")
        if classifier.fingerprint["backbone"] != self.classifier.fingerprint["backbone"]:
            raise LmrError("The classifier of the new classes has other weights than this method; load the same model.")
        values = {key: getattr(self, key) for key in list_arguments(type(self))}
        self._check_follows(values)
        new = type(self)(classifier, streams=self.streams, unknown=self.unknown, **values)
        with self._session():
            new.state = self._carry(self.state, new)
        return new

    def adopt(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of other classes as one of the classes of this method, as ``with_classes`` carries it over."""
        with self._session():
            if not isinstance(state, Mapping) or state.get("classes") == self.classifier.fingerprint["classes"]:
                return state
            old = self._stand_in_for(state)
            old.load_state_dict(state)
            return {**self._identify(), "tensors": old._carry(old.state, self)}

    def state_dict(self, streams: StreamIds = None) -> dict[str, Any]:
        """Return a copy of the state of all streams, or of the named ones, with the method and model it belongs to."""
        with self._session():
            rows = self._rows(streams)
            tensors = {key: value[rows].clone() for key, value in self.state.items()}
            return {**self._identify(), "tensors": tensors}

    def _identify(self) -> dict[str, str]:
        """Return what a state belongs to: the spec of the method, digests of model and classes, and the class names."""
        return {"spec": self.spec, **self.classifier.fingerprint, "names": json.dumps(self.classifier.names)}

    def load_state_dict(self, state: Mapping[str, Any], streams: StreamIds = None) -> None:
        """Load a state into all streams, or into the named ones. A state that does not fit changes nothing."""
        with self._session():
            rows = self._rows(streams)
            checked = self._check_state(state, len(rows))
            self._replace({key: value.clone() for key, value in checked.items()}, rows)

    @property
    def spec(self) -> str:
        """The spec string of the method: its name and every argument with its value."""
        return format_spec(self.name, {key: getattr(self, key) for key in list_arguments(type(self))})

    def __repr__(self) -> str:
        return self.spec if self.streams == 1 else f"{self.spec} x {self.streams} streams"

    # The transaction.

    def _begin_streams(self, streams: int) -> State:
        """Return the state of new streams: tensors [streams, ...]."""
        device = self.classifier.device
        one = {key: torch.as_tensor(value, device=device) for key, value in self.begin().items()}
        if self.unknown == "auto":
            one |= begin_scores(self.classifier.prototypes)
        state = {key: value.unsqueeze(0).repeat(streams, *[1] * value.ndim) for key, value in one.items()}
        return state | {"predicted": torch.zeros(streams, self.classifier.classes, dtype=torch.int64, device=device)}

    def _take(self, batch: Streams) -> State:
        """Return the rows [A, ...] of the batch's streams. A single row is the state itself: never write to it."""
        own = {key: value for key, value in self.state.items() if key != "predicted" and key not in KEPT}
        return own if self.streams == 1 else {key: value[batch.active] for key, value in own.items()}

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
        if not bool(valid.all()):
            logits = self._answer_invalid(images, old, batch, logits, usable)
            new = {key: choose_rows(valid, value, old[key]) for key, value in new.items()} if valid.any() else {}
        self._replace(new, batch.active)
        facts = {**step.info, **self._describe(old | new), "finite": valid}
        if "stepped" in facts:
            facts["stepped"] = facts["stepped"] & valid
        return logits, self._summarise(facts, batch)

    def _judge(self, images: Tensor, batch: Streams) -> Verdict | None:
        """Return the scores of a checked batch and which images are unknown; None without a threshold."""
        if self.unknown is None:
            return None
        with torch.no_grad():
            logits = self.classifier(self._choose_first(images))
            scores = score_known(logits)
            if self.unknown != "auto":
                return Verdict(logits, scores, scores < self.unknown, {})
            rows = {key: self.state[key][batch.active] for key in KEPT}
            return Verdict(logits, scores, *judge(scores, rows, batch))

    def _adapt_known(self, images: Tensor, batch: Streams, verdict: Verdict) -> tuple[Tensor, dict[str, Any]]:
        """Adapt on the images that are not unknown, as if they were alone; return logits of all, and the info.

        Streams with unknown images only are left as they are.
        """
        known = ~verdict.unknown
        if bool(known.all()):
            return self._adapt_batch(images, batch)
        idle: dict[str, Any] = {"stepped": False, "finite": True}
        logits, info = verdict.logits, idle
        present = torch.zeros_like(batch.active, dtype=torch.bool)
        if bool(known.any()):
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
            invalid = ~batch.spread(usable) | ~logits.isfinite().all(1)
            if self.memory_span == "stream":
                samples = batch.spread(~batch.all(~invalid))
                logits[samples] = self.answer(images[samples], old, batch.take(samples))
                invalid = ~logits.isfinite().all(1)
            if bool(invalid.any()):
                LOGGER.info("%s: %d of %d answers are not valid", self.name, int(invalid.sum()), len(invalid))
                frozen = self.classifier(self._choose_first(images[invalid]))
                logits[invalid] = frozen if self.scores is Scores.COSINES else frozen.log_softmax(1)
        return logits

    def _replace(self, tensors: Mapping[str, Tensor], rows: Tensor) -> None:
        """Make these tensors the state of the streams ``rows``."""
        device = self.classifier.device
        for key, value in tensors.items():
            if self.streams == 1:
                self.state[key] = value.detach().to(device)
            else:
                self.state[key][rows] = value.to(device)

    def _count_predictions(self, answer: Prediction, batch: Streams) -> float:
        """Count the classes of an answer, and return the share of each stream's most predicted class, averaged."""
        counted = answer.logits.isfinite().all(1)
        if answer.unknown is not None:
            counted &= ~answer.unknown
        rows = batch.active[batch.index[counted]]
        self.state["predicted"].index_put_((rows, answer.labels[counted]), torch.ones_like(rows), accumulate=True)
        counts = self.state["predicted"][batch.active].cpu().double()
        return (counts.amax(1) / counts.sum(1).clamp(min=1)).mean().item()

    def _summarise(self, facts: Mapping[str, Tensor], batch: Streams) -> dict[str, Any]:
        """Return the info of a batch from facts [A] about its streams, in plain Python values.

        Over the streams, counts are added and other numbers averaged; a bool is true if it is for any stream, "finite"
        if it is for all. A method of several streams also gives the facts of each one, in ``info["streams"]``.
        """
        columns = {key: value.tolist() for key, value in facts.items()}
        info: dict[str, Any] = {}
        for key, value in facts.items():
            if value.dtype == torch.bool:
                info[key] = all(columns[key]) if key == "finite" else any(columns[key])
            else:
                total = sum(columns[key])
                info[key] = total / len(columns[key]) if value.is_floating_point() else total
        if self.streams > 1:
            info["streams"] = {
                number: {key: column[k] for key, column in columns.items()}
                for k, number in enumerate(batch.active.tolist())
            }
        return info

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Keep other threads off the towers and the state, and leave a caller's inference mode and autocast.

        Always both towers: a method that acquired the text tower only when it needs it could wait for another method
        that waits for it. Where the classifier was moved since the last call, the state follows.
        """
        clip = self.classifier
        with hold(clip.encoder, *clip.text_towers), leave_inference_mode(), leave_autocast(clip.device):
            if self._placement != (clip.device, clip.prototypes.dtype):
                self.prepare()
                self.state = self._convert_state(self.state)
                self._placement = clip.device, clip.prototypes.dtype
            yield

    # Checks and the state.

    def _require_not_negative(self, *keys: str) -> None:
        """Refuse arguments that are negative or not finite; for ``prepare``."""
        for key in keys:
            value = getattr(self, key)
            if not 0 <= value < math.inf:
                raise LmrError(f"Expected {key!r} of {self.name} to be finite and not negative, got {value}.")

    def _require_between(self, low: float, high: float, *keys: str) -> None:
        """Refuse arguments outside of [low, high]; for ``prepare``."""
        for key in keys:
            if not low <= getattr(self, key) <= high:
                raise LmrError(f"Expected {key!r} of {self.name} from {low:g} to {high:g}, got {getattr(self, key)}.")

    def _require_count(self, *keys: str, most: int = 1000) -> None:
        """Refuse numbers of repetitions or entries that are not sensible; for ``prepare``."""
        for key in keys:
            if not 1 <= getattr(self, key) <= most:
                raise LmrError(f"Expected {key!r} of {self.name} from 1 to {most}, got {getattr(self, key)}.")

    def _check_size(self, key: str) -> None:
        """Refuse finite arguments that the model's precision, or a whole number of the machine, cannot hold."""
        value = getattr(self, key)
        largest = torch.finfo(self.classifier.prototypes.dtype).max
        for part in value if isinstance(value, tuple) else (value,):
            limit = largest if isinstance(part, float) else 2**62
            if isinstance(part, int | float) and limit < abs(part) < math.inf:
                raise LmrError(f"Expected {key!r} of {self.name} from {-limit:.0e} to {limit:.0e}, got a value beyond.")

    def _convert_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a state where the classifier is now, in the types they would begin with there."""
        like = self._begin_streams(1)
        return {key: convert_tensor(value, like[key]) for key, value in tensors.items()}

    def _check(self, images: Tensor, streams: StreamIds) -> tuple[Tensor, Streams]:
        if self._holds_views(images):
            self.classifier.check_views(images)
        else:
            self.classifier.check(images)
            if self.needs_images and self.classifier.is_embedded(images):
                raise LmrError(f"{self.name} needs the images themselves, got their tokens {list(images.shape)}.")
        images = images.detach().clone() if images.is_inference() else images.detach()
        if streams is None:
            if self.streams > 1:
                raise LmrError(f"This method serves {self.streams} streams; name them with step(images, streams=ids).")
            nothing = torch.zeros(len(images), dtype=torch.int64, device=images.device)
            return self._embed(images), Streams(nothing[:1], nothing)
        ids = self._ids(streams)
        if ids.shape != (len(images),):
            raise LmrError(f"Expected one stream id for each of the {len(images)} images, got shape {list(ids.shape)}.")
        active, index = torch.unique(ids, return_inverse=True)
        return self._embed(images), Streams(active, index)

    def _holds_views(self, images: Tensor) -> bool:
        return self.takes_views and self.classifier.holds_views(images)

    def _choose_first(self, images: Tensor) -> Tensor:
        """Return the images themselves: the first of given views, which every method with views takes as the image."""
        return images[:, 0] if self._holds_views(images) else images

    def _embed(self, images: Tensor) -> Tensor:
        """Return the input of all passes of a step: tokens, computed once, where the encoder has them."""
        return images if self.needs_images else self.classifier.embed(images)

    def _ids(self, streams: StreamIds) -> Tensor:
        return self._read_whole([streams] if isinstance(streams, int) else streams, 0, self.streams, "stream ids")

    def _read_whole(self, given: Any, low: int, end: int, what: str) -> Tensor:
        """Return whole numbers from ``low`` to below ``end`` as a tensor [n]; refuse anything else."""
        message = f"Expected a list of {what} from {low} to {end - 1}, got {given!r}."
        try:
            found = torch.as_tensor(given, device=self.classifier.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise LmrError(message) from error
        whole = not found.is_floating_point() and not found.is_complex() and found.dtype != torch.bool
        plain = whole and is_dense(found) and found.ndim == 1 and len(found) > 0
        if not plain or bool(((found < low) | (found >= end)).any()):
            raise LmrError(message)
        return found.long()

    def _rows(self, streams: StreamIds) -> Tensor:
        if streams is None:
            return torch.arange(self.streams, device=self.classifier.device)
        rows = self._ids(streams)
        if len(set(rows.tolist())) != len(rows):
            raise LmrError(f"Expected every stream once, got {streams!r}.")
        return rows

    def _check_state(self, state: Mapping[str, Any], rows: int) -> Mapping[str, Tensor]:
        """Return the tensors of a state of this number of streams; refuse a state that does not fit."""
        if isinstance(state, Mapping) and "watch" in state:
            raise LmrError("The state is that of a watched method; load it into lmr.Watched(method) instead.")
        tensors = self._complete_scores(self._check_identity(state))
        if set(tensors) != set(self.state):
            wrong = ", ".join(sorted(set(tensors) ^ set(self.state)))
            raise LmrError(f"The state does not have the tensors of {self.name}: {wrong} is missing or unexpected.")
        self._check_fit(tensors, rows)
        return tensors

    def _complete_scores(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a state that was made with or without a chosen threshold, for this method."""
        found, count = dict(tensors), tensors.get("predicted")
        if self.unknown != "auto":
            return {key: value for key, value in found.items() if key not in KEPT}
        if not any(key in found for key in KEPT) and isinstance(count, Tensor) and count.ndim:
            start = begin_scores(self.classifier.prototypes)
            found |= {key: value.unsqueeze(0).repeat(len(count), *[1] * value.ndim) for key, value in start.items()}
        return found

    def _check_identity(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return the tensors of a state; refuse a state of another method, model or classes."""
        tensors = find_tensors(state)
        if state.get("spec") != self.spec:
            raise LmrError(f"The state belongs to {state.get('spec')}, not to {self.spec}; create that one.")
        for part, word in (("backbone", "weights"), ("classes", "classes or prompts")):
            if state.get(part) != self.classifier.fingerprint[part]:
                hint = ", adopt it (--adopt)" if part == "classes" else ""
                raise LmrError(
                    f"The state was made with other {word} than this method has; load those{hint}, or start without it."
                )
        return tensors

    def _check_fit(self, tensors: Mapping[str, Tensor], rows: int) -> None:
        """Refuse tensors that this method could not continue with."""
        for key, own in self.state.items():
            given, fixed = tensors[key], 2 if key in self.grows else 1
            alike = is_dense(given) and given.ndim == own.ndim and given.dtype == own.dtype
            if not alike or given.shape[fixed:] != own.shape[fixed:]:
                raise LmrError(f"The tensor {key!r} of the state does not have the shape or type {self.name} keeps.")
            if len(given) != rows:
                raise LmrError(f"The state holds {len(given)} streams, expected {rows}; name those to load it into.")
            if given.is_floating_point() and not given.isfinite().all():
                raise LmrError(f"The tensor {key!r} of the state holds NaN or infinite values; the state is damaged.")
        if len({tensors[key].shape[1] for key in self.grows}) > 1:
            raise LmrError("The growing tensors of the state do not have the same length; the state is damaged.")
        ranges = self.ranges(tensors)
        for key, value in tensors.items():
            low, high = ranges.get(key, (None, None))
            if not bool(find_within(value, low, high).all()):
                limits = f"from {low} to {high}" if high is not None else f"of at least {low}"
                raise LmrError(f"Expected values {limits} in the tensor {key!r} of the state; the state is damaged.")

    # Other classes.

    def _check_follows(self, values: Mapping[str, Any]) -> None:
        """Refuse to change the classes of a method whose state or arguments cannot follow."""
        if self.classes_reason:
            raise LmrError(f"{self.name} cannot change its classes: {self.classes_reason}; start a new one.")
        hints = find_hints(type(self))
        for key, value in values.items():
            kinds = (hints[key], *typing.get_args(hints[key]))
            if isinstance(value, tuple) and any(typing.get_args(kind)[1:] == (...,) for kind in kinds):
                raise LmrError(
                    f"{self.name} cannot change its classes: {key!r} has a number for each of the old ones; start a "
                    "new one with numbers for the new classes."
                )

    def _stand_in_for(self, state: Mapping[str, Any]) -> Self:
        """Return a stand-in of this method, into which a state of other classes can be loaded."""
        self._check_follows({})
        count = find_tensors(state).get("predicted")
        streams = len(count) if isinstance(count, Tensor) and count.ndim else 0
        return self._stand_in(read_names(state), str(state.get("classes")), max(streams, 1))

    def _stand_in(self, names: Sequence[str], digest: str, streams: int) -> Self:
        """Return a copy of this method with new streams of other classes, which holds states but cannot step."""
        other = copy.copy(self)
        other.classifier, other.streams = self.classifier.stand_in(names, digest), streams
        other.state = other._begin_streams(streams)
        return other

    def _carry(self, tensors: Mapping[str, Tensor], new: Method) -> State:
        """Return the tensors [n, ...] of a state of this method for the classes of ``new``."""
        old, now = (number_names(method.classifier.names) for method in (self, new))
        pairs = [(old[name], place) for name, place in now.items() if name in old]
        start, wider = new._begin_streams(1), self._stand_in([*self.classifier.names, ""], "", 1).state
        carried = {}
        for key, value in tensors.items():
            axes = [axis for axis in range(1, value.ndim) if value.shape[axis] != wider[key].shape[axis]]
            carried[key] = carry_classes(value, start[key], axes, pairs, mean=key in self.class_sums)
        return carried


def list_arguments(method: type[Method]) -> list[str]:
    """Return the names of a method's own arguments, in order."""
    given = (field.name for field in dataclasses.fields(method) if field.init)
    return [name for name in given if name not in ("classifier", "streams", "unknown")]


class MethodModule(nn.Module):
    """A method as a module: ``forward(images)`` adapts on the batch and returns its logits [B, C].

    An evaluation loop written for a model that adapts in its forward, such as ``tent.Tent(model)``, runs unchanged.
    The encoder is a submodule, so that ``to`` moves the model. It stays frozen and in evaluation mode.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method, self.encoder = method, method.classifier.encoder

    def forward(self, images: Tensor) -> Tensor:
        """Adapt on the images [B, ...] and return their logits [B, C]."""
        return self.method.step(images).logits

    def reset(self) -> None:
        """Return the method to its start."""
        self.method.reset()

    def train(self, mode: bool = True) -> Self:
        """Leave the frozen encoder in evaluation mode."""
        self.training = mode
        return self
