"""WatchKeeper: a method and what is known of its streams, saved, loaded and moved together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from lmr.core.classifier import leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.method import Method, Streams
from lmr.watch.canaries import KEPT, count_room, keep_first
from lmr.watch.ladder import Rung
from lmr.watch.signals import Signals, Tally
from lmr.watch.stream_watch import (
    PREFIX,
    HealthEvent,
    StreamWatch,
    check_fit,
    measure_watch,
    move_watch,
    pack_all,
    unpack_all,
)
from lmr.watch.watch_pace import find_pace
from lmr.watch.watch_settings import WatchSettings
from lmr.watch.wrapper import MethodWrapper


class WatchKeeper(MethodWrapper):
    """A method whose state holds a watch for each stream.

    ``watches`` holds what is known of each stream, in values that never change: a new one takes the place of the old.
    """

    def __init__(self, method: Method, settings: WatchSettings | None = None) -> None:
        if not isinstance(method, Method) or isinstance(method, WatchKeeper):
            raise LmrError(f"Expected a method that is not watched yet, got {type(method).__name__}.")
        super().__init__(method)
        self.settings, self._placement = settings or WatchSettings(), method._placement
        self.pace = find_pace(method)  # once, as it looks through the tower
        self.watches = [self._begin_watch() for _ in range(self.streams)]

    @property
    def state(self) -> dict[str, Tensor]:  # type: ignore[override]  # what others read of it is a view of two parts
        """The tensors of the method, and those of the watch."""
        return self.method.state | self._pack(range(self.streams))[1]

    # Health.

    @property
    def events(self) -> list[HealthEvent]:
        """Changes of rung, stream by stream; the last 100 of each."""
        return [event for watch in self.watches for event in watch.events]

    @property
    def health(self) -> list[Rung]:
        """The rung of every stream."""
        return [watch.ladder.rung for watch in self.watches]

    def count_events(self) -> dict[str, int]:
        """How often the watch, and no operator, has put streams on each rung; of all events, not of the last alone."""
        return dict(sum((Counter(watch.counts) for watch in self.watches), Counter()))

    @property
    def first_event(self) -> int | None:
        """The step of a stream at which the watch first put it on another rung."""
        return min((watch.first for watch in self.watches if watch.first is not None), default=None)

    def describe_events(self) -> str:
        """What the watch has seen so far, as a sentence."""
        ended = self.count_events()
        if not ended:
            return "The watch saw nothing unusual."
        return f"The watch changed the health of streams: {', '.join(f'{k} to {rung}' for rung, k in ended.items())}."

    def signals(self, stream: int = 0) -> Signals:
        """The present signals of a stream."""
        return measure_watch(self.watches[self._one(stream)])

    # Saved with the state.

    def state_dict(self, streams: Streams = None) -> dict[str, Any]:
        """A copy of the state of all streams, or of the named ones, with their watch."""
        rows = self._rows(streams).tolist()
        with self._hold():
            state = self.method.state_dict(rows)
            text, tensors = self._pack(rows)
            copies = {key: value.clone() for key, value in tensors.items()}
            return state | {"watch": text, "tensors": state["tensors"] | copies}

    def load_state_dict(self, state: Mapping[str, Any], streams: Streams = None) -> None:
        """Load a state, or one of the method alone, whose watch then starts. A state that does not fit changes nothing.

        The settings of the watch are not part of a state: a stream may go on with others.
        """
        rows = self._rows(streams).tolist()
        if not isinstance(state, Mapping) or not isinstance(state.get("tensors"), Mapping):
            raise LmrError("Expected a state as state_dict() gives it, with its 'tensors'.")
        own = {key: value for key, value in state["tensors"].items() if not key.startswith(PREFIX)}
        with self._hold():
            watches = [self._begin_watch() for _ in rows]
            if "watch" in state:
                watches = self._unpack(str(state["watch"]), state["tensors"], rows)
            rest = {key: value for key, value in state.items() if key != "watch"}
            self.method.load_state_dict({**rest, "tensors": own}, rows)
            for stream, watch in zip(rows, watches, strict=True):
                self.watches[stream] = watch

    # States of single streams.

    def _take(self, stream: int) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self.method.state_dict(stream)["tensors"]
        return tensors

    def _put(self, stream: int, tensors: Mapping[str, Tensor]) -> None:
        """Make these tensors the state of a stream."""
        facts = {"spec": self.method.spec, **self.classifier.fingerprint}
        self.method.load_state_dict({**facts, "tensors": tensors}, stream)

    def _count_room(self, values: int) -> int:
        """How many canaries of so many values a stream may keep."""
        return count_room(self.settings.canaries, self.settings.canary_mb, self.streams, values)

    def _begin_watch(self) -> StreamWatch:
        return StreamWatch(Tally.begin(self.classifier.classes))

    def _pack(self, rows: Iterable[int]) -> tuple[str, dict[str, Tensor]]:
        """The watches of some streams for a state; the tensors are not copies."""
        return pack_all([self.watches[stream] for stream in rows])

    def _unpack(self, text: str, tensors: Mapping[str, Tensor], rows: list[int]) -> list[StreamWatch]:
        """The watches in a state; LmrError if they do not fit."""
        try:
            found = unpack_all(text, tensors, rows)
            for watch in found:
                check_fit(watch, self._begin_watch(), self.classifier)
                for kept in watch.states:
                    if set(kept) != set(self.method.state):
                        raise ValueError("a snapshot of another method")
                    self.method._check_fit(kept, 1)
        except (KeyError, TypeError, ValueError, AttributeError, LmrError) as error:
            raise LmrError(f"The watch in the state cannot be used ({error}); the state is damaged.") from error
        return [self._fit_canaries(self._move_watch(watch)) for watch in found]

    def _fit_canaries(self, watch: StreamWatch) -> StreamWatch:
        """A loaded watch with no more canaries than there is room for."""
        images = watch.canaries.images
        if images is None:
            return watch
        return replace(watch, canaries=keep_first(watch.canaries, self._count_room(images[0].numel())))

    # Internals.

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """As the method; where it has followed its classifier, the kept states follow too."""
        with self.method._hold():
            if self._placement != self.method._placement:
                self.watches = [self._move_watch(watch) for watch in self.watches]
                self._placement = self.method._placement
            yield

    def _move_watch(self, watch: StreamWatch) -> StreamWatch:
        """A watch for where the classifier is now, its canaries as ``_check`` gives images."""
        clip = self.classifier
        with leave_inference_mode():
            return move_watch(
                watch,
                self.method._convert_state,
                lambda images: self._embed(images.to(clip.device, clip.dtype)).to(KEPT),
            )

    def _one(self, stream: int) -> int:
        """Check the number of a single stream."""
        return int(self._ids([stream])[0])
