"""Wrapper: the base of what changes or watches the answers of a method. Wrappers compose: ``Outer(Inner(method))``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError, WrongType
from lmr.core.method import Method
from lmr.core.prediction import AdaptedParameters, Prediction, State
from lmr.core.runner import join_info, summarise
from lmr.core.saved import Saved
from lmr.core.state import (
    Ranges,
    Start,
    begin_rows,
    carry_rows,
    check_identity,
    check_rows,
    convert_rows,
    put_rows,
)
from lmr.core.streams import StreamIds, Streams


@dataclass(eq=False, repr=False)
class Wrapper(Saved):
    """A method around a method, used as the method itself: what is not defined here is an attribute of ``method``.

    A subclass is a dataclass whose fields are its settings. It has tensors of its own for each stream, ``own``, which
    are saved, loaded, reset, moved and carried to other classes with those of the method, under the names
    ``PREFIX/KEY``. It defines ``prefix``, and of these what it needs:

    * ``begin`` returns the tensors of a new stream, ``ranges`` their ranges, as in ``Method``. Tensors that grow with
      the number of classes follow the names of the classes;
    * ``adjust`` changes the logits of an answer, ``describe`` adds facts to ``info``;
    * ``adjust_parameters`` says the same of exported parameters. Without it a wrapper that adjusts is not exported.

    Methods that change ``own`` do so within ``self.session()`` and through ``put``.

    Examples:
        >>> import dataclasses, lmr, torch
        >>> @dataclasses.dataclass(eq=False, repr=False)
        ... class Offset(lmr.Wrapper):
        ...     'Add a number to the logits of one class, for each stream.'
        ...
        ...     prefix = "offset"
        ...
        ...     def begin(self):
        ...         return {"offset": torch.zeros(self.classifier.classes)}
        ...
        ...     def adjust(self, answer, state, streams):
        ...         return answer.logits + streams.repeat(state["offset"])
        ...
        ...     def favour(self, label, stream=0):
        ...         with self.session():
        ...             rows = self.find_rows(stream)
        ...             offset = self.own["offset"][rows].clone()
        ...             offset[:, label] += 100
        ...             self.put({"offset": offset}, rows)
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> method = lmr.Watched(Offset(lmr.create("lmr", clip, streams=2)))
        >>> method.favour(1, stream=0)
        >>> method.step(torch.randn(2, 3, 32, 32), streams=[0, 0]).names
        ['dog', 'dog']
        >>> method.state["offset/offset"].shape
        torch.Size([2, 2])
    """

    prefix: ClassVar[str]  # of its tensors in a state
    class_sums: ClassVar[tuple[str, ...]] = ()  # own tensors in which a new class begins with the others' mean

    method: Method | Wrapper

    def __post_init__(self) -> None:
        inner = self.method
        if not isinstance(inner, Method | Wrapper):
            raise WrongType(f"Expected a method to wrap, got {type(inner).__name__}.")
        if self.prefix in list_prefixes(inner):
            raise LmrError(f"Expected a method without {type(self).__name__}, got one that has it already.")
        self.own: State = self._begin_own(self.streams)
        self._placement = self.classifier.placement

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("method", "own"):  # a copy in the making has none yet
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.method, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.method)})

    def __repr__(self) -> str:
        return f"{self.method!r}, {self.prefix}"

    # What a wrapper defines.

    def begin(self) -> Start:
        """Return the own tensors of one new stream; numbers are counts."""
        return {}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the range of values of own tensors; those without one may hold any finite value."""
        return {}

    def adjust(self, answer: Prediction, state: State, streams: Streams) -> Tensor:
        """Return the logits [B, C] of an answer of the method, with the own rows [A, ...] of its streams."""
        return answer.logits

    def describe(self, state: State) -> Mapping[str, Tensor]:
        """Return facts [A] about own rows, for the ``info`` of a step."""
        return {}

    def adjust_parameters(self, parameters: AdaptedParameters, state: State) -> AdaptedParameters:
        """Return exported parameters of the method that give the adjusted logits, with the own row [1, ...]."""
        if type(self).adjust is not Wrapper.adjust:
            raise LmrError(f"{type(self).__name__} cannot be exported: it does not define 'adjust_parameters'.")
        return parameters

    # The interface of a method.

    @property
    def state(self) -> State:  # type: ignore[override]
        """The tensors of the method, and the own ones under their names in a state."""
        return self.method.state | self._name(self.own)

    def step(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Adapt on this batch and answer it."""
        with self.session():
            images, batch = self.check(images, streams)
            with self.transaction(batch.active):
                answer, state = self.method.step(images, batch), self._take(batch)
                logits, info = self.adjust(answer, state, batch), answer.info
                if facts := self.describe(state):
                    info = join_info(info, summarise(facts, batch, several=self.streams > 1))
                return dataclasses.replace(answer, logits=logits, info=info)

    def predict(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Answer with the present state and change nothing."""
        with self.session(), torch.no_grad():
            images, batch = self.check(images, streams)
            answer = self.method.predict(images, batch)
            return dataclasses.replace(answer, logits=self.adjust(answer, self._take(batch), batch))

    def export_parameters(self, stream: int = 0) -> AdaptedParameters:
        """Return the present model of one stream as constants that need no method to run."""
        with self.session(), torch.no_grad():
            rows = self.find_rows(stream)
            own = {key: value[rows] for key, value in self.own.items()}
            return self.adjust_parameters(self.method.export_parameters(stream), own)

    def reset(self, streams: StreamIds = None) -> None:
        """Return all streams, or the named ones, to their start."""
        with self.session():
            rows = self.find_rows(streams)
            self.method.reset(rows)
            self.put(self._begin_own(len(rows)), rows)

    def state_dict(self, streams: StreamIds = None) -> dict[str, Any]:
        """Return a copy of the state of all streams, or of the named ones, with the own tensors."""
        with self.session():
            rows = self.find_rows(streams)
            state = self.method.state_dict(rows)
            own = {key: value[rows].clone() for key, value in self.own.items()}
            return state | {"tensors": state["tensors"] | self._name(own)}

    def load_state_dict(self, state: Mapping[str, Any], streams: StreamIds = None) -> None:
        """Load a state. One without the own tensors begins new ones. A state that does not fit changes nothing."""
        with self.session():
            rows = self.find_rows(streams)
            inner, own = self._split(check_identity(state, self.spec, self.classifier))
            own = self._check_own(own, len(rows)) if own else self._begin_own(len(rows))
            self.method.load_state_dict({**state, "tensors": inner}, rows)
            self.put({key: value.clone() for key, value in own.items()}, rows)

    def with_classes(self, classifier: ZeroShot) -> Self:
        """Return this for other classes of the same model, with the states of all its streams."""
        new = self.wrap(self.method.with_classes(classifier))
        with self.session():
            new.own = self._carry_own(self.own, new)
        return new

    def carry_all(self, new: Self) -> dict[str, Any]:
        """Return the state of all streams as one of ``new``, which has other classes."""
        state = self.method.carry_all(new.method)  # type: ignore[arg-type]  # of the same kind
        return state | {"tensors": state["tensors"] | self._name(self._carry_own(self.own, new))}

    # For a wrapper of this one.

    @contextmanager
    def session(self) -> Iterator[None]:
        """Open a session of the method; if it has followed its classifier, the own tensors follow too."""
        with self.method.session():
            if self._placement != self.classifier.placement:
                self.follow()
                self._placement = self.classifier.placement
            yield

    @contextmanager
    def transaction(self, rows: Tensor) -> Iterator[None]:
        """Give the streams ``rows`` their old state back, with the own tensors, if this context raises."""
        before = {key: value if self.streams == 1 else value[rows] for key, value in self.own.items()}
        with self.method.transaction(rows):
            try:
                yield
            except BaseException:
                self.put(before, rows)
                raise

    def follow(self) -> None:
        """Move what the wrapper keeps to where the classifier is now."""
        self.own = convert_rows(self.own, self._begin_own(1))

    def put(self, tensors: Mapping[str, Tensor], rows: Tensor) -> None:
        """Make these tensors the own ones of the streams ``rows``."""
        put_rows(self.own, tensors, rows, self.streams)

    def wrap(self, method: Method | Wrapper) -> Self:
        """Return a wrapper of another method with the same settings."""
        return dataclasses.replace(self, method=method)

    def convert(self, tensors: Mapping[str, Tensor]) -> State:
        """Return the tensors of a state where the classifier is now, in the types they would begin with there."""
        inner, own = self._split(tensors)
        return self.method.convert(inner) | self._name(convert_rows(own, self._begin_own(1)))

    def check_rows(self, tensors: Mapping[str, Tensor], rows: int) -> Mapping[str, Tensor]:
        """Return the tensors of a state of so many streams; refuse a state that does not fit."""
        inner, own = self._split(tensors)
        return {**self.method.check_rows(inner, rows), **self._name(self._check_own(own, rows))}

    def stand_in(self, names: Sequence[str], digest: str, streams: int) -> Self:
        """Return a copy with new streams of other classes, which holds states but cannot step."""
        return self.wrap(self.method.stand_in(names, digest, streams))

    def carry(self, tensors: Mapping[str, Tensor], new: Self) -> State:
        """Return the tensors [n, ...] of a state for the classes of ``new``."""
        inner, own = self._split(tensors)
        carried: State = self.method.carry(inner, new.method)  # type: ignore[arg-type]  # of the same kind
        return carried | self._name(self._carry_own(own, new))

    # Own tensors.

    def _begin_own(self, streams: int) -> State:
        return begin_rows(self.begin(), streams, self.classifier.device)

    def _take(self, batch: Streams) -> State:
        """Return the own rows [A, ...] of the batch's streams: never write to them."""
        return self.own if self.streams == 1 else {key: value[batch.active] for key, value in self.own.items()}

    def _check_own(self, own: State, rows: int) -> State:
        check_rows(own, self.own, rows, self.ranges(own), self.prefix)
        return own

    def _carry_own(self, own: Mapping[str, Tensor], new: Self) -> State:
        names = self.classifier.names
        wider = self.stand_in([*names, ""], "", 1).own
        return carry_rows(own, new._begin_own(1), wider, (names, new.classifier.names), self.class_sums)

    def _name(self, own: Mapping[str, Tensor]) -> State:
        return {f"{self.prefix}/{key}": value for key, value in own.items()}

    def _split(self, tensors: Mapping[str, Tensor]) -> tuple[State, State]:
        """Return the tensors of the method, and the own ones by their own names."""
        begin = f"{self.prefix}/"
        own = {key.removeprefix(begin): value for key, value in tensors.items() if key.startswith(begin)}
        return {key: value for key, value in tensors.items() if not key.startswith(begin)}, own


def list_prefixes(method: Method | Wrapper) -> list[str]:
    """Return the prefixes of the wrappers of a method, from the outside in."""
    prefixes = []
    while isinstance(method, Wrapper):
        prefixes.append(method.prefix)
        method = method.method
    return prefixes


def unwrap(method: Method | Wrapper) -> Method:
    """Return the method inside all wrappers."""
    while isinstance(method, Wrapper):
        method = method.method
    return method
