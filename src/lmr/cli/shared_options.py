"""Options that several commands share: the model and its prompts."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from typing import TYPE_CHECKING, Any, TypeVar

from lmr.apps.method_options import MethodOptions
from lmr.apps.options import ModelOptions
from lmr.core.explain import explain_fields

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

MODEL_HELP = explain_fields(MethodOptions)["model"]


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Add the prompts around the class names."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--template",
        action="append",
        dest="templates",
        metavar="TEXT",
        help='a prompt around the class name, such as "a photo of a {}."; repeat the option to average over several',
    )
    which.add_argument(
        "--prompts",
        metavar="FILE.json",
        help='a prompt set instead: {"class": ["prompt", ...], ...} as in CuPL, or a list of templates',
    )


def add_model_options(parser: argparse.ArgumentParser, kind: type[ModelOptions] = MethodOptions) -> None:
    """Add the options of ``lmr.load``, with the defaults of ``kind``."""
    add_fields(parser.add_argument_group("about the model"), kind, device="NAME", dtype=None)


def add_fields(
    parser: argparse._ActionsContainer, kind: type[DataclassInstance], *needed: str, **metavars: str | None
) -> None:
    """Add an option for each of these fields of a dataclass: its type, choices, default and help are the field's.

    The values are the placeholders in the help; a flag and a choice have none. See ``explain_fields`` for the help. The
    command cannot do without those ``needed``, and those without a default.
    """
    hints, meanings = typing.get_type_hints(kind), explain_fields(kind)
    defaults = {item.name: item.default for item in dataclasses.fields(kind)}
    for name, metavar in metavars.items():
        given = [own for own in (typing.get_args(hints[name]) or (hints[name],)) if own is not type(None)]
        literal = next((own for own in (hints[name], *given) if typing.get_origin(own) is typing.Literal), None)
        more: dict[str, Any] = {"default": defaults[name], "metavar": metavar}
        if name in needed or defaults[name] is dataclasses.MISSING:
            more = {"required": True, "metavar": metavar}
        if hints[name] is bool:
            more = {"action": "store_true"}
        elif literal is not None:
            more["choices"] = typing.get_args(literal)
        elif given[0] in (int, float):
            more["type"] = given[0]
        if typing.get_origin(hints[name]) is tuple:
            more["nargs"] = "+"
        meaning = meanings.get(name, "").replace("%", "%%")
        if "(default:" not in meaning and more.get("default") is not None:
            meaning += " (default: %(default)g)" if given[0] is float else " (default: %(default)s)"
        parser.add_argument(f"--{name.replace('_', '-')}", help=meaning, **more)


def read_dataclass(kind: type[T], options: argparse.Namespace) -> T:
    """Return a dataclass whose fields have the values of the options with the same names."""
    given = vars(options)
    return kind(**{item.name: given[item.name] for item in dataclasses.fields(kind) if item.name in given})


def collect_options(options: argparse.Namespace, *without: str) -> dict[str, Any]:
    """Return the options as keyword arguments, except some."""
    return {key: value for key, value in vars(options).items() if key != "run" and key not in without}
