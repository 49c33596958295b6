"""ChangeLog: recent changes under increasing numbers, for clients that follow them. Its size is bounded."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lmr.service.engine.records import DELETED, StreamRecord
from lmr.service.engine.status import ServiceEvent

MOST_STREAMS, MOST_EVENTS = 20_000, 1_000


class ChangeLog:
    """The last events, and the last record of each recently changed stream. Its owner guards it."""

    def __init__(self, last: int, by_health: Mapping[str, int]) -> None:
        self.last = last  # the last published number
        self.by_health = Counter(by_health)
        self.by_phase: Counter[str] = Counter()  # of the streams in ``records``
        self.by_camera: Counter[str] = Counter()  # of the same streams
        self.records: OrderedDict[str, StreamRecord] = OrderedDict()  # by number
        self._events: deque[tuple[int, ServiceEvent]] = deque()  # by number
        self._numbers = itertools.count(last + 1)
        self._lost = last  # changes up to this number are no longer known

    def take_number(self) -> int:
        """Return a number for an event or a change, larger than all before."""
        return next(self._numbers)

    def publish(self, events: Iterable[ServiceEvent], records: Iterable[tuple[str, StreamRecord]]) -> None:
        """Add events, and records of streams with the health before, which is "" for a new stream."""
        for event in events:
            self._events.append((self._advance(event.number), event))
        for before, record in records:
            self._count(self.records.get(record.stream), -1)
            self._count(record, 1)
            self.records[record.stream] = replace(record, change=self._advance(record.change))
            self.records.move_to_end(record.stream)
            if before:
                self.by_health[before] -= 1
            if record.health != DELETED:
                self.by_health[record.health] += 1
        while len(self._events) > MOST_EVENTS:
            self._lost = max(self._lost, self._events.popleft()[0])
        while len(self.records) > MOST_STREAMS:
            oldest = self.records.popitem(last=False)[1]
            self._count(oldest, -1)
            self._lost = max(self._lost, oldest.change)

    def count(self) -> int:
        """Return the number of streams."""
        return sum(self.by_health.values())

    def recount(self, by_health: Mapping[str, int], last: int) -> None:
        """Set the number of streams by health and the last change, for a store that other engines change too.

        An engine whose clock is behind numbers its changes above those of the others.
        """
        self.by_health = Counter(by_health)
        self._numbers = itertools.count(max(next(self._numbers), last + 1))

    def read(self, after: int, limit: int) -> tuple[int, list[ServiceEvent], list[StreamRecord], bool]:
        """Return the last number that is covered, the events and records above ``after``, and True if some are lost."""
        if after < self._lost or after > self.last:
            return self.last, [], [], True
        records: list[StreamRecord] = []
        for record in reversed(self.records.values()):
            if record.change <= after:
                break
            records.append(record)
        records.reverse()
        events = [(number, event) for number, event in self._events if number > after]
        upto = self.last
        for found in ([record.change for record in records], [number for number, _ in events]):
            if len(found) > limit:
                upto = min(upto, found[limit - 1])
        return (
            upto,
            [event for number, event in events if number <= upto],
            [record for record in records if record.change <= upto],
            False,
        )

    def _count(self, record: StreamRecord | None, number: int) -> None:
        if record is None or record.health == DELETED:
            return
        self.by_camera[record.picture.state] += number
        if record.adapting is not None:
            self.by_phase[record.adapting] += number

    def _advance(self, number: int) -> int:
        """Return the number to publish under: the given one, unless a larger one was published before."""
        self.last = number if number > self.last else self.take_number()
        return self.last
