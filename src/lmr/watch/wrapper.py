"""MethodWrapper: a method around another one, which it passes off as itself wherever it does not say otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from lmr.core.batch import FrozenAnswer
from lmr.core.method import Method
from lmr.core.traits import Emission, Passes

TRAITS = (
    "name", "label", "source", "year", "role", "in_paper", "towers", "scores", "gated", "parts", "swept", "added",
    "presets", "many_streams", "one_stream_because", "not_frozen_because", "needs_images", "grows", "episodic",
    "takes_views", "restarts", "keeps_images", "needs_clean",
)  # fmt: skip


class MethodWrapper(Method):
    """A method whose traits, classifier and streams are those of ``method``."""

    def __init__(self, method: Method) -> None:
        self.method, self.classifier, self.streams = method, method.classifier, method.streams
        for trait in TRAITS:
            setattr(self, trait, getattr(method, trait))

    @property
    def spec(self) -> str:
        """The spec of the method inside."""
        return self.method.spec

    @property
    def emits(self) -> Emission:
        """As the method."""
        return self.method.emits

    @property
    def trainable(self) -> int:
        """As the method."""
        return self.method.trainable

    @property
    def margin_width(self) -> float:
        """As the method."""
        return self.method.margin_width

    def count_passes(self, learning: float = 1.0) -> Passes | None:
        """As the method."""
        return self.method.count_passes(learning)

    def logit_offset(self) -> Tensor | None:
        """As the method."""
        return self.method.logit_offset()

    def logit_floor(self) -> float | None:
        """As the method."""
        return self.method.logit_floor()

    def study(self, batches: Iterable[Tensor]) -> None:
        """As the method."""
        self.method.study(batches)

    def settle(self, stream: int) -> FrozenAnswer:
        """As the method."""
        return self.method.settle(stream)

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """As the method."""
        with self.method._hold():
            yield
