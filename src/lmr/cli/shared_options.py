"""Options that several commands share: the model and its prompts."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from lmr.bench.plans.choices import DTYPES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

DEFAULT_MODEL = "photo"  # of lmr.models.catalog, whose package is slow to import
MODEL_HELP = (
    "the model: a name from 'lmr list', a Hugging Face hub name such as openai/clip-vit-base-patch16, a folder of "
    "weights, or a weights file (.pt, .bin, .safetensors) (default: %(default)s, which comes with lmr)"
)


def add_classifier_options(parser: argparse._ActionsContainer, needed: bool = True) -> None:
    """Add the class names and the model to a parser, or to a group of one."""
    parser.add_argument(
        "--labels",
        required=needed,
        metavar="FILE|A,B,C",
        help="the class names: a file with one per line, with code<TAB>name lines or with JSON of either; or a,b,c",
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="MODEL", help=MODEL_HELP)


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


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr.load``."""
    group = parser.add_argument_group("about the model")
    group.add_argument(
        "--architecture",
        metavar="NAME",
        help="for a file that does not name its architecture: ViT-B-16-quickgelu for weights tuned from OpenAI's, "
        "which have QuickGELU, ViT-B-16 for those with GELU (LAION, DataComp)",
    )
    group.add_argument("--device", metavar="NAME", help="where it runs, such as cuda (default: cpu)")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        help="type of the frozen weights; adapted parameters stay float32 (default: float32)",
    )
    group.add_argument(
        "--memory",
        choices=("fast", "lean"),
        default="fast",
        help="lean: compute parts of a step twice to save memory, for large models (default: %(default)s)",
    )
    group.add_argument("--compile", action="store_true", help="use torch.compile; the first batch is slow")


def read_dataclass(kind: type[T], options: argparse.Namespace) -> T:
    """Return a dataclass whose fields have the values of the options with the same names."""
    given = vars(options)
    return kind(**{item.name: given[item.name] for item in dataclasses.fields(kind) if item.name in given})


def collect_options(options: argparse.Namespace, *without: str) -> dict[str, Any]:
    """Return the options as keyword arguments, except some."""
    return {key: value for key, value in vars(options).items() if key != "run" and key not in without}
