"""Methods as tests of all methods create them: with few views and few prompts where a method has them, to be quick."""

from __future__ import annotations

from typing import Any

import lmr
from lmr.core.method import list_arguments
from lmr.core.registry import split_address
from lmr.core.spec import parse_spec

FEW = {"views": 3, "prompts": 3}


def create(spec: str, clip: lmr.ZeroShot, **arguments: Any) -> lmr.Method:
    """As lmr.create; what is given is kept."""
    name, given = parse_spec(split_address(spec)[1])
    method = lmr.find_method(name)
    if method.takes_views:
        few = {key: value for key, value in FEW.items() if key in list_arguments(method) and key not in given}
        arguments = few | arguments
    return lmr.create(spec, clip, **arguments)
