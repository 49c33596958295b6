"""Values of the store: bytes and texts whose meaning only the engine knows."""

from __future__ import annotations

from dataclasses import dataclass, field


class StoreError(OSError):
    """The store cannot be read or written now; the message says why."""


@dataclass(frozen=True)
class StoredState:
    """The state of a stream: the file of the method's tensors, the watch as a JSON text, and named parts.

    Parts are values that change rarely, such as snapshots. When written, ``parts`` holds the new ones, and None for
    removed ones; when read, it holds all.
    """

    content: bytes
    watch: str = ""
    parts: dict[str, bytes | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.content) + len(self.watch) + sum(len(part) for part in self.parts.values() if part is not None)


@dataclass(frozen=True)
class StoredRecord:
    """The record of a stream as a JSON text, with the fields that lists and counts need.

    When read, ``content`` is empty if the text is damaged: the stream can still be listed and deleted.
    """

    health: str
    change: int
    content: str


@dataclass(frozen=True)
class KeptAnswer:
    """An answer as a JSON text, kept under the key of its request.

    When read, ``content`` is empty if the text is damaged: to apply the request again would be worse.
    """

    key: str
    digest: str
    content: str


@dataclass(frozen=True)
class Claim:
    """The claim of an engine on a stream: its record and state, if it exists, and the epoch for its commits.

    ``damage`` says what is wrong with a state that cannot be read.
    """

    record: StoredRecord | None
    epoch: int = 0
    state: StoredState | None = None
    damage: str = ""


@dataclass(frozen=True)
class StoreSummary:
    """The number of streams of each health, the largest number of a change, and the bytes on the disk."""

    by_health: dict[str, int]
    last_change: int
    size: int


Refusals = dict[str, KeptAnswer | None]  # streams, with the answer that is kept if the request was applied before


@dataclass
class StreamChange:
    """The changes of one stream. ``fresh`` deletes what is stored of it first; without a record, that is all."""

    record: StoredRecord | None = None
    state: StoredState | None = None
    steps: dict[int, str] = field(default_factory=dict)  # notes of requests by their number, as JSON texts
    answers: list[KeptAnswer] = field(default_factory=list)
    fresh: bool = False

    def add(self, later: StreamChange) -> StreamChange:
        """Return both changes as one."""
        if later.fresh:
            return later
        return StreamChange(
            later.record or self.record,
            later.state or self.state,
            self.steps | later.steps,
            self.answers + later.answers,
            self.fresh,
        )


@dataclass
class Transaction:
    """Changes that are written together or not at all.

    ``epochs`` are those of the streams that were changed or read, where a store is shared: it refuses what rests on
    an old one.
    """

    streams: dict[str, StreamChange] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)  # their streams and JSON texts
    epochs: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.streams or self.events or self.epochs)

    def add(self, stream: str, change: StreamChange) -> None:
        """Add a change of one stream."""
        self.streams[stream] = self.streams[stream].add(change) if stream in self.streams else change

    def extend(self, later: Transaction) -> Transaction:
        """Add a later transaction; return the changes that it drops, of streams that were deleted or read again."""
        dropped = {stream: self.streams[stream] for stream, change in later.streams.items()
                   if change.fresh and stream in self.streams}  # fmt: skip
        for stream, epoch in later.epochs.items():
            if stream in self.streams and self.epochs.get(stream, epoch) != epoch:  # it was read again since
                dropped[stream] = self.streams.pop(stream)
        for stream, change in later.streams.items():
            self.add(stream, change)
        self.events += later.events
        self.epochs |= later.epochs
        return Transaction(dropped)

    @property
    def size(self) -> int:
        """Return the approximate number of bytes."""
        changes = self.streams.values()
        states = sum(change.state.size for change in changes if change.state is not None)
        texts = sum(len(text) for change in changes for text in change.steps.values())
        return states + texts + sum(len(kept.content) for change in changes for kept in change.answers)
