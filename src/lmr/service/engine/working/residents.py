"""Residents: which stream has which row of the method, and who makes room for another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
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

    def list_existing(self) -> set[str]:
        """The streams that are there for others, too."""
        return {stream for stream, one in self._streams.items() if one.exists}

    def plan(self, stay: Iterable[str]) -> RowPlan:
        """Which streams may be in a batch together, if all but those that ``stay`` can leave their rows."""
        return RowPlan(self, {stream for stream in stay if stream in self._streams}, len(self._free))

    def choose_leaver(self, stay: Collection[str], needed: Collection[str]) -> str | None:
        """The least recently used that need not ``stay``; one that is ``needed`` soon only if there is no other."""
        able = None
        for stream in self._streams:
            if stream not in stay:
                if stream not in needed:
                    return stream
                able = able or stream
        return able


class RowPlan:
    """Counts the rows that a batch needs while it is formed, so that each of its streams gets one."""

    def __init__(self, residents: Residents, stay: set[str], free: int) -> None:
        self._residents, self.stay = residents, stay
        self._left = free + len(residents) - len(stay)  # rows that can be promised

    def admit(self, stream: str) -> bool:
        """Whether there is a row for this stream too; if so, it is promised."""
        if stream in self.stay:
            return True
        if not self._left:
            return False
        self._left -= 1
        if stream in self._residents:
            self.stay.add(stream)
        return True
