"""The grid of a plan: values to choose from, as many for every method.

A TOML file: the name of a method, then a list of tables of arguments. The values of the plan are always among the
choices, so they are not listed. With ``images = 500`` they are tried on streams of so many images, whatever the length
of those of the plan.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.files import explain_text_error, read_text

Choices = Mapping[str, list[dict[str, Any]]]
FORM = "each method has a list of tables, as in tent = [{ lr = 5e-4 }, { lr = 2e-3 }]"


def read_grid(path: str) -> tuple[Choices, int | None]:
    """Read a grid file: the values of each method, and the images of a stream to try them on; None: as in the plan.

    Raises:
        LmrError: The methods do not all have the same number of different values.
    """
    text = read_text(path, "the grid")
    try:
        grid: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise LmrError(f"Cannot read the grid {path!r}: {explain_text_error(error)}. In it {FORM}.") from error
    images = grid.pop("images", None)
    if images is not None and (type(images) is not int or images < 1):
        raise LmrError(f"Expected a positive number of images in the grid {path!r}, got {images!r}.")
    for name, choices in grid.items():
        if not isinstance(choices, list) or not all(isinstance(values, dict) and values for values in choices):
            raise LmrError(f"Cannot read {name} in the grid {path!r}: {FORM}.")
        if any(values in choices[:place] for place, values in enumerate(choices)):
            raise LmrError(f"The grid {path!r} has values of {name} twice; remove one.")
    counts = {name: len(choices) for name, choices in grid.items()}
    if not grid or len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items()) or "no method"
        raise LmrError(f"Expected the same number of values for every method in the grid {path!r}, got {shown}.")
    return grid, images
