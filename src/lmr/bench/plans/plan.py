"""Plans: methods x datasets x corruptions x severities x backbones x prompts x batch sizes x seeds, as a TOML file.

Keys at the top of the file apply to every ``[[runs]]`` table; each table is expanded into all its combinations. A plan
is checked as a whole before anything runs.
"""

from __future__ import annotations

import fnmatch
import functools
import math
import os
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from lmr.bench.plans.fields import PlanFields
from lmr.bench.plans.grid import read_grid
from lmr.bench.plans.prompts import PromptSet, read_prompt_set
from lmr.core.card import Role
from lmr.core.errors import LmrError, MissingFile
from lmr.core.files import explain_text_error, read_text
from lmr.core.log import hide_logs
from lmr.core.passes import make_stand_in
from lmr.core.registry import AUTO, create, expand_methods, find_method, list_methods, load_method_file, split_address
from lmr.core.spec import format_spec, parse_spec, suggest
from lmr.data.streams import read_dominant
from lmr.models.backbone import DEFAULT_TEMPLATES
from lmr.watch.settings import read_watch

FIELDS = {item.name: item for item in fields(PlanFields)}
OF_ORDERS = {name: item.metadata["order"] for name, item in FIELDS.items() if "order" in item.metadata}
HINTS = typing.get_type_hints(PlanFields)


@dataclass(frozen=True)
class MethodEntry:
    """A method with all its arguments, its label in tables, and the batch size its values were chosen for.

    A method from a user's own file comes with the absolute path and the digest of the content of that file.
    """

    label: str
    spec: str  # with every argument, unless it has the preset "auto": then ``suit`` completes it
    batch_size: int
    file: str | None = None
    file_digest: str | None = None
    watch: str = ""  # the spec of the watch around it, if there is one
    selected: Mapping[str, Any] = field(default_factory=dict, compare=False)  # how its values were chosen, as in a row

    def suit(self, classes: int) -> MethodEntry:
        """Return the entry with the values that the preset "auto" stands for with this number of classes."""
        name, values = parse_spec(self.spec)
        if values.get("preset") != AUTO:
            return self
        method = find_method(name if self.file is None else f"{self.file}:{name}")
        del values["preset"]
        suited = format_spec(name, {"preset": "default"} | method.choose_values(classes) | values)
        return replace(self, spec=complete_spec(suited))

    @property
    def address(self) -> str:
        """The spec for ``create`` and the command line, after the path of the file if there is one."""
        return self.spec if self.file is None else f"{self.file}:{self.spec}"


@dataclass(frozen=True, kw_only=True)
class Part(PlanFields):
    """One ``[[runs]]`` table, checked: all combinations of its values are run."""

    methods: tuple[MethodEntry, ...]
    prompts: tuple[PromptSet, ...] = (PromptSet(DEFAULT_TEMPLATES[0], DEFAULT_TEMPLATES),)
    title: str = ""


@dataclass(frozen=True)
class Plan:
    """A name, a title and the parts to run."""

    name: str
    title: str
    parts: tuple[Part, ...]


def list_plans() -> dict[str, str]:
    """Return the plans of the package, each with its title."""
    files = (item for item in resources.files("lmr.bench").joinpath("plans").iterdir() if item.name.endswith(".toml"))
    ordered = sorted(files, key=lambda item: item.name.removesuffix(".toml"))
    return {item.name[:-5]: tomllib.loads(item.read_text("utf-8"))["title"] for item in ordered}


