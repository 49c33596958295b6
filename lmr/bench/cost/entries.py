"""Which contenders take part, in words that can be handed to another process and found again in the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lmr.core.errors import LmrError
from lmr.core.registry import find_method
from lmr.core.spec import parse_spec

Kind = Literal["forward", "transformers", "method", "plain", "streams", "singles"]

TWO_TOWERS = ("batclip", "bitta")  # methods that encode all prompts with gradient at every batch
METHODS = ("zeroshot", "lmr", "tent", "batclip")
FROZEN = ("zeroshot", "tda", "ecalp")  # methods that have no backward
SHARES = {"all": 1.0, "half": 0.5, "none": 0.0}


@dataclass(frozen=True)
class Entry:
    """One contender. ``past`` says how many samples of the batch pass LMR's gate."""

    kind: Kind
    spec: str = ""  # of the method; "lmr" or "tent" for a plain loop
    past: str = "all"
    streams: int = 1
    lean: bool = False
    whole: bool = False  # prompts of the full context, all in one graph

    @property
    def gated(self) -> bool:
        """Whether the cost depends on the samples past LMR's gate."""
        return self.method == "lmr"

    @property
    def method(self) -> str:
        """The name of the method without its arguments; empty for a forward."""
        return parse_spec(self.spec)[0] if self.spec else ""

    @property
    def name(self) -> str:
        """What the table says."""
        if self.kind == "forward":
            return "forward"
        if self.kind == "transformers":
            return "transformers forward"
        if self.kind == "plain":
            return f"plain {self.spec.upper()}"
        if self.kind in ("streams", "singles"):
            return f"{self.streams} streams x 1" if self.kind == "streams" else f"{self.streams} single steps"
        parts = [self.spec, f"{self.past} past" * self.gated, "lean" * self.lean, "full context" * self.whole]
        return ", ".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """What the aims call it: no arguments and no numbers."""
        if self.kind == "plain":
            return f"plain {self.method}"
        if self.kind != "method" or self.lean or self.whole:
            return self.kind if self.kind != "method" else ""
        return f"{self.method} {self.past}" if self.gated else self.method

    def count_past(self, batch_size: int) -> int:
        """How many of so many samples shall pass the gate."""
        return int(SHARES[self.past] * batch_size)


def plan_entries(
    methods: Sequence[str],
    batch_size: int,
    streams: int,
    *,
    transformers: bool,
    text: bool,
    lean: bool = False,
    full_context: bool = False,
) -> list[Entry]:
    """All contenders of a table, without those that this model cannot have."""
    entries = [Entry("forward")]
    if transformers:
        entries.append(Entry("transformers"))
    for spec in methods:
        entries += _expand(spec, batch_size)
    if lean:
        entries += [Entry("method", spec, lean=True) for spec in methods if parse_spec(spec)[0] not in FROZEN]
    if full_context and text:
        entries.append(Entry("method", "batclip", whole=True))
    if transformers:
        entries += [Entry("plain", "lmr"), Entry("plain", "tent")]
    if streams > 1:
        entries += [Entry("streams", "lmr", streams=streams), Entry("singles", "lmr", streams=streams)]
    entries = [entry for entry in entries if text or entry.method not in TWO_TOWERS]
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise LmrError(f"Name every method once, got {name!r} twice.")
    return entries


def _expand(spec: str, batch_size: int) -> list[Entry]:
    """A method once; LMR with all, half and none of the samples past its gate."""
    name, _ = parse_spec(spec)
    find_method(name)
    if name != "lmr":
        return [Entry("method", spec)]
    return [Entry("method", spec, past) for past in SHARES if past != "half" or batch_size > 1]
