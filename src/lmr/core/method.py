"""Method: the base of all test-time adaptation methods: a contract, its runner, and arguments that are fields.

A step is a pure function from a batch and a state to an answer and a new state: ``core/contract.py`` says what a method
defines. ``core/runner.py`` does the rest: it takes the rows of the batch's streams from the state, calls ``adapt``,
checks the result and commits it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lmr.core.classifier import ZeroShot
from lmr.core.contract import COUNTS as COUNTS
from lmr.core.contract import SHARES as SHARES
from lmr.core.contract import UNIT as UNIT
from lmr.core.contract import Phase as Phase
from lmr.core.errors import LmrError
from lmr.core.functional.prior import share_names
from lmr.core.known import check_unknown
from lmr.core.runner import Runner
from lmr.core.spec import convert, find_hints, list_arguments
from lmr.core.state import Ranges as Ranges


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
        ...         return self.classifier(images) - streams.repeat(state["mean"])
        >>> clip = lmr.load().classifier(["cat", "dog", "ship"])
        >>> method = lmr.create("centred(memory=0.5)", clip)
        >>> images = torch.randn(8, 3, 32, 32)
        >>> method.step(images).logits.shape
        torch.Size([8, 3])
        >>> method
        centred(memory=0.5)
    """

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

    def _check_size(self, key: str) -> None:
        """Refuse finite arguments that the model's precision, or a whole number of the machine, cannot hold."""
        value = getattr(self, key)
        largest = torch.finfo(self.classifier.prototypes.dtype).max
        for part in value if isinstance(value, tuple) else (value,):
            limit = largest if isinstance(part, float) else 2**62
            if isinstance(part, int | float) and limit < abs(part) < math.inf:
                raise LmrError(f"Expected {key!r} of {self.name} from {-limit:.0e} to {limit:.0e}, got a value beyond.")
