"""Method: the interface of every test-time adaptation method.

A method is a dataclass: its fields are its configuration, its state is a dict of tensors whose first dimension is the
stream. A new method is one file with one decorated class that defines how to begin, to adapt and to answer.
"""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lmr.core.batch import FrozenAnswer
from lmr.core.batch import Mix as Mix
from lmr.core.batch import Prediction as Prediction
from lmr.core.classifier import ZeroShot, is_dense, leave_autocast, leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.core.functional.state_tensors import convert_tensor, find_within
from lmr.core.locks import hold
from lmr.core.log import LOGGER
from lmr.core.placement import Device
from lmr.core.spec import convert, format_spec
from lmr.core.state import decode_state, encode_state, read_state
from lmr.core.traits import Emission, Passes, Role, Scores, Switch, Tower, Trained
from lmr.core.traits import Preset as Preset

Streams = Sequence[int] | Tensor | int | None
Ranges = dict[str, tuple[float | None, float | None]]  # smallest and largest value of state tensors; None: any finite
COUNTS: tuple[float, float] = (0, 2**53)  # the range of a tensor that counts
SHARES: tuple[float, float] = (0, 1.001)  # of one that holds shares or probabilities, with room for rounding
UNIT: tuple[float, float] = (-1.001, 1.001)  # of one that holds unit vectors, their means or cosines


