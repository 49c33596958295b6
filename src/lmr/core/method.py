"""Method: the contract of every test-time adaptation method.

A step is a pure function from a batch and a state to an answer and a new state. The base class does the rest: it takes
the rows of the batch's streams from the state, calls ``adapt``, checks the result and commits it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lmr.core.card import Card, Emission, Scores, Tower
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.functional.prior import share_names
from lmr.core.known import check_unknown
from lmr.core.prediction import AdaptedParameters, State, Step
from lmr.core.runner import Runner
from lmr.core.spec import convert, find_hints, list_arguments
from lmr.core.state import Ranges as Ranges
from lmr.core.streams import Streams

COUNTS: tuple[float, float] = (0, 2**53)  # the range of counts
SHARES: tuple[float, float] = (0, 1.001)  # the range of shares and probabilities, with room for rounding
Phase = Literal["quiet", "looking", "adapting"]  # as the frozen model; the same, until a new change is judged; adapting
UNIT: tuple[float, float] = (-1.001, 1.001)  # the range of unit vectors, their means and cosines


@dataclass(kw_only=True, eq=False, repr=False)
class Method(Runner):
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
        >>> clip = lmr.load().classifier(["cat", "dog", "ship"])
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
    export_reason: ClassVar[str] = "it does not define 'export'"  # why it cannot be exported
    classes_reason: ClassVar[str] = ""  # why its state cannot follow other classes; empty if it can
    class_sums: ClassVar[tuple[str, ...]] = ()  # state tensors [C] in which a new class begins with the others' mean
    takes_views: ClassVar[bool] = False  # ``step`` also takes given views [B, V, ...] of each image, the image first
    grows: ClassVar[tuple[str, ...]] = ()  # state tensors [1, n, ...] whose n grows with the stream

    classifier: ZeroShot = dataclasses.field(kw_only=False)
    streams: int = 1
    unknown: float | None = None  # the score below which an image belongs to no class

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
        self._start()

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
        return {"predicted": COUNTS}

    def fit_source(self, batches: Iterable[Tensor]) -> None:
        """Learn from batches of clean images before the stream starts; ``reset`` keeps the result."""

    def export(self, state: State) -> AdaptedParameters:
        """Return what ``answer`` computes with the state [1, ...] of one stream, as copies."""
        raise LmrError(f"{self.name} cannot be exported: {self.export_reason}.")

    def describe(self, state: State) -> Mapping[str, Tensor]:
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

    def rewind(self) -> None:
        """Prepare the state for a second pass over the images of the stream so far."""

    def fill_state(self, images: Tensor) -> None:
        """Fill the state as after a long stream of such images, where that decides what a step costs."""

    def logit_offset(self) -> Tensor | None:
        """Return the part of the present logits that is not similarity: [streams, C], or None."""
        return None

    def logit_floor(self) -> float | None:
        """Return the logit of probability 0, for methods whose logits have a floor."""
        return None

    def phases(self) -> list[Phase] | None:
        """Return what each stream does now, for methods that do not always adapt; None for the others."""
        return None

    # Checks of arguments.

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
