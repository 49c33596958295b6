"""A fair choice of values: as many for every method, chosen on corruptions that no table judges them on.

Values are chosen once for each dataset, model, prompts, severity and batch size, by the mean accuracy on shuffled
streams of the four extra corruptions, in one order. Every part of a plan on them then runs each method in its published
values and in the chosen ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from lmr.bench.inputs import find_dataset
from lmr.bench.plans.grid import read_grid
from lmr.bench.plans.plan import MethodEntry, Part, Plan, complete_spec
from lmr.bench.plans.task import leave_out_missing, list_tasks
from lmr.bench.running.row import Row
from lmr.core.card import Role
from lmr.core.errors import LmrError
from lmr.core.registry import AUTO, find_method
from lmr.core.spec import format_spec, parse_spec
from lmr.data.corruptions import EXTRA

SPLIT = ("datasets", "backbones", "prompts", "severities", "batch_sizes")  # values are chosen for each of these
SHARED = ("dtype", "device")  # as the part has them
Scores = Mapping[tuple[str, str], float]  # address and watch of a method -> mean accuracy


def select_values(
    plans: Sequence[Plan],
    run: Callable[[Plan], list[Row]],
    root: str | None = None,
    log: Callable[[str], object] = lambda message: None,
) -> list[Plan]:
    """Return the plans with each method also in the values that are best on the extra corruptions.

    ``run`` runs the plan that tries the values; ``log`` is called with messages for the user. Parts without a grid, or
    on a dataset without the extra corruptions, stay as they are.
    """
    if not any(part.select for plan in plans for part in plan.parts):
        return list(plans)
    plans = [_split(plan) for plan in leave_out_missing(plans, root)]
    trials = _make_trials(plans, root)
    rows = {row.run: row for row in run(_make_plan(trials))} if trials else {}
    scores = {key: _score(trial, rows, root) for key, trial in trials.items()}
    without = {part.datasets[0] for plan in plans for part in plan.parts if part.select and _key(part) not in scores}
    for name in sorted(without):
        log(f"{name!r} has no extra corruptions to choose values on: its methods have their published values alone.")
    return [
        replace(plan, parts=tuple(_add_selected(part, scores.get(_key(part), {}), root) for part in plan.parts))
        for plan in plans
    ]


def list_trials(plans: Sequence[Plan], root: str | None = None) -> list[Plan]:
    """Return the plan that tries all values of the grids; nothing without a grid."""
    if not any(part.select for plan in plans for part in plan.parts):
        return []
    trials = _make_trials([_split(plan) for plan in leave_out_missing(plans, root)], root)
    return [_make_plan(trials)] if trials else []


def _make_plan(trials: Mapping[Any, Part]) -> Plan:
    return Plan("choice of values", "", tuple(trials.values()))


def _key(part: Part) -> tuple[Any, ...]:
    """Return what values are chosen for."""
    return tuple(getattr(part, name) for name in SPLIT + SHARED)


def _split(plan: Plan) -> Plan:
    """Return a plan whose parts with a grid have one dataset, model, prompt set, severity and batch size each."""
    parts: list[Part] = []
    for part in plan.parts:
        choices: list[list[tuple[Any, ...]]] = [[(value,) for value in getattr(part, name)] or [()] for name in SPLIT]
        for combined in itertools.product(*choices) if part.select else [[getattr(part, name) for name in SPLIT]]:
            values: dict[str, Any] = dict(zip(SPLIT, combined, strict=True))
            parts.append(replace(part, **values))
    return replace(plan, parts=tuple(parts))


def _make_trials(plans: Sequence[Plan], root: str | None) -> dict[tuple[Any, ...], Part]:
    """Return a part for everything that values are chosen for: all candidates on the extra corruptions."""
    trials: dict[tuple[Any, ...], Part] = {}
    for part in (part for plan in plans for part in plan.parts if part.select):
        dataset = find_dataset(part.datasets[0], root)
        if not set(EXTRA) <= {*dataset.domains, *dataset.others}:
            continue
        other, key = trials.get(_key(part)), _key(part)
        methods = dict.fromkeys([*(other.methods if other else ()), *itertools.chain(*_list_candidates(part).values())])
        lengths = [read_grid(str(part.select))[1] or part.images, *([other.images] if other else [])]
        images = None if None in lengths else max(length for length in lengths if length is not None)
        values: dict[str, Any] = dict(zip(SPLIT + SHARED, key, strict=True)) | {"seeds": part.seeds[:1]}
        trials[key] = Part(**values, methods=tuple(methods), corruptions=EXTRA, images=images)
    return trials


def _list_candidates(part: Part) -> dict[MethodEntry, list[MethodEntry]]:
    """Return each method of a part with its candidates: the published values first, then those of the grid."""
    assert part.select is not None
    (grid, _), found = read_grid(part.select), {}
    for entry in part.methods:
        name, values = parse_spec(entry.spec)
        if find_method(name).card.role is Role.BASELINE:
            continue
        if name not in grid:
            raise LmrError(f"The grid {part.select!r} has no values of {name}; every method of the plan needs as many.")
        specs = [format_spec(name, values | choice) for choice in grid[name]]
        if values.get("preset") != AUTO:  # which is completed for the number of classes
            try:
                specs = [complete_spec(spec) for spec in specs]
            except LmrError as error:
                raise LmrError(f"In the grid {part.select!r}: {error}") from error
        if entry.spec in specs:
            raise LmrError(f"The grid {part.select!r} lists the values of {entry.label} itself; they are always tried.")
        tried = [replace(entry, spec=spec, label=f"{entry.label}, value {k}") for k, spec in enumerate(specs, 1)]
        found[entry] = [entry, *tried]
    return found


def _score(trial: Part, rows: Mapping[str, Row], root: str | None) -> Scores:
    """Return the mean accuracy of every candidate whose runs are all finished."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for task in list_tasks([_make_plan({None: trial})], root):
        accuracy = rows[task.run].metrics["accuracy"] if task.run in rows else None
        found.setdefault((task.entry.address, task.entry.watch), []).append(accuracy)
    known = {who: [value for value in values if value is not None] for who, values in found.items()}
    return {who: fmean(values) for who, values in known.items() if len(values) == len(found[who])}


def _add_selected(part: Part, scores: Scores, root: str | None) -> Part:
    """Return a part with the best candidate beside each method, or in its place if that is the same."""
    if not scores:
        return part
    classes, candidates = len(find_dataset(part.datasets[0], root).classes), _list_candidates(part)
    methods: list[MethodEntry] = []
    for entry in part.methods:
        suited = [one.suit(classes) for one in candidates.get(entry, [])]
        known = {one: scores[one.address, one.watch] for one in suited if (one.address, one.watch) in scores}
        if suited and suited[0] in known:
            best = max(known, key=known.__getitem__)  # the first of equals
            facts = {
                "published": suited[0].spec, "values": len(suited), "on": ", ".join(EXTRA),
                "images": read_grid(str(part.select))[1] or part.images,
                "accuracy": known[best], "published accuracy": known[suited[0]],
            }  # fmt: skip
            same = best.spec == suited[0].spec
            methods += [replace(entry, selected=facts)] if same else [
                entry, replace(best, label=f"{entry.label}, selected", selected=facts)
            ]  # fmt: skip
        else:
            methods.append(entry)
    return replace(part, methods=tuple(methods))