@dataclass(kw_only=True, eq=False, repr=False)
class Method:
    """Base of all methods. It never sees labels, and it adapts only in ``step``.

    A subclass is one file with one decorated class. Its annotated fields are its arguments; ``begin``, ``adapt`` and
    ``answer`` are its state, its step and its answer.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("centred")
        ... class Centred(lmr.Method):
        ...     'Subtract the running mean of the logits of each stream.'
        ...
        ...     memory: float = 0.9
        ...
        ...     def begin(self, streams):
        ...         return {"mean": torch.zeros(streams, self.classifier.classes)}
        ...
        ...     def adapt(self, images, mix):
        ...         logits = self.answer(images, mix)
        ...         mean = self.take(mix, "mean")["mean"]
        ...         self.put({"mean": mean + (1 - self.memory) * mix.mean(logits)}, mix)
        ...         return lmr.Prediction(logits)
        ...
        ...     def answer(self, images, mix):
        ...         logits = self.classifier.logits(self.classifier.cosines(self.classifier.features(images)))
        ...         return logits - self.take(mix, "mean")["mean"][mix.index]
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star", "green heart"])
        >>> method = lmr.create("centred(memory=0.5)", clip)
        >>> images = torch.randn(8, 3, 32, 32)
        >>> method.step(images).logits.shape
        torch.Size([8, 3])
        >>> method
        centred(memory=0.5)
    """

    # Traits: what a method declares about itself. All have defaults; ``register`` fills in name and label.
    name: ClassVar[str]
    label: ClassVar[str]  # what tables call it; the name in capitals if not declared
    source: ClassVar[str] = ""  # where it was published, in a few words
    year: ClassVar[int] = 9999  # of the publication; orders tables
    role: ClassVar[Role] = Role.OTHER
    in_paper: ClassVar[bool] = False  # one of those that the paper of LMR compares; "paper" in plans
    towers: ClassVar[tuple[Tower, ...]] = ()  # which of them it adapts
    trained: ClassVar[Trained] = Trained.NORMS  # what of them
    emission: ClassVar[Emission] = "before"  # of a method without an argument ``emit``
    scores: ClassVar[Scores] = Scores.COSINES
    gated: ClassVar[bool] = False  # info["gate_share"] of the samples take the backward; the others cost a forward
    parts: ClassVar[tuple[str, ...]] = ()  # boolean arguments that switch parts of the method off, for ablations
    swept: ClassVar[dict[str, tuple[str, ...]]] = {}  # name of a sweep -> the arguments that vary in it
    aliases: ClassVar[dict[str, str]] = {}  # other names of arguments that ``create`` takes -> the arguments
    added: ClassVar[tuple[str, ...]] = ()  # arguments newer than saved states and rows, whose specs do not have them
    switches: ClassVar[tuple[Switch, ...]] = ()  # what a budget chooses from
    switches_source: ClassVar[str] = ""  # what measured them, in a few words
    episodic: ClassVar[bool] = False  # nothing of an image stays for the next: batches and streams only group images
    takes_views: ClassVar[bool] = False  # ``step`` also takes given views [B, V, ...] of each image, the image first
    restarts: ClassVar[bool] = False  # nothing of a batch stays for the next: ``predict`` answers as ``step`` does
    keeps_images: ClassVar[bool] = False  # the state holds images of the stream, so their shape must be known
    needs_clean: ClassVar[int] = 0  # clean images that it should ``study`` before the stream, where there are any
    clean_argument: ClassVar[str] = ""  # of ``create``, under which it takes them
    many_streams: ClassVar[bool] = False
    one_stream_because: ClassVar[str] = ""  # why not, for the error message
    not_frozen_because: ClassVar[str] = "it does not define 'settle'"  # why it cannot be exported
    needs_images: ClassVar[bool] = True  # False if it only passes them to the classifier: it may then get their tokens
    grows: ClassVar[tuple[str, ...]] = ()  # state tensors [1, n, ...] whose n changes with the stream
    presets: ClassVar[dict[str, Preset]] = {"default": Preset({}, "the method's own defaults")}

    classifier: ZeroShot = dataclasses.field(kw_only=False)
    streams: int = 1

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for key in list_arguments(type(self)):
            setattr(self, key, convert(getattr(self, key), hints[key], f"{key!r} of {self.name}"))
            self._check_size(key)
        self.streams = convert(self.streams, int, "the number of streams")
        if self.streams < 1:
            raise LmrError(f"Expected a number of streams of at least 1, got {self.streams!r}.")
        if self.streams > 1 and not self.many_streams:
            reason = f" ({self.one_stream_because})" if self.one_stream_because else ""
            raise LmrError(f"{self.name} serves one stream{reason}; create one {self.name} per stream.")
        try:
            with leave_inference_mode(), leave_autocast(self.classifier.device):
                self.prepare()
                self.state: dict[str, Tensor] = self.begin(self.streams)
                self.state["predicted"] = self._no_predictions(self.streams)
                self._placement = self.classifier.device, self.classifier.prototypes.dtype
        except (RuntimeError, OverflowError, MemoryError) as error:
            raise LmrError(
                f"The state of {self!r} does not fit in memory; use fewer streams or a smaller capacity. ({error})"
            ) from error

    # What a method declares or overrides.

    @classmethod
    def choose_values(cls, classes: int) -> dict[str, Any]:
        """Arguments that suit so many classes better than the defaults do; the preset "auto" applies them."""
        return {}

    @property
    def emits(self) -> Emission:
        """Whether an answer is the one before or after the batch's own update."""
        emission: Emission = getattr(self, "emit", self.emission)
        return emission

    @property
    def trainable(self) -> int:
        """How many parameters of the model one stream adapts."""
        return 0

    @property
    def margin_width(self) -> float:
        """Width in cosine units of the set of plausible classes that local margins are measured against."""
        return 0.03

    def count_passes(self, learning: float = 1.0) -> Passes | None:
        """The arithmetic of one step when a share ``learning`` of the samples takes the backward; None if unknown."""
        return None

    @property
    def cycle(self) -> int:
        """After how many images of a stream the work repeats; 1 if all steps are alike."""
        return 1

    def saturate(self, images: Tensor) -> None:
        """Leave all streams as a long one of such images does, where that decides what a step costs; for measuring."""

    def logit_offset(self) -> Tensor | None:
        """The term of the logits that is not similarity, in the present state: [streams, C], or None."""
        return None

    def logit_floor(self) -> float | None:
        """The logit of probability 0, for methods whose logits have a floor."""
        return None

    def prepare(self) -> None:
        """Check the configuration and build what the method works with; called again if the classifier was moved."""

    def begin(self, streams: int) -> dict[str, Tensor]:
        """The state of ``streams`` streams before their first image: tensors [streams, ...]."""
        return {}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """The range of values in each tensor of ``state``, a state of this method's shapes; others need be finite."""
        return {"predicted": COUNTS}

    def study(self, batches: Iterable[Tensor]) -> None:
        """Learn from batches of clean images what the stream is to be compared with; it stays through ``reset``."""

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        """Adapt on a checked batch and answer it."""
        raise NotImplementedError

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """Logits [B, C] of a checked batch with the present state; changes nothing."""
        raise NotImplementedError

    def settle(self, stream: int) -> FrozenAnswer:
        """What ``answer`` computes for one stream in the present state, as copies. Optional."""
        raise LmrError(f"{self.name} cannot be exported: {self.not_frozen_because}.")

    # The interface for users. Threads may share a method: each call holds the towers it uses.

    def step(self, images: Tensor, streams: Streams = None) -> Prediction:
        """Adapt on this batch and answer it. With several streams, ``streams`` [B] gives the stream of each image.

        A method that ``takes_views`` makes views of each image, or takes given ones: images [B, V, ...], of which the
        first view is the image itself.
        """
        with self._hold(), leave_inference_mode(), leave_autocast(self.classifier.device):
            images, mix = self._check(images, streams)
            prediction = self.adapt(images, mix)
            sound = prediction.logits.isfinite().all(1)
            if not bool(sound.all()):
                LOGGER.info("%s: %d of %d answers are not finite", self.name, int((~sound).sum()), len(sound))
            rows = mix.active[mix.index[sound]]
            ones = torch.ones_like(rows)
            self.state["predicted"].index_put_((rows, prediction.labels[sound]), ones, accumulate=True)
            return dataclasses.replace(prediction, info=prediction.info | self._describe_predictions(mix))

    def predict(self, images: Tensor, streams: Streams = None) -> Prediction:
        """Answer with the present state and change nothing."""
        with self._hold(), leave_inference_mode(), leave_autocast(self.classifier.device), torch.no_grad():
            return Prediction(self.answer(*self._check(images, streams)))

    def freeze(self, stream: int = 0) -> FrozenAnswer:
        """What ``predict`` answers in the present state of one stream, as constants that need no method to run."""
        with self._hold(), leave_inference_mode(), leave_autocast(self.classifier.device), torch.no_grad():
            (row,) = self._rows(stream).tolist()
            return self.settle(row)

    def reset(self, streams: Streams = None) -> None:
        """Return all streams, or the named ones, to their start."""
        with self._hold(), leave_inference_mode():
            rows = self._rows(streams)
            self._replace(self.begin(len(rows)) | {"predicted": self._no_predictions(len(rows))}, rows)

    def to(self, device: Device | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move the classifier as ``ZeroShot.to`` does, and the state with it, in place.

        The state is never below float32. Other methods on the same classifier follow at their next call.
        """
        self.classifier.to(device, dtype)
        with self._hold():
            return self

    def state_dict(self, streams: Streams = None) -> dict[str, Any]:
        """A copy of the state of all streams, or of the named ones, with what it belongs to."""
        with self._hold():
            rows = self._rows(streams)
            tensors = {key: value[rows].clone() for key, value in self.state.items()}
            return {"spec": self.spec, **self.classifier.fingerprint, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any], streams: Streams = None) -> None:
        """Load a state into all streams, or into the named ones. A state that does not fit changes nothing."""
        with self._hold(), leave_inference_mode():
            rows = self._rows(streams)
            self._replace(self._check_state(state, len(rows)), rows)

    def save(
        self, path: str | os.PathLike[str], streams: Streams = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Write the state to one safetensors file, atomically, with ``notes`` that ``load`` returns."""
        write_atomically(path, self.dump(streams, notes))

    def load(self, path: str | os.PathLike[str], streams: Streams = None) -> dict[str, str]:
        """Load a state written by ``save`` and return its notes. A file that does not fit changes nothing."""
        return self._load(*read_state(path), repr(os.fspath(path)), streams)

    def dump(self, streams: Streams = None, notes: Mapping[str, str] | None = None) -> bytes:
        """The content of the file that ``save`` writes."""
        if not all(isinstance(text, str) for note in (notes or {}).items() for text in note):
            raise LmrError(f"Expected notes as a mapping of strings to strings, got {notes!r}.")
        state = self.state_dict(streams)
        facts = {key: str(value) for key, value in state.items() if key != "tensors"}
        return encode_state(state["tensors"], facts | {f"note.{key}": value for key, value in (notes or {}).items()})

    def restore(self, content: bytes, streams: Streams = None) -> dict[str, str]:
        """As ``load``, from the content of a file."""
        name = "the given state"
        return self._load(*decode_state(content, name.capitalize()), name, streams)

    @property
    def spec(self) -> str:
        """The canonical spec string: every argument with its value, but an ``added`` one only if it is not the default.

        So a state or a result that was saved before an argument existed has the spec it would have today.
        """
        values = {key: getattr(self, key) for key in list_arguments(type(self))}
        for key in self.added:
            if values[key] == getattr(type(self), key):
                del values[key]
        return format_spec(self.name, values)

    def __repr__(self) -> str:
        return self.spec if self.streams == 1 else f"{self.spec} x {self.streams} streams"

    # Tools for subclasses.

    def take(self, mix: Mix, *keys: str) -> dict[str, Tensor]:
        """The rows [A, ...] of the batch's streams in the named tensors of the state, or in all. Read only."""
        chosen = keys or [key for key in self.state if key != "predicted"]
        return {key: self.state[key] if self.streams == 1 else self.state[key][mix.active] for key in chosen}

    def put(self, rows: Mapping[str, Tensor], mix: Mix) -> None:
        """Make these rows [A, ...] the state of the batch's streams."""
        self._replace(rows, mix.active)

    def find_sound(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Which of the rows [A, ...] are finite and within the ranges of the state: bool [A]."""
        ranges = self.ranges(rows)
        sound = [find_within(value, *ranges.get(key, (None, None))) for key, value in rows.items()]
        return torch.stack(sound).all(0)

    def summarise(self, report: Mapping[str, Tensor], mix: Mix) -> dict[str, Any]:
        """The info of a batch from facts [A] about each of its streams, in plain Python values.

        Over the streams, counts are added and other numbers averaged; a bool is true if it is for any stream, "finite"
        if it is for all. A method of several streams also gives the facts of each one, in ``info["streams"]``.
        """
        columns = {key: value.tolist() for key, value in report.items()}
        info: dict[str, Any] = {}
        for key, value in report.items():
            if value.dtype == torch.bool:
                info[key] = all(columns[key]) if key == "finite" else any(columns[key])
            else:
                total = sum(columns[key])
                info[key] = total / len(columns[key]) if value.is_floating_point() else total
        if self.streams > 1:
            info["streams"] = {
                number: {key: column[k] for key, column in columns.items()}
                for k, number in enumerate(mix.active.tolist())
            }
        return info

    # Internals.

    def _load(
        self, tensors: Mapping[str, Tensor], facts: Mapping[str, str], name: str, streams: Streams
    ) -> dict[str, str]:
        try:
            self.load_state_dict({**facts, "tensors": tensors}, streams)
        except LmrError as error:
            raise LmrError(f"Cannot use {name}: {error}") from error
        return {key.removeprefix("note."): value for key, value in facts.items() if key.startswith("note.")}

    def _require_not_negative(self, *keys: str) -> None:
        """Refuse arguments that are negative or not finite; for ``prepare``."""
        for key in keys:
            value = getattr(self, key)
            if not 0 <= value < math.inf:
                raise LmrError(f"Expected {key!r} of {self.name} to be finite and not negative, got {value}.")

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

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Keep other threads off the towers and, as every call holds them, off the state.

        Always both towers: a method that acquired the text tower only when it needs it could wait for another method
        that waits for it. Where the classifier was moved since the last call, the state follows.
        """
        with hold(self.classifier.encoder, *self.classifier.text_towers):
            if self._placement != (self.classifier.device, self.classifier.prototypes.dtype):
                self._follow()
            yield

    def _follow(self) -> None:
        """Bring the state to where the classifier is now, in the types it would begin with there."""
        with leave_inference_mode(), leave_autocast(self.classifier.device):
            self.prepare()
            self.state = self._convert_state(self.state)
        self._placement = self.classifier.device, self.classifier.prototypes.dtype

    def _convert_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a state of this method where the classifier is now, in the types it begins with there."""
        like = self.begin(1) | {"predicted": self._no_predictions(1)}
        return {key: convert_tensor(value, like[key]) for key, value in tensors.items()}

    def _check(self, images: Tensor, streams: Streams) -> tuple[Tensor, Mix]:
        if self.takes_views and self.classifier.holds_views(images):
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
            return self._embed(images), Mix(nothing[:1], nothing)
        ids = self._ids(streams)
        if ids.shape != (len(images),):
            raise LmrError(f"Expected one stream id for each of the {len(images)} images, got shape {list(ids.shape)}.")
        active, index = torch.unique(ids, return_inverse=True)
        return self._embed(images), Mix(active, index)

    def _embed(self, images: Tensor) -> Tensor:
        """What the passes of a step start from: tokens, computed once, where the encoder has them."""
        return images if self.needs_images else self.classifier.embed(images)

    def _ids(self, streams: Streams) -> Tensor:
        message = f"Expected a list of stream ids from 0 to {self.streams - 1}, got {streams!r}."
        try:
            given = torch.as_tensor([streams] if isinstance(streams, int) else streams, device=self.classifier.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise LmrError(message) from error
        whole = not given.is_floating_point() and not given.is_complex() and given.dtype != torch.bool
        if not is_dense(given) or not whole or given.ndim != 1 or not len(given):
            raise LmrError(message)
        ids = given.long()
        if bool(((ids < 0) | (ids >= self.streams)).any()):
            raise LmrError(message)
        return ids

    def _rows(self, streams: Streams) -> Tensor:
        if streams is None:
            return torch.arange(self.streams, device=self.classifier.device)
        rows = self._ids(streams)
        if len(set(rows.tolist())) != len(rows):
            raise LmrError(f"Expected every stream once, got {streams!r}.")
        return rows

    def _check_state(self, state: Mapping[str, Any], rows: int) -> Mapping[str, Tensor]:
        """The tensors of a state of so many streams; refused if it does not fit."""
        if not isinstance(state, Mapping) or not isinstance(state.get("tensors"), Mapping):
            raise LmrError("Expected a state as state_dict() gives it, with its 'tensors'.")
        if "watch" in state:
            raise LmrError("The state is that of a watched method; load it into lmr.watch(method) instead.")
        if state.get("spec") != self.spec:
            raise LmrError(f"The state belongs to {state.get('spec')}, not to {self.spec}; create that one.")
        for part, word in (("backbone", "weights"), ("classes", "classes or prompts")):
            if state.get(part) != self.classifier.fingerprint[part]:
                raise LmrError(
                    f"The state was made with other {word} than this method has; load those, or start without it."
                )
        tensors: Mapping[str, Tensor] = state["tensors"]
        if set(tensors) != set(self.state):
            wrong = ", ".join(sorted(set(tensors) ^ set(self.state)))
            raise LmrError(f"The state does not have the tensors of {self.name}: {wrong} is missing or unexpected.")
        self._check_fit(tensors, rows)
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

    def _replace(self, tensors: Mapping[str, Tensor], rows: Tensor) -> None:
        for key, value in tensors.items():
            if key in self.grows:
                self.state[key] = value.to(self.classifier.device, copy=True)
            elif self.streams == 1:
                self.state[key].copy_(value)
            else:
                self.state[key][rows] = value.to(self.classifier.device)

    def _no_predictions(self, streams: int) -> Tensor:
        return torch.zeros(streams, self.classifier.classes, dtype=torch.int64, device=self.classifier.device)

    def _describe_predictions(self, mix: Mix) -> dict[str, float]:
        counts = self.state["predicted"][mix.active].cpu().double()
        return {"top_class_share": (counts.amax(1) / counts.sum(1).clamp(min=1)).mean().item()}


def list_arguments(method: type[Method]) -> list[str]:
    """The names of a method's own arguments, in order."""
    given = (field.name for field in dataclasses.fields(method) if field.init)
    return [name for name in given if name not in ("classifier", "streams")]
