"""Residents: which stream has which row of the method, and who makes room for another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lmr.service.engine.records import StepNote, StreamRecord
from lmr.service.engine.working.packing import WaitingImage, Written


@dataclass(eq=False)
class Resident:
    """A stream whose state is in the method."""

    row: int
    record: StreamRecord
    exists: bool  # whether the stream is there for others, too; one that was only asked leaves no trace
    waiting: list[WaitingImage] = field(default_factory=list)  # images that wait for a step of N
    written: Written = field(default_factory=dict)  # parts of its state that are in the store
    notes: dict[int, StepNote] = field(default_factory=dict)  # of its requests since it is resident
    epoch: int = 0  # of its claim, where the store is shared


class Residents:
    """Rows and streams, the least recently used first."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._streams: OrderedDict[str, Resident] = OrderedDict()
        self._free = list(reversed(range(rows)))

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream: object) -> bool:
        return stream in self._streams

    def get(self, stream: str) -> Resident | None:
        """A resident, as one that was used."""
        found = self._streams.get(stream)
        if found is not None:
            self._streams.move_to_end(stream)
        return found

    def add(self, stream: str, resident: Resident) -> None:
        """Give a row that was taken to a stream."""
        self._streams[stream] = resident

    def take_row(self) -> int | None:
        """A free row, if there is one."""
        return self._free.pop() if self._free else None

    def give_back(self, row: int) -> None:
        """A row that was taken and is not used."""
        self._free.append(row)

    def find_epoch(self, stream: str) -> int | None:
        """The epoch of a resident; None for another stream. It does not count as a use."""
        found = self._streams.get(stream)
        return None if found is None else found.epoch

    def forget(self, stream: str) -> None:
        """Free the row of a stream."""
        found = self._streams.pop(stream, None)
        if found is not None:
            self._free.append(found.row)

    def plan(self, may_go: Callable[[str, Resident], bool]) -> RowPlan:
        """Which streams may be in a batch together, if those that ``may_go`` names can leave their rows."""
        return RowPlan(
            set(self._streams),
            {stream for stream, one in self._streams.items() if may_go(stream, one)},
            len(self._free),
        )

    def choose_leaver(self, may_go: Collection[str], needed: Collection[str]) -> str | None:
        """The least recently used of those that may go; one that is ``needed`` soon only if there is no other."""
        able = [stream for stream in self._streams if stream in may_go]
        return next((stream for stream in able if stream not in needed), able[0] if able else None)


class RowPlan:
    """Counts the rows that a batch needs while it is formed, so that each of its streams gets one."""

    def __init__(self, resident: set[str], may_go: set[str], free: int) -> None:
        self._resident, self.may_go, self._free, self._promised = resident, may_go, free, 0

    def admit(self, stream: str) -> bool:
        """Whether there is a row for this stream too; if so, it is promised."""
        if stream in self._resident and stream not in self.may_go:
            return True
        if self._promised >= self._free + len(self.may_go):
            return False
        if stream in self._resident:
            self.may_go.discard(stream)
        else:
            self._promised += 1
        return True