def read_plan(name_or_path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Plan:
    """Read a plan of the package by its name, or a file; ``overrides`` replace its values in all parts."""
    path = Path(name_or_path)
    known = list_plans()
    if str(name_or_path) in known:
        text = resources.files("lmr.bench").joinpath("plans", f"{name_or_path}.toml").read_text("utf-8")
        return parse_plan(str(name_or_path), text, Path.cwd(), overrides)
    try:
        text = read_text(path, "the plan")
    except MissingFile as error:
        raise MissingFile(
            f"There is no plan {str(name_or_path)!r}.{suggest(str(name_or_path), known)} 'lmr bench --list' shows the "
            "plans of the package; your own plan is a file that ends with .toml."
        ) from error
    return parse_plan(path.stem, text, path.parent, overrides)


def choose_plans(names: Sequence[str], overrides: Mapping[str, Any] | None = None) -> list[Plan]:
    """Return the plans with these names, files or patterns such as 'photo*', each once.

    ``overrides`` replace their values. Without a name, the overrides alone are the plan.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if not names:
        if not given:
            raise LmrError("Say what to run: a plan ('lmr bench --list' lists them), or --methods and --datasets.")
        if missing := [f"--{key}" for key in ("methods", "datasets") if not given.get(key)]:
            raise LmrError(f"Without a plan, also give {' and '.join(missing)}.")
        return [parse_plan("command line", "", Path.cwd(), given)]
    known = list_plans()
    chosen = [found for name in names for found in fnmatch.filter(known, name) or [name]]
    return [read_plan(name, given) for name in dict.fromkeys(chosen)]


def parse_plan(name: str, text: str, folder: Path, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Read a plan from a TOML text; files that it names are looked for in ``folder``, then in the current folder.

    Files of own code in ``overrides`` are looked for in the current folder first.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise LmrError(f"The plan {name!r} is not a TOML file: {explain_text_error(error)}.") from error
    title, tables = str(content.pop("title", name)), content.pop("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise LmrError(f"The plan {name!r} should have its runs as [[runs]] tables.")
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    near = {
        key: (Path.cwd(), folder) if key in given else (folder, Path.cwd())
        for key in ("methods", "backbones", "datasets")
    }
    parts = [
        replace(_read_part(name, _combine(content | table, given), folder, near), title=heading)
        for heading, table in ((str(table.pop("title", "")), table) for table in tables)
    ]
    return Plan(name, title, tuple(parts))


def _combine(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a plan with those that replace them; keys that belong to another order are dropped."""
    dropped = {key for key, order in OF_ORDERS.items() if given.get("order", order) != order}
    return {key: value for key, value in table.items() if key not in dropped} | dict(given)


def _read_part(plan: str, table: Mapping[str, Any], folder: Path, near: Mapping[str, Sequence[Path]]) -> Part:
    """Check a table; prompt files are looked for in ``folder``, files of own code in the folders ``near``."""
    for key in table:
        if key not in FIELDS:
            raise LmrError(
                f"The plan {plan!r} has an unknown key {key!r}.{suggest(key, FIELDS)} Keys: {', '.join(FIELDS)}."
            )
    for key in ("methods", "datasets"):
        if not table.get(key):
            raise LmrError(f"The plan {plan!r} does not say which {key} to run; add a list of {key}.")
    try:
        plain = {key: value for key, value in table.items() if key not in ("methods", "preset", "watch", "prompts")}
        values = {key: _read_value(FIELDS[key], value) for key, value in plain.items()}
        if "prompts" in table:
            values["prompts"] = tuple(read_prompt_set(entry, folder) for entry in _wrap(table["prompts"]))
        if "select" in values:
            near_plan = folder / values["select"]
            values["select"] = str(near_plan if near_plan.is_file() else Path(values["select"]).absolute())
            read_grid(values["select"])
        for key in ("backbones", "datasets"):
            if key in values:
                values[key] = tuple(_place(address, near[key]) for address in values[key])
        methods = _read_methods(table["methods"], tuple(_wrap(table.get("preset", []))), near["methods"])
        values["methods"] = _add_watches(methods, table.get("watch", "off"))
        _check_order(values)
    except LmrError as error:
        raise LmrError(f"In the plan {plan!r}: {error}") from error
    return Part(**values)


def _check_order(values: Mapping[str, Any]) -> None:
    """Refuse keys that exclude each other, or that the order does not use: they would give the same numbers twice."""
    kind = values.get("order", Part.order)
    for key, order in OF_ORDERS.items():
        if key in values and kind != order:
            raise LmrError(f"The order {kind!r} has no {key}; remove it or give order = {order!r}.")
    if "majority" in values and "tail" in values:
        raise LmrError("Classes have a majority or a long tail, not both; remove one of majority and tail.")


def _read_methods(given: Any, presets: tuple[Any, ...], near: Sequence[Path]) -> tuple[MethodEntry, ...]:
    """Read specs, label -> spec, and groups of methods that ``expand_methods`` knows."""
    pairs: list[tuple[str, Any]] = []
    for entry in _wrap(given):
        pairs += entry.items() if isinstance(entry, Mapping) else [("", spec) for spec in expand_methods(entry)]
    found = [(label, *_find_file(spec, near)) for label, spec in pairs]
    for preset in presets:
        known = sorted({AUTO, *(name for method in list_methods() for name in find_method(method).card.presets)})
        if preset not in known:
            raise LmrError(
                f"No method has a preset {preset!r}.{suggest(str(preset), known)} There are: {', '.join(known)}."
            )
    entries = [_complete(label, spec, file, presets) for label, spec, file in found]
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise LmrError(f"Two methods are called {label!r}; give them names: methods = {{ 'a' = 'lmr', ... }}.")
    return tuple(entries)


def _add_watches(methods: tuple[MethodEntry, ...], given: Any) -> tuple[MethodEntry, ...]:
    """Return each method under each of the watches; the frozen classifier needs none."""
    found: dict[MethodEntry, None] = {}
    for settings in map(read_watch, _all_different("watch", _wrap(given))):
        for method in methods:
            if settings is None or find_method(parse_spec(method.spec)[0]).card.role is Role.BASELINE:
                found[method] = None
            else:
                found[replace(method, label=f"{method.label}, {settings.label}", watch=settings.spec)] = None
    return tuple(found)


def _find_file(address: Any, near: Sequence[Path]) -> tuple[Any, str | None]:
    """Return the spec and the absolute path of the file that it names, if it does; register the methods of the file."""
    named, spec = split_address(address)
    if named is None:
        return spec, None
    file = _find_code(named, near)
    load_method_file(file)
    return spec, file


def _find_code(named: str, near: Sequence[Path]) -> str:
    """Return the absolute path of a file in the first of some folders that has it."""
    places = [folder / Path(named).expanduser() for folder in near]
    return os.path.abspath(next((place for place in places if place.is_file()), places[0]))


def _place(address: str, near: Sequence[Path]) -> str:
    """Return a model or dataset in a file or a folder under its absolute path, other names as they are."""
    named, name = split_address(address)
    if named is not None:
        return f"{_find_code(named, near)}:{name}"
    path = Path(address).expanduser()
    return str(path.absolute()) if "/" in address and path.is_dir() else address


def _complete(label: str, spec: str, file: str | None, presets: Iterable[str]) -> MethodEntry:
    """Return the entry of a spec, with the first of the presets that the method has unless the spec names one."""
    name, values = parse_spec(spec)
    method = find_method(name if file is None else f"{file}:{name}")
    known = {*method.card.presets, AUTO}
    preset = values.get("preset", next((preset for preset in presets if preset in known), "default"))
    completed = format_spec(name, {"preset": preset} | values)
    made = complete_spec(completed)
    digest = None if file is None else load_method_file(file)
    size = method.card.presets["default" if preset == AUTO else preset].batch_size
    return MethodEntry(label or name_entry(spec), completed if preset == AUTO else made, size, file, digest)


def complete_spec(spec: str) -> str:
    """Return a spec with every argument; a small classifier, with as many classes as it has shares for, checks it."""
    prior = parse_spec(spec)[1].get("prior")
    if isinstance(prior, dict):
        raise LmrError(f"A plan does not know the class names: give {spec} the shares of all classes, in their order.")
    with hide_logs():  # warnings about this small classifier say nothing about the one that will be used
        return create(spec, _make_small(len(prior) if isinstance(prior, tuple | list) else 2)).spec


_make_small = functools.cache(make_stand_in)


def name_entry(spec: str) -> str:
    """Return the label of a method in tables, followed by the arguments that were given."""
    name, values = parse_spec(spec)
    label = find_method(name).card.label
    shown = ", ".join(f"{key}={value}" for key, value in values.items() if key != "preset")
    return f"{label} ({shown})" if shown else label


def _wrap(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _all_different(key: str, values: list[Any]) -> tuple[Any, ...]:
    if not values or len(set(values)) < len(values):
        raise LmrError(f"Expected at least one entry and none twice in {key}, got {values}.")
    return tuple(values)


def _read_value(item: Field[Any], value: Any) -> Any:
    """Return the value of a field after checking it: a tuple for a field that may have several."""
    if item.name in ("corruptions", "batch_sizes") and value in ("all", ["all"], "preset", ["preset"]):
        return ()
    hint = HINTS[item.name]
    several = typing.get_origin(hint) is tuple
    kind = next(own for own in (typing.get_args(hint) or (hint,)) if own is not type(None))
    found = [_check_value(item, kind, entry) for entry in _wrap(value)]
    if several:
        return _all_different(item.name, found)
    if len(found) != 1:
        raise LmrError(f"Expected one value for {item.name}, got {value!r}.")
    return found[0]


def _check_value(item: Field[Any], kind: type, value: Any) -> Any:
    """Return one value of a field; raise LmrError if it is not of the field's type or out of its bounds."""
    name, bounds = item.name, item.metadata
    if name == "device":
        try:
            return str(torch.device(value))
        except (RuntimeError, TypeError) as error:
            raise LmrError(f"There is no {name} {value!r}; give cpu, cuda or cuda:0, for example.") from error
    if name == "dominant":
        read_dominant(str(value))
        return str(value)
    choices = bounds.get("choices", ())
    if kind is bool:
        right, expected = isinstance(value, bool), "true or false"
    elif kind is float:
        right, expected = type(value) in (int, float) and 0 < value < bounds["below"], "a positive number"
        expected += f" below {bounds['below']}" if bounds["below"] < math.inf else ""
    elif kind is int:
        low, high = bounds["low"], bounds["high"]
        right = type(value) is int and low <= value <= (high or math.inf)
        expected = f"whole numbers from {low}" + (f" to {high}" if high else "")
    else:
        right = isinstance(value, str) and value in (choices or (value,))
        expected = f"one of {', '.join(choices)}" if choices else "a text"
    if not right:
        raise LmrError(f"Expected {expected} for {name}, got {value!r}.{suggest(str(value), choices)}")
    return float(value) if kind is float else value
