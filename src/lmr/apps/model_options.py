"""The model, the class names and the prompts that a command is given."""

from __future__ import annotations

import os
import shlex
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lmr.apps.options import AnyPath, Prompts
from lmr.core.class_names import check_class_names
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.files import read_json
from lmr.core.functional.prior import share_names
from lmr.core.method import Method
from lmr.core.registry import AUTO, create, find_addressed, find_method, list_methods, split_address
from lmr.core.spec import format_spec, parse_spec, simplify_name
from lmr.data.labelled import read_class_names
from lmr.models import Backbone


def read_names(labels: AnyPath | Sequence[str]) -> list[str] | dict[str, str]:
    """Return class names, or names by sub-folder, from a list, a file, or a text "a,b,c" if there is no such file."""
    found = _find_names(labels)
    names = list(found.values() if isinstance(found, dict) else found)
    names = [name.strip() if isinstance(name, str) else name for name in names]
    check_class_names(names)
    return dict(zip(found, names, strict=True)) if isinstance(found, dict) else names


def _find_names(labels: AnyPath | Sequence[str]) -> list[str] | dict[str, str]:
    if not isinstance(labels, (str, os.PathLike)):
        return list(labels)
    came = repr(os.fspath(labels))
    if os.path.isdir(labels):
        raise LmrError(f"Expected a file of class names, got the folder {came}; give a file, or the names as a,b,c.")
    if os.path.exists(labels):  # a pipe too, as in --labels <(ls names)
        return read_class_names(labels)
    names = os.fspath(labels).split(",")
    if len(names) < 2:
        raise LmrError(
            f"Expected at least two class names, in a file or as a,b,c; got {came}, and there is no such file."
        )
    return names


def read_labels(labels: AnyPath | Sequence[str]) -> list[str]:
    """Return class names from a file, from a text "a,b,c" if there is no such file, or from a list; each once."""
    found = read_names(labels)
    names = list(found.values() if isinstance(found, dict) else found)
    came = f"{os.fspath(labels)!r}" if isinstance(labels, (str, os.PathLike)) else "the list"
    counts = Counter(map(simplify_name, names))
    if repeated := [name for name, count in counts.items() if count > 1]:
        listed = ", ".join(map(repr, repeated[:5]))
        raise LmrError(f"Name every class once; {listed} occurs more than once in {came}.")
    return names


def choose_prompts(templates: Sequence[str] | None, prompts: AnyPath | None) -> Prompts | None:
    """Return the templates, or the prompts of a JSON file: its templates if it holds a list, else the file itself.

    ``Backbone.classifier`` reads a file that gives prompts for each class. None, for its default, if neither is given.
    """
    if prompts is None:
        return templates
    if templates is not None:
        raise LmrError("Choose between --template (text around the class names) and --prompts (a file of them).")
    content = read_json(prompts, "the prompts in")
    if isinstance(content, list):
        return content
    if isinstance(content, dict) and not os.path.isfile(prompts):  # a pipe can be read only once
        return content
    return prompts


def make_classifier(backbone: Backbone, names: Sequence[str], prompts: Prompts | None) -> ZeroShot:
    """Return a classifier of these names with these prompts, or with the model's default if there are none."""
    return backbone.classifier(names) if prompts is None else backbone.classifier(names, prompts)


def create_suited(spec: str, classifier: ZeroShot, **values: Any) -> Method:
    """Return a method for images as they come; ``values`` have precedence over those of the spec.

    It has its values for the number of classes, unless the spec names a preset.
    """
    return create(spec, classifier, preset=_read_given(spec).get("preset") or AUTO, **values)


def add_prior(spec: str, prior: str | Mapping[str, float], names: Sequence[str]) -> str:
    """Return the spec of a method with class shares as its argument "prior".

    ``prior`` is a word that the method knows, such as "uniform", or shares by class name, as a mapping or as a text
    "car=0.8,truck=0.1".
    """
    file, plain = split_address(spec)
    name, given = parse_spec(plain)
    if not takes_shares(find_addressed(spec)):
        having = [one for one in list_methods() if takes_shares(find_method(one))]
        raise LmrError(
            f"{name} does not use class shares, so that --prior does not fit; leave it out, or choose one of these "
            f"methods: {', '.join(having)}."
        )
    if "prior" in given:
        raise LmrError(f"The class shares are given twice, in {spec!r} and with --prior; leave one of them out.")
    value = prior if isinstance(prior, Mapping) else _read_prior(prior, names)
    if isinstance(value, Mapping):
        share_names(value, names)  # refuses what does not fit
        value = dict(value)
    made = format_spec(name, given | {"prior": value})
    return made if file is None else f"{file}:{made}"


def takes_shares(method: type[Method]) -> bool:
    """Return True if a method has an argument "prior" that may be a tuple of shares."""
    hint = typing.get_type_hints(method).get("prior")
    return any(typing.get_origin(own) is tuple for own in (hint, *typing.get_args(hint)))


def _read_prior(text: str, names: Sequence[str]) -> str | dict[str, float]:
    """Return shares by name from a text; a text without shares is a word that the method must know."""
    if text.isidentifier():
        return text
    shares: dict[str, float] = {}
    for part in filter(str.strip, text.split(",")):
        name, _, share = part.rpartition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError as error:
            raise LmrError(
                f"Expected history, uniform or shares such as {names[0]}=0.8,{names[1]}=0.1 for --prior, got {text!r}."
            ) from error
    return shares


def explain_other_method(stored: str, method: Method, what: str, option: str) -> str:
    """Return the error message for ``what``, which belongs to the method ``stored``, with what to do instead."""
    return (
        f"{what} belongs to the method {stored}, not to {method.spec}; give --method {shlex.quote(stored)} to go on "
        f"with it, or another {option} to start anew."
    )


def _read_given(spec: str) -> dict[str, Any]:
    return parse_spec(split_address(spec)[1])[1]


def describe_suited(spec: str, method: Method) -> str:
    """Return the values that ``create_suited`` chose for ``spec``, as text; empty if it chose none."""
    given, classes = _read_given(spec), method.classifier.classes
    chosen = {} if "preset" in given else method.choose_values(classes)
    own = [f"{key}={value!r}" for key, value in chosen.items() if key not in given and getattr(method, key) == value]
    return f"{', '.join(own)} as chosen for {classes} classes" if own else ""
