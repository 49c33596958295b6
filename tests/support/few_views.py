"""Methods as tests of all methods create them: with few views, prompts and repetitions where a method has them."""

from __future__ import annotations

from typing import Any

import lmr
import small_world
from lmr.core.registry import split_address
from lmr.core.spec import list_arguments, parse_spec

KEEP_IMAGES = ("cliptta", "rotta")  # in their state, which needs the shape of an image
FEW = {"views": 3, "prompts": 3, "steps": 2, "rounds": 1, "inner": 1, "every": 8}
OWN = {
    "steady": {"prior": "uniform"},  # adapts from the first image on, where it would wait for a change
    "memo": {"views": 2},  # each is made of several operations
    "subtta": {"rank": 2, "drop_first": False},  # the directions of the small world
}


def create(spec: str, clip: lmr.ZeroShot, /, **arguments: Any) -> lmr.Method:
    """As lmr.create; what is given is kept."""
    name, given = parse_spec(split_address(spec)[1])
    few = {key: value for key, value in list_few(name).items() if key not in given}
    if name in KEEP_IMAGES and clip.input_shape is None:
        clip.input_shape = small_world.SHAPE
    return lmr.create(spec, clip, **few | arguments)


def list_few(name: str) -> dict[str, Any]:
    """The arguments that methods are created with here."""
    arguments = list_arguments(lmr.find_method(name))
    return {key: value for key, value in FEW.items() if key in arguments} | OWN.get(name, {})
