"""Datasets that a plan may choose from: ``cifar10-c|photo-c`` is the first of these that is under the root.

An entry that ends with ``|`` is left out where none of its datasets is there. Only a missing dataset is passed over; a
damaged one is an error. Rows state the dataset that was used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmr.bench.plans.plan import Part, Plan
from lmr.bench.running.inputs import find_dataset
from lmr.core.errors import LmrError
from lmr.data.dataset import MissingData

BETWEEN = "|"
OWN = ("folder:", "csv:")  # what follows is a path, which may hold any character


@dataclass(frozen=True)
class DatasetChoice:
    """What an entry of a plan stands for under one root: a dataset, or None where the entry is left out.

    ``words`` tell the user what is used instead of what; empty if the first dataset is there.
    """

    entry: str
    name: str | None
    words: str = ""


def split_entry(entry: str) -> tuple[list[str], bool]:
    """The datasets of an entry in order, and whether it may be left out."""
    names: list[str] = []
    rest = entry
    while BETWEEN in rest and not rest.startswith(OWN):
        name, _, rest = rest.partition(BETWEEN)
        names.append(name.strip())
    optional = bool(names) and not rest.strip()
    names += [] if optional else [rest if rest.startswith(OWN) else rest.strip()]
    if not all(names):
        raise LmrError(
            f"Cannot read the datasets {entry!r}; write them as in 'cifar10-c|photo-c', or 'cifar100-c|' for one that "
            "may be missing."
        )
    return names, optional


def choose_dataset(entry: str, root: str | None = None) -> DatasetChoice:
    """The first dataset of an entry that is there; if none is, the error about the first, unless it may be left out."""
    names, optional = split_entry(entry)
    missing: list[MissingData] = []
    for name in names:
        try:
            found = find_dataset(name, root)
        except MissingData as error:
            missing.append(error)
            continue
        if not missing:
            return DatasetChoice(entry, name)
        used = f"{name!r} is used instead, {found.count(found.domains[0]):,} images"
        return DatasetChoice(entry, name, _tell(names[0], missing[0], used))
    if not optional:
        raise missing[0]
    return DatasetChoice(entry, None, _tell(names[0], missing[0], "it is left out"))


def _tell(name: str, error: MissingData, outcome: str) -> str:
    return f"The dataset {name!r} is not in {str(error.root)!r}: {outcome}. {error.advice}"


def settle_datasets(plans: Sequence[Plan], root: str | None = None) -> tuple[list[Plan], list[DatasetChoice]]:
    """The plans with the datasets that are there, and the choice for every entry, each once.

    A plan of which nothing is left raises LmrError with the commands that get its datasets.
    """
    entries = dict.fromkeys(entry for plan in plans for part in plan.parts for entry in part.datasets)
    choices = {entry: choose_dataset(entry, root) for entry in entries}
    settled = []
    for plan in plans:
        parts = [_settle_part(part, choices) for part in plan.parts]
        kept = tuple(part for part in parts if part.datasets)
        if not kept:
            lost = dict.fromkeys(choices[entry].words for part in plan.parts for entry in part.datasets)
            raise LmrError(f"The plan {plan.name!r} has nothing left to run. {' '.join(lost)}")
        settled.append(replace(plan, parts=kept))
    return settled, list(choices.values())


def _settle_part(part: Part, choices: dict[str, DatasetChoice]) -> Part:
    names = [choices[entry].name for entry in part.datasets]
    return replace(part, datasets=tuple(dict.fromkeys(name for name in names if name is not None)))
