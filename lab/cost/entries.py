"""The entries of a cost table, as values that can be given to another process and that the aims can refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lab.cost.plain import list_plain_loops
from lab.cost.settings import STREAMS_METHOD, SWITCHES
from lmr.bench.cost.measure import make_absolute
from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.registry import find_addressed, split_address
from lmr.core.spec import format_spec, parse_spec

Kind = Literal["forward", "transformers", "prompts", "context", "method", "plain", "streams", "singles"]

NAMES: dict[Kind, str] = {  # of entries without a method
    "forward": "forward",
    "transformers": "transformers forward",
    "prompts": "prompts forward",
    "context": "prompts gradient",
}

SHARES = {"all": 1.0, "half": 0.5, "none": 0.0}


@dataclass(frozen=True)
class Entry:
    """One line of a cost table. ``past`` is the share of samples that pass the gate of a method that has one."""

    kind: Kind
    spec: str = ""  # of the method, with its file where it is not installed; the method's name for a plain loop
    past: str = "all"
    streams: int = 1
    lean: bool = False
    whole: bool = False  # prompts of the full context, all in one graph

    @cached_property
    def method(self) -> type[Method] | None:
        """The method; None for an entry that is a part of a step."""
        return find_addressed(self.spec) if self.spec else None

    @property
    def gated(self) -> bool:
        """True if the cost depends on the samples past a gate."""
        return self.method is not None and self.method.card.gated

    @property
    def learns(self) -> bool:
        """True if a step has a backward through the image tower."""
        return self.method is not None and Tower.IMAGE in self.method.towers

    @property
    def needs_text(self) -> bool:
        """True if the text tower or its input adapts, so that every class needs a prompt."""
        return self.kind in ("prompts", "context") or (self.method is not None and Tower.TEXT in self.method.towers)

    @property
    def learns_context(self) -> bool:
        """True if the words around the class names adapt, which all prompts begin with."""
        own = self.method is not None and self.method.trained == "context words"
        return own or self.kind in ("prompts", "context")

    @property
    def name(self) -> str:
        """The name in the table."""
        if self.kind in NAMES:
            return NAMES[self.kind]
        if self.kind == "plain":
            return f"plain {self.method.card.label if self.method else ''}"
        if self.kind in ("streams", "singles"):
            return f"{self.streams} streams x 1" if self.kind == "streams" else f"{self.streams} single steps"
        _, spec = split_address(self.spec)
        parts = [spec, f"{self.past} past" * self.gated, "lean" * self.lean, "full context" * self.whole]
        return ", ".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """The name in the aims: that of the method, its switches if it has any, and the share past its gate."""
        if self.method is None or self.kind in ("streams", "singles"):
            return self.kind
        if self.kind == "plain":
            return f"plain {self.method.name}"
        if self.lean or self.whole:
            return ""
        given = parse_spec(split_address(self.spec)[1])[1]
        switches = {key: value for key, value in given.items() if key in ("pace", "share")}
        name = format_spec(self.method.name, switches) if switches else self.method.name
        return f"{name} {self.past}" if self.gated else name

    def count_past(self, batch_size: int) -> int:
        """Return the number of samples of a batch that pass the gate."""
        return int(SHARES[self.past] * batch_size)


@dataclass(frozen=True)
class EntryKinds:
    """The kinds of entries that a table has, and that the model can have."""

    transformers: bool  # forward and plain loops on transformers
    text: bool  # methods that adapt the text tower or its input
    switches: bool = False
    lean: bool = False
    full_context: bool = False


def list_entries(methods: Sequence[str], batch_size: int, streams: int, kinds: EntryKinds) -> list[Entry]:
    """Return all entries of a table, without those that this model cannot have."""
    methods = [make_absolute(spec) for spec in methods]
    given = [Entry("method", spec) for spec in methods]
    entries = [Entry("forward")]
    if kinds.transformers:
        entries.append(Entry("transformers"))
    if any(entry.learns_context for entry in given):
        entries += [Entry("prompts"), Entry("context")]
    for entry in given:
        entries += _expand(entry, batch_size)
    if kinds.switches:
        entries += [Entry("method", spec) for spec in SWITCHES if spec not in methods]
    if kinds.lean:
        entries += [Entry("method", entry.spec, lean=True) for entry in given if entry.learns]
    if kinds.full_context:
        entries += [Entry("method", entry.spec, whole=True) for entry in given if entry.needs_text]
    if kinds.transformers:
        entries += [Entry("plain", name) for name in list_plain_loops()]
    if streams > 1:
        entries += [Entry(kind, STREAMS_METHOD, streams=streams) for kind in ("streams", "singles")]
    entries = [entry for entry in entries if kinds.text or not entry.needs_text]
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise LmrError(f"Name every method once, got {name!r} twice.")
    return entries


def _expand(entry: Entry, batch_size: int) -> list[Entry]:
    """Return a method once, or with all, half and none of the samples past its gate."""
    if not entry.gated:
        return [entry]
    return [Entry("method", entry.spec, past) for past in SHARES if past != "half" or batch_size > 1]
