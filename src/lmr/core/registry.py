"""The registry: a method is found, configured and created by its spec string.

Methods come from three places: the folder ``lmr.methods``, packages with an entry point in the group ``lmr.methods``,
and files that are named in the spec itself, ``./mine.py:mine(lr=1e-3)``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import keyword
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, dataclass_transform

from lmr.core.card import Card
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError, MissingFile, WrongType
from lmr.core.log import LOGGER
from lmr.core.method import Method
from lmr.core.spec import list_arguments, parse_spec, suggest

ENTRY_POINTS = OWN = "lmr.methods"
AUTO = "auto"  # the preset that every method has: what it chooses for the number of classes
_METHODS: dict[str, type[Method]] = {}
_M = TypeVar("_M", bound=type[Method])
_ADDRESS = re.compile(r"(?P<file>.+\.py):(?P<spec>[A-Za-z_]\w*\s*(?:\(.*\))?)\s*", re.DOTALL)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def register(name: str, card: Card | None = None) -> Callable[[_M], _M]:
    """Make a subclass of Method a dataclass whose fields are its arguments, and let ``create`` find it by ``name``.

    ``card`` holds what tables and listings say about the method.

    Examples:
        >>> import lmr
        >>> @lmr.register("sharper")
        ... class Sharper(lmr.find_method("zeroshot")):
        ...     'The frozen classifier with other probabilities.'
        ...
        ...     factor: float = 2.0
        ...
        ...     def answer(self, images, state, streams):
        ...         return self.factor * super().answer(images, state, streams)
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> lmr.create("sharper", clip, factor=3)
        sharper(factor=3.0)
    """

    def enter(method: _M) -> _M:
        if not name.isidentifier() or keyword.iskeyword(name):
            plain = re.sub(r"\W", "_", name)
            raise LmrError(
                f"Expected a Python name for a method, such as {plain!r}, got {name!r}: specs are {plain}(lr=1e-3)."
            )
        own = f"{OWN}.{name}"
        if name in _METHODS or (name in _list_own() and method.__module__ != own):
            place = _METHODS[name].__module__ if name in _METHODS else own
            raise LmrError(f"A method {name!r} already exists, in {place}; choose another name.")
        made = dataclasses.dataclass(kw_only=True, eq=False, repr=False)(method)
        made.name = name
        made.card = dataclasses.replace(card or Card(), label=(card and card.label) or name.upper())
        _METHODS[name] = made
        return method

    return enter


def split_address(spec: str) -> tuple[str | None, str]:
    """Split ``FILE.py:name(...)`` into the file and the spec; a plain spec has no file."""
    match = _ADDRESS.fullmatch(spec) if isinstance(spec, str) else None
    return (match["file"], match["spec"]) if match else (None, spec)


def shorten_address(name: str) -> str:
    """Return the name of a model or a dataset without the folders of the file that makes it, if one does."""
    return name if split_address(name)[0] is None else Path(name).name


def list_methods() -> list[str]:
    """Return the names of all methods, in alphabetical order.

    Examples:
        >>> import lmr
        >>> "lmr" in lmr.list_methods()
        True
    """
    _load_installed()
    return sorted({*_list_own(), *_METHODS})


def sort_methods(names: Sequence[str]) -> list[str]:
    """Return names in the order of tables: the baseline, methods without training, the others by year, ours last."""

    def place(name: str) -> tuple[int, bool, int, str]:
        method = find_method(name)
        return method.card.role, bool(method.towers), method.card.year, name

    return sorted(names, key=place)


def expand_methods(entry: str) -> list[str]:
    """Return the methods that "all" (of this package and of installed ones) or "paper" stands for."""
    if entry not in ("all", "paper"):
        return [entry]
    installed = [name for name in list_methods() if find_method_file(find_method(name)) is None]
    return sort_methods([name for name in installed if entry == "all" or find_method(name).card.in_paper])


def find_method(name: str) -> type[Method]:
    """Return the class of a method by its name or by ``FILE.py:name``; the error for an unknown name suggests one.

    Examples:
        >>> import lmr
        >>> method = lmr.find_method("lmr")
        >>> method.card.source, sorted(method.card.presets)[:2]
        ('Huang et al. 2026', ['cifar10-c', 'cifar100-c'])
    """
    file, name = split_address(name)
    if file is not None:
        load_method_file(file)
    elif name in _list_own():
        return _load_own(name)
    else:
        _load_installed()
    if not isinstance(name, str) or name not in _METHODS:
        known = list_methods()
        raise LmrError(f"There is no method {name!r}.{suggest(name, known)} There are: {', '.join(known)}.")
    method = _METHODS[name]
    if file is not None and find_method_file(method) != str(Path(file).resolve()):
        raise LmrError(f"The file {file!r} does not define the method {name!r}; it comes from {method.__module__}.")
    return method


def find_method_file(method: type[Method]) -> str | None:
    """Return the file that ``load_method_file`` took a method from; None for methods of packages."""
    module = sys.modules.get(method.__module__)
    return module.__file__ if module is not None and hasattr(module, "__lmr_digest__") else None


def find_addressed(spec: str) -> type[Method]:
    """Return the class of the method that a spec string names, which may be in a file."""
    file, plain = split_address(spec)
    name, _ = parse_spec(plain)
    return find_method(name if file is None else f"{file}:{name}")


def create(
    spec: str,
    clip: ZeroShot,
    /,
    *,
    preset: str | None = None,
    streams: int = 1,
    unknown: float | None = None,
    **arguments: Any,
) -> Method:
    """Create a method from its spec string, for example ``create("lmr(lr=1e-3)", clip)``.

    Arguments of the call override the string, the string overrides the preset, the preset the defaults. A preset may
    also be in the string: ``lmr(preset="cifar10-c")``. Without one it is "auto": what the method chooses for the number
    of classes. The preset "default" has the published defaults. A method in your own file is ``./mine.py:mine``.

    ``unknown`` is the score below which an image belongs to none of the classes, from 0 to 1; such images have no
    name and teach nothing.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> method = lmr.create("lmr(lr=5e-4)", clip)
        >>> answer = method.step(torch.randn(8, 3, 32, 32))  # adapt on this batch and answer it
        >>> answer.labels.shape, answer.logits.shape
        (torch.Size([8]), torch.Size([8, 2]))
        >>> method.save("camera.state")  # and later, with the same model and classes:
        >>> notes = lmr.create("lmr(lr=5e-4)", clip).load("camera.state")
    """
    method = find_addressed(spec)
    name, values = parse_spec(split_address(spec)[1])
    if not isinstance(clip, ZeroShot):
        raise WrongType(f"Expected a ZeroShot, got {type(clip).__name__}; backbone.classifier(names) makes one.")
    values = values | arguments
    named = values.pop("preset", AUTO)
    preset = named if preset is None else preset
    presets = method.card.presets
    known_presets = [*presets, AUTO]
    if not isinstance(preset, str) or preset not in known_presets:
        near = suggest(str(preset), known_presets)
        raise LmrError(f"{name} has no preset {preset!r}.{near} It has: {', '.join(known_presets)}.")
    values = (method.choose_values(clip.classes) if preset == AUTO else presets[preset].values) | values
    known = list_arguments(method)
    for key in values:
        if key not in known:
            raise LmrError(f"{name} has no argument {key!r}.{suggest(key, known)} It has: {', '.join(known)}.")
    return method(clip, streams=streams, unknown=unknown, **values)


def load_function(address: str, group: str, what: str) -> tuple[Callable[[], Any], str] | None:
    """Return a user's function and the digest of its file: ``FILE.py:name``, or a name that a package registers.

    ``group`` is the group of entry points, ``what`` it makes, for messages. The digest of a package is empty. None
    means that it is neither.
    """
    file, name = split_address(address)
    if file is None:
        found = metadata.entry_points(group=group, name=address)
        return (next(iter(found)).load(), "") if found else None
    digest = load_method_file(file)
    function = getattr(sys.modules[_name_module(Path(file).resolve())], name, None)
    if not callable(function):
        raise LmrError(f"The file {file!r} has no function {name!r} that makes a {what}.")
    return function, digest


def _name_module(file: Path) -> str:
    return f"lmr_method_file_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"


def load_method_file(path: str) -> str:
    """Import a file of methods, models or datasets once per content and return the digest of its content.

    A file that was edited since is imported again; its methods replace those of its earlier content.
    """
    try:
        resolved = Path(path).resolve(strict=True)
        content = resolved.read_bytes()
    except FileNotFoundError as error:
        raise MissingFile(f"Cannot read the method file {path!r}: {error.strerror}.") from error
    except (OSError, ValueError) as error:
        raise LmrError(f"Cannot read the method file {path!r}: {getattr(error, 'strerror', None) or error}.") from error
    digest = hashlib.sha256(content).hexdigest()
    module_name = _name_module(resolved)
    if getattr(sys.modules.get(module_name), "__lmr_digest__", None) == digest:
        return digest
    _load_installed()  # a file cannot take a name of theirs, whatever was loaded first
    for name in [name for name, method in _METHODS.items() if method.__module__ == module_name]:
        del _METHODS[name]
    module = ModuleType(module_name)
    module.__file__ = str(resolved)
    sys.modules[module_name] = module  # dataclasses look their own module up
    before = set(_METHODS)
    try:
        code = compile(content, str(resolved), "exec", dont_inherit=True)  # bytecode that Python cached may be older
        exec(code, module.__dict__)
    except Exception as error:
        for name in set(_METHODS) - before:
            del _METHODS[name]
        del sys.modules[module_name]
        raise LmrError(f"The method file {path!r} cannot be imported: {type(error).__name__}: {error}") from error
    module.__dict__["__lmr_digest__"] = digest
    return digest


@cache
def _list_own() -> frozenset[str]:
    """Return the names of the methods of this package: the files of their folder, which are not imported."""
    folder = importlib.util.find_spec(OWN)
    assert folder is not None
    return frozenset(module.name for module in pkgutil.iter_modules(folder.submodule_search_locations))


@cache
def _load_own(name: str) -> type[Method]:
    module = importlib.import_module(f"{OWN}.{name}")
    made = (kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__)
    return next(kind for kind in made if issubclass(kind, Method) and getattr(kind, "name", "") == name)


@cache
def _load_installed() -> None:
    """Import the methods of installed packages, at first use."""
    for point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:  # a broken package must not disable the others
            LOGGER.warning("The methods of %r (entry point %r) cannot be imported: %s", point.value, point.name, error)
