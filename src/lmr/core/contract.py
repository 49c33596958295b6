"""Contract: what the author of a method defines, and the facts that others read of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from lmr.core.card import Card, Emission, Scores, Tower
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.prediction import AdaptedParameters, State, Step
from lmr.core.state import Ranges
from lmr.core.streams import Streams

COUNTS: tuple[float, float] = (0, 2**53)  # the range of counts
SHARES: tuple[float, float] = (0, 1.001)  # the range of shares and probabilities, with room for rounding
Phase = Literal["quiet", "looking", "adapting"]  # as the frozen model; the same, until a new change is judged; adapting
UNIT: tuple[float, float] = (-1.001, 1.001)  # the range of unit vectors, their means and cosines


class Contract:
    """What a method may define, and what holds for those that do not define it."""

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

    classifier: ZeroShot
    streams: int
    unknown: float | None

    def prepare(self) -> None:
        """Check the arguments and build what the method works with; called again if the classifier was moved."""

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the state of one new stream: tensors, or numbers for counts."""
        return {}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Adapt on a checked batch and answer it, without changing ``state``: rows [A, ...] of its streams."""
        raise NotImplementedError

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits [B, C] of a checked batch with the rows [A, ...] of a state.

        A method that keeps nothing from one batch to the next answers as ``adapt`` does.
        """
        return self.adapt(images, state, streams).logits if self.memory_span == "batch" else self.classifier(images)

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
