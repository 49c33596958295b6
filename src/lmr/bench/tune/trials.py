"""Trials: several entries adapt to the same images in one pass, and what they answer is kept.

Every batch is prepared once. The frozen model answers it once, and every entry adapts on it and answers it. Labels are
not part of anything here.
"""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmr.bench.inputs import AnyMethod
from lmr.bench.tune.criteria import CRITERIA, Evidence
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.registry import split_address
from lmr.core.spec import format_spec, parse_spec
from lmr.core.state import read_state, write_state
from lmr.watch.watched import Watched

SAVE_SECONDS = 30.0  # between checkpoints


class TrialBatch(NamedTuple):
    """Preprocessed images [B, ...], and the place of each in its source: images that cannot be read are left out."""

    images: Tensor
    places: list[int]


class Trials:
    """The trials of all entries on one source of images; ``key`` identifies both in the checkpoint ``path``."""

    def __init__(self, methods: Sequence[AnyMethod], key: str, path: Path | None = None) -> None:
        self.methods, self.key, self.path = methods, key, path
        self.classifier: ZeroShot = methods[0].classifier
        self.batches, self.places = 0, torch.empty(0, dtype=torch.int64)
        self.frozen: list[Tensor] = []
        self.answers: list[list[Tensor]] = [[] for _ in methods]  # of every entry, batch by batch
        self._within = False  # a batch: some entries have taken it, others have not

    def run(
        self,
        read: Callable[[int], Iterator[TrialBatch]],
        report: Callable[[int], object] = lambda images: None,
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        """Take all batches that ``read`` gives from a batch number on; an earlier checkpoint is continued."""
        self._restore()
        report(len(self.places))
        saved = time.monotonic()
        try:
            for batch in read(self.batches):
                self._take(batch)
                report(len(batch.places))
                if time.monotonic() - saved >= save_seconds:
                    self._save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            self._save()
            raise
        if not len(self.places):
            raise LmrError("None of the images can be read, so that there is nothing to choose by.")

    def collect(self) -> list[Evidence]:
        """Return the answers of every entry."""
        frozen = torch.cat(self.frozen)
        return [Evidence(torch.cat(own), frozen) for own in self.answers]

    def score(self) -> list[dict[str, float]]:
        """Return the scores of every entry, by criterion."""
        return [{name: measure(evidence) for name, measure in CRITERIA.items()} for evidence in self.collect()]

    def delete_checkpoint(self) -> None:
        """Remove the checkpoint of trials whose scores are kept elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _take(self, batch: TrialBatch) -> None:
        self._within = True
        if batch.places:
            with torch.no_grad():
                frozen = self.classifier(batch.images).softmax(1)
            for method, own in zip(self.methods, self.answers, strict=True):
                own.append(method.step(batch.images).probabilities.float().cpu())
            self.frozen.append(frozen.float().cpu())
            self.places = torch.cat([self.places, torch.tensor(batch.places)])
        self.batches += 1
        self._within = False

    def _save(self) -> None:
        if self.path is None or self._within or not self.frozen:
            return  # interrupted within a batch: the last checkpoint stays
        tensors = {"places": self.places, "frozen": torch.cat(self.frozen)}
        facts = {"key": self.key, "batches": str(self.batches)}
        for number, method in enumerate(self.methods):
            tensors[f"{number}.probabilities"] = torch.cat(self.answers[number])
            state = method.state_dict()
            tensors |= {f"{number}.state.{key}": value for key, value in state.pop("tensors").items()}
            facts |= {f"{number}.state.{key}": str(value) for key, value in state.items()}
        write_state(self.path, tensors, facts)

    def _restore(self) -> None:
        """Continue from the checkpoint; one that is damaged or of other trials is ignored."""
        if self.path is None or not self.path.exists():
            return
        try:
            tensors, facts = read_state(self.path)
            if facts["key"] == self.key:
                self._fill(tensors, facts)
        except (LmrError, KeyError):
            self._start_again()

    def _fill(self, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
        """Take what a checkpoint holds; an LmrError or KeyError if it does not fit."""
        batches = facts["batches"]
        if not batches.isdecimal():
            raise LmrError(f"Expected a number of batches in {str(self.path)!r}, got {batches!r}.")
        for number, method in enumerate(self.methods):
            start = f"{number}.state."
            own = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
            texts = {key.removeprefix(start): value for key, value in facts.items() if key.startswith(start)}
            method.load_state_dict({**texts, "tensors": own})
            self.answers[number] = [tensors[f"{number}.probabilities"]]
        self.frozen, self.places = [tensors["frozen"]], tensors["places"]
        self.batches = int(batches)
        if {len(parts[0]) for parts in (*self.answers, self.frozen)} != {len(self.places)}:
            raise LmrError(f"The answers in {str(self.path)!r} are not of the same images.")

    def _start_again(self) -> None:
        self.batches, self.places, self.frozen = 0, torch.empty(0, dtype=torch.int64), []
        self.answers = [[] for _ in self.methods]
        for method in self.methods:
            (method.forget if isinstance(method, Watched) else method.reset)()  # a reset would stay as an event


def read_values(text: str) -> tuple[str, tuple[Any, ...]]:
    """Read ``"lr=3e-4,1e-3"`` as an argument and its values; a word that is not a Python literal is a string."""
    key, equals, values = text.partition("=")
    words = [word.strip() for word in values.split(",")]
    if not key.strip().isidentifier() or not equals or not all(words):
        raise LmrError(f'Cannot read the values {text!r}; write them as in "lr=3e-4,1e-3,3e-3".')
    found = tuple(_read_literal(word) for word in words)
    if len(set(map(repr, found))) < len(found):
        raise LmrError(f"Expected every value once in {text!r}.")
    return key.strip(), found


def list_entries(method: str, over: Sequence[str]) -> list[str]:
    """Return the method as it is, then with every combination of the values in ``over``: addresses for ``create``.

    Equal ones are not removed here: only a created method knows its values.
    """
    file, spec = split_address(method)
    name, given = parse_spec(spec)
    axes = [read_values(text) for text in over]
    keys = [key for key, _ in axes]
    if len(set(keys)) < len(keys):
        raise LmrError(f"Expected every argument once in --over, got {', '.join(keys)}.")
    made = [format_spec(name, given | dict(zip(keys, chosen, strict=True)))
            for chosen in itertools.product(*(values for _, values in axes))]  # fmt: skip
    return [address if file is None else f"{file}:{address}" for address in (format_spec(name, given), *made)]


def _read_literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
