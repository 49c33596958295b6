"""The registry: a method is found, configured and made by its spec string."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method, list_arguments
from lmr.core.spec import parse_spec, suggest

_METHODS: dict[str, type[Method]] = {}
_M = TypeVar("_M", bound=type[Method])


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def register(name: str) -> Callable[[_M], _M]:
    """Make a subclass of Method a dataclass whose fields are its arguments, and let ``create`` find it by ``name``."""

    def enter(method: _M) -> _M:
        if name in _METHODS:
            raise LmrError(f"There is a method {name!r} already: {_METHODS[name].__module__}.")
        made = dataclasses.dataclass(kw_only=True, eq=False, repr=False)(method)
        made.name = name
        _METHODS[name] = made
        return method

    return enter


def list_methods() -> list[str]:
    """The names of all methods, in alphabetical order."""
    return sorted(_METHODS)


def find_method(name: str) -> type[Method]:
    """The class behind a name; an unknown one is answered with the nearest."""
    if not isinstance(name, str) or name not in _METHODS:
        raise LmrError(f"There is no method {name!r}.{suggest(name, _METHODS)} There are: {', '.join(list_methods())}.")
    return _METHODS[name]


def create(spec: str, clip: ZeroShot, /, *, preset: str | None = None, streams: int = 1, **arguments: Any) -> Method:
    """Make a method from its spec string, for example ``create("lmr(lr=1e-3)", clip)``.

    What is given in the call wins over the string, the string over the preset, the preset over the defaults. A preset
    may also stand in the string: ``lmr(preset="cifar10-c")``.
    """
    name, values = parse_spec(spec)
    method = find_method(name)
    if not isinstance(clip, ZeroShot):
        raise LmrError(f"Expected a ZeroShot, got {type(clip).__name__}; backbone.classifier(names) makes one.")
    values |= arguments
    named = values.pop("preset", None)
    preset = named if preset is None else preset
    if preset is not None:
        if not isinstance(preset, str) or preset not in method.presets:
            near = suggest(str(preset), method.presets)
            raise LmrError(f"{name} has no preset {preset!r}.{near} It has: {', '.join(method.presets)}.")
        values = method.presets[preset].values | values
    known = list_arguments(method)
    for key in values:
        if key not in known:
            raise LmrError(f"{name} has no argument {key!r}.{suggest(key, known)} It has: {', '.join(known)}.")
    return method(clip, streams=streams, **values)
