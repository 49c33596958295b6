"""Residents: the streams whose states are in memory, each in a row of the method, and the choice of who makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from lmr.service.engine.packing import Written
from lmr.service.engine.records import StepNote, StreamRecord


@dataclass(eq=False)
class Resident:
    """A stream whose state is in a row of the method."""

    row: int
    record: StreamRecord
    exists: bool  # False for a stream that was only queried: it leaves no trace
    written: Written = field(default_factory=dict)  # parts of its state that are in the store
    notes: dict[int, StepNote] = field(default_factory=dict)  # of its requests since it became resident
    epoch: int = 0  # of its claim, where the store is shared
    changed: bool = False  # since its state was packed for the store


class Residents:
    """Rows and their streams, the least recently used first."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._streams: OrderedDict[str, Resident] = OrderedDict()
        self._free = list(reversed(range(rows)))

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream: object) -> bool:
        return stream in self._streams

    def use(self, stream: str) -> Resident | None:
        """Return a resident and mark it as the most recently used."""
        if stream in self._streams:
            self._streams.move_to_end(stream)
        return self._streams.get(stream)

    def get(self, stream: str) -> Resident | None:
        """Return a resident; this does not count as use."""
        return self._streams.get(stream)

    def add(self, stream: str, resident: Resident) -> None:
        """Add a stream to which a free row was given."""
        self._streams[stream] = resident

    def take_row(self) -> int | None:
        """Return a free row, if there is one."""
        return self._free.pop() if self._free else None

    def give_back(self, row: int) -> None:
        """Return a row that was taken and not used."""
        self._free.append(row)

    def forget(self, stream: str) -> None:
        """Free the row of a stream."""
        found = self._streams.pop(stream, None)
        if found is not None:
            self._free.append(found.row)

    def list_changed(self) -> list[tuple[str, Resident]]:
        """Return the streams whose states were not packed since their last change, in the order of their names."""
        return sorted((stream, one) for stream, one in self._streams.items() if one.changed)

    def plan(self, pinned: Iterable[str]) -> RowPlan:
        """Return a plan of the rows of a batch, in which all streams but the ``pinned`` ones can be moved out."""
        return RowPlan(self, {stream for stream in pinned if stream in self._streams}, len(self._free))

    def pick_eviction(self, pinned: Collection[str], needed: Collection[str]) -> str | None:
        """Return the least recently used stream that is not ``pinned``, if possible one that is not ``needed`` soon."""
        able = None
        for stream in self._streams:
            if stream not in pinned:
                if stream not in needed:
                    return stream
                able = able or stream
        return able


class RowPlan:
    """A count of the rows that a batch needs while it is formed, so that each of its streams gets one."""

    def __init__(self, residents: Residents, pinned: set[str], free: int) -> None:
        self._residents, self.pinned = residents, pinned
        self._left = free + len(residents) - len(pinned)  # rows that can still be promised

    def admit(self, stream: str) -> bool:
        """Promise a row to a stream; return False if none is left."""
        if stream in self.pinned:
            return True
        if not self._left:
            return False
        self._left -= 1
        if stream in self._residents:
            self.pinned.add(stream)
        return True
