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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from lmr.bench.plans.choices import DTYPES, KEYS, RESETS, TIMINGS
from lmr.bench.plans.prompts import PromptSet, read_prompt_set
from lmr.core.card import Role
from lmr.core.errors import LmrError
from lmr.core.log import hide_logs
from lmr.core.method import Method
from lmr.core.passes import make_stand_in
from lmr.core.registry import AUTO, create, expand_methods, find_method, list_methods, load_method_file, split_address
from lmr.core.spec import format_spec, parse_spec, suggest
from lmr.data.dataset import CLEAN
from lmr.data.names import ORDERS
from lmr.data.streams import Order, read_dominant
from lmr.models.backbone import DEFAULT_TEMPLATES
from lmr.models.catalog import DEFAULT_MODEL
from lmr.watch.settings import read_watch

OF_ORDERS = {
    "concentration": "dirichlet", "block": "classes", "majority": "skew", "tail": "skew", "dominant": "skew",
}  # keys that only one order uses  # fmt: skip
ORDER_KEYS = ("concentration", "block", "majority", "tail", "onset", "rounds", "mix")  # fields of ``Order``


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

    def suit(self, classes: int) -> MethodEntry:
        """Return the entry with the values that the preset "auto" stands for with this number of classes."""
        name, values = parse_spec(self.spec)
        if values.get("preset") != AUTO:
            return self
        method = find_method(name if self.file is None else f"{self.file}:{name}")
        del values["preset"]
        suited = format_spec(name, {"preset": "default"} | method.choose_values(classes) | values)
        return replace(self, spec=_try(suited).spec)

    @property
    def address(self) -> str:
        """The spec for ``create`` and the command line, after the path of the file if there is one."""
        return self.spec if self.file is None else f"{self.file}:{self.spec}"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings that each run of a part takes over; its order gets the seed and the dominant classes of the run."""

    order: Order = field(default_factory=Order)
    reset: str = "domain"
    timing: str = "wait"  # "live": the stream does not wait for a step, see running/run.py
    forgetting: int = 0  # clean images to classify after the stream
    recovery: bool = False  # also measure how far zero-shot's errors are undone; adds a forward pass that is not timed
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Part(RunSettings):
    """One ``[[runs]]`` table: all combinations of its values are run."""

    methods: tuple[MethodEntry, ...]
    datasets: tuple[str, ...]  # each may be several with | between them, see task.py
    corruptions: tuple[str, ...] = ()  # none: all of the dataset's benchmark
    severities: tuple[int, ...] = (5,)
    backbones: tuple[str, ...] = (DEFAULT_MODEL,)
    prompts: tuple[PromptSet, ...] = (PromptSet(DEFAULT_TEMPLATES[0], DEFAULT_TEMPLATES),)
    batch_sizes: tuple[int, ...] = ()  # none: the one of each method's preset
    seeds: tuple[int, ...] = (1,)
    dominant: tuple[str, ...] = ("",)  # of the order "skew", one stream for each; "": the seed draws a class
    images: int | None = None  # use only the first ones of each stream
    latin: bool = False  # of a stream through all domains: one in each order of a Latin square
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
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise LmrError(
            f"There is no plan {str(name_or_path)!r}.{suggest(str(name_or_path), known)} 'lmr bench --list' shows the "
            "plans of the package; your own plan is a file that ends with .toml."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise LmrError(f"Cannot read the plan {str(path)!r}: {error}.") from error
    return parse_plan(path.stem, text, path.parent, overrides)


def choose_plans(names: Sequence[str], overrides: Mapping[str, Any] | None = None) -> list[Plan]:
    """Return the plans with these names, files or patterns such as 'photo*', each once.

    ``overrides`` replace their values. Without a name, the overrides alone are the plan.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    for key in ("corruptions", "batch_sizes"):  # "all" and "preset" come as lists from the command line
        if given.get(key) in (["all"], ["preset"]):
            given[key] = given[key][0]
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

    Method files in ``overrides`` are looked for in the current folder first.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LmrError(f"The plan {name!r} is not a TOML file: {error}.") from error
    title, tables = _pop_title(name, content, name), content.pop("runs", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise LmrError(f"The plan {name!r} should have its runs as [[runs]] tables.")
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    near = (Path.cwd(), folder) if "methods" in given else (folder, Path.cwd())
    parts = [
        replace(_read_part(name, _combine(content | table, given), folder, near), title=heading)
        for heading, table in ((_pop_title(name, table, ""), table) for table in tables)
    ]
    return Plan(name, title, tuple(parts))


def _pop_title(plan: str, table: dict[str, Any], default: str) -> str:
    """Take the title out of a plan or a part of it."""
    title = table.pop("title", default)
    if not isinstance(title, str):
        raise LmrError(f"Expected a title in quotes in the plan {plan!r}, got {title!r}.")
    return title


def _combine(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a plan with those that replace them; keys that belong to another order are dropped."""
    dropped = {key for key, order in OF_ORDERS.items() if given.get("order", order) != order}
    return {key: value for key, value in table.items() if key not in dropped} | dict(given)


def _read_part(plan: str, table: Mapping[str, Any], folder: Path, near: Sequence[Path]) -> Part:
    """Check a table; prompt files are looked for in ``folder``, method files in the folders ``near``."""
    for key in table:
        if key not in KEYS:
            raise LmrError(
                f"The plan {plan!r} has an unknown key {key!r}.{suggest(key, KEYS)} Keys: {', '.join(KEYS)}."
            )
    for key in ("methods", "datasets"):
        if not table.get(key):
            raise LmrError(f"The plan {plan!r} does not say which {key} to run; add a list of {key}.")
    try:
        plain = {key: value for key, value in table.items() if key not in ("methods", "preset", "watch", "prompts")}
        values = {key: _read_value(key, value) for key, value in plain.items()}
        if "prompts" in table:
            values["prompts"] = tuple(read_prompt_set(entry, folder) for entry in _wrap(table["prompts"]))
        methods = _read_methods(table["methods"], tuple(_wrap(table.get("preset", []))), near)
        values["methods"] = _add_watches(methods, table.get("watch", "off"))
        _check_order(values)
    except LmrError as error:
        raise LmrError(f"In the plan {plan!r}: {error}") from error
    shape = {key: values.pop(key) for key in ORDER_KEYS if key in values}
    return Part(**values | {"order": Order(values.get("order", Order.kind), **shape)})


def _check_order(values: Mapping[str, Any]) -> None:
    """Refuse keys that exclude each other, or that the order does not use: they would give the same numbers twice."""
    kind = values.get("order", Order.kind)
    for key, order in OF_ORDERS.items():
        if key in values and kind != order:
            raise LmrError(f"The order {kind!r} has no {key}; remove it or give order = {order!r}.")
    if "majority" in values and "tail" in values:
        raise LmrError("Classes have a majority or a long tail, not both; remove one of majority and tail.")
    if kind == "haul" and values.get("corruptions") != (CLEAN,):
        raise LmrError(f"The order 'haul' corrupts clean images itself; give corruptions = {CLEAN!r}.")
    if values.get("rounds", 1) > 1 and (values.get("reset") != "never" or values.get("mix")):
        raise LmrError("Several rounds are for one stream through all corruptions; give reset = 'never' and no mix.")
    if values.get("latin") and (values.get("reset") != "never" or values.get("mix")):
        raise LmrError("Orders of domains are for one stream through all of them; give reset = 'never' and no mix.")
    if kind == "file" and values.get("seeds", Part.seeds) != Part.seeds:
        raise LmrError("The order 'file' is the same for every seed; remove the seeds or give seeds = 1.")


def _read_methods(given: Any, presets: tuple[Any, ...], near: Sequence[Path]) -> tuple[MethodEntry, ...]:
    """Read specs, or label -> spec, or a group of methods that ``expand_methods`` knows."""
    if isinstance(given, Mapping):
        pairs = [(str(label), spec) for label, spec in given.items()]
    else:
        pairs = [("", spec) for entry in _wrap(given) for spec in expand_methods(entry)]
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
    places = [folder / Path(named).expanduser() for folder in near]
    file = os.path.abspath(next((place for place in places if place.is_file()), places[0]))
    load_method_file(file)
    return spec, file


def _complete(label: str, spec: str, file: str | None, presets: Iterable[str]) -> MethodEntry:
    """Return the entry of a spec, with the first of the presets that the method has unless the spec names one."""
    name, values = parse_spec(spec)
    method = find_method(name if file is None else f"{file}:{name}")
    known = {*method.card.presets, AUTO}
    preset = values.get("preset", next((preset for preset in presets if preset in known), "default"))
    completed = format_spec(name, {"preset": preset} | values)
    with hide_logs():  # warnings about this small classifier say nothing about the one that will be used
        made = _try(completed)
    digest = None if file is None else load_method_file(file)
    size = method.card.presets["default" if preset == AUTO else preset].batch_size
    return MethodEntry(label or name_entry(spec), completed if preset == AUTO else made.spec, size, file, digest)


def _try(spec: str) -> Method:
    """Return the method on a small classifier, which checks its values; with as many classes as it has shares for."""
    prior = parse_spec(spec)[1].get("prior")
    if isinstance(prior, dict):
        raise LmrError(f"A plan does not know the class names: give {spec} the shares of all classes, in their order.")
    return create(spec, _make_small(len(prior) if isinstance(prior, tuple | list) else 2))


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


_SEVERAL = ("datasets", "corruptions", "severities", "backbones", "batch_sizes", "seeds", "dominant")
_TEXTS: dict[str, Sequence[str]] = {  # what a text may be; empty: anything
    "datasets": (), "corruptions": (), "backbones": (),
    "order": ORDERS, "reset": RESETS, "timing": TIMINGS, "dtype": DTYPES,
}  # fmt: skip
_NUMBERS = {  # the bounds of whole numbers
    "severities": (1, 5), "batch_sizes": (1, None), "seeds": (0, None), "images": (1, None), "block": (1, None),
    "onset": (0, None), "rounds": (1, None), "forgetting": (0, None),
}  # fmt: skip
_REALS = {"concentration": math.inf, "majority": 1, "tail": 1}  # above 0 and below this


def _read_value(key: str, value: Any) -> Any:
    """Return the value of a key after checking it: a tuple for a key that may have several."""
    if (key, value) in (("corruptions", "all"), ("batch_sizes", "preset")):
        return ()
    if key == "device":
        try:
            return str(torch.device(value))
        except (RuntimeError, TypeError) as error:
            raise LmrError(f"There is no {key} {value!r}; give cpu, cuda or cuda:0, for example.") from error
    if key in _REALS:
        high = _REALS[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < high:
            expected = "a positive number" if high == math.inf else "a number between 0 and 1"
            raise LmrError(f"Expected {expected} for {key}, got {value!r}.")
        return float(value)
    if key not in (*_TEXTS, *_NUMBERS, "dominant"):
        if not isinstance(value, bool):
            raise LmrError(f"Expected true or false for {key}, got {value!r}.")
        return value
    check = _check_text if key in _TEXTS else _check_number if key in _NUMBERS else _check_dominant
    found = _all_different(key, [check(key, entry) for entry in _wrap(value)])
    if key not in _SEVERAL and len(found) > 1:
        raise LmrError(f"Expected one value for {key}, got {value!r}.")
    return found if key in _SEVERAL else found[0]


def _check_text(key: str, value: Any) -> str:
    known = _TEXTS[key]
    if not isinstance(value, str) or (known and value not in known):
        hint = f"{suggest(str(value), known)} There are: {', '.join(known)}." if known else ""
        raise LmrError(f"Unknown value {value!r} for {key}.{hint}")
    return value


def _check_number(key: str, value: Any) -> int:
    low, high = _NUMBERS[key]
    if type(value) is not int or value < low or (high is not None and value > high):
        bounds = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise LmrError(f"Expected whole numbers {bounds} for {key}, got {value!r}.")
    return value


def _check_dominant(key: str, value: Any) -> str:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not text:
        raise LmrError(f"Expected classes such as 1, '1+3' or '1>3' for {key}, got {text!r}.")
    read_dominant(text)
    return text
